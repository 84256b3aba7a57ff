"""UpdateEndpoint on variants with scalable targets."""

from collections.abc import Iterator

import pytest

from headrace.platform.autoscaling.api.targets import (
    deregister_scalable_target,
    register_scalable_target,
    update_scaled_endpoint,
)
from headrace.platform.control.api.definitions import create_endpoint_config
from headrace.platform.control.api.endpoints import create_endpoint
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import Scene
from tests.platform.control.support import ROLE


@pytest.fixture(params=[False, True], ids=["friendly", "strict"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(is_strict=request.param)
    yield made
    made.store.close()


def make_config(scene: Scene, name: str, **types: str) -> None:
    variants = [
        {"VariantName": variant, "ModelName": "m", "InstanceType": type_, "InitialInstanceCount": 1}
        for variant, type_ in types.items()
    ]
    members = {"EndpointConfigName": name, "ExecutionRoleArn": ROLE, "ProductionVariants": variants}
    create_endpoint_config(scene.context, members)


async def test_a_scaled_variant_is_not_removed_before_its_target(scene: Scene) -> None:
    make_config(scene, "both", v="ml.m5.large", w="ml.m5.large")
    make_config(scene, "one", v="ml.m5.large")
    make_config(scene, "other-type", v="ml.m5.large", w="ml.m5.xlarge")
    create_endpoint(scene.context, {"EndpointName": "Ep", "EndpointConfigName": "both"})
    await scene.settle()
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "endpoint/ep/variant/w",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    register_scalable_target(scene.context, {**target, "MinCapacity": 1, "MaxCapacity": 2})
    message = r'The variant\(s\) "\[w\]" must be deregistered as scalable targets with AWS Auto Scaling before'
    with pytest.raises(AwsError, match=message) as caught:
        update_scaled_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "one"})
    assert caught.value.code == "ValidationException"
    change = {"EndpointName": "ep", "EndpointConfigName": "other-type"}
    if scene.is_strict:
        with pytest.raises(AwsError, match=message):
            update_scaled_endpoint(scene.context, change)
    else:
        update_scaled_endpoint(scene.context, change)
        await scene.settle(30)
    deregister_scalable_target(scene.context, target)
    update_scaled_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "one"})


def test_unknown_names_are_reported_as_without_targets(scene: Scene) -> None:
    with pytest.raises(AwsError, match="Could not find endpoint"):
        update_scaled_endpoint(scene.context, {"EndpointName": "none", "EndpointConfigName": "none"})
