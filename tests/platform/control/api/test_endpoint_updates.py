"""Updates of endpoints: what they refuse, as on AWS, and the deployment configuration that they keep."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.control.api.definitions import create_endpoint_config
from headrace.platform.control.api.endpoints import (
    create_endpoint,
    describe_endpoint,
    refuse_other_kind,
    update_endpoint,
    update_weights,
)
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.state.records import Json, Record
from headrace.platform.state.routes import ROUTE
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import Scene

PLAIN = {"VariantName": "v", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
SERVERLESS = {"VariantName": "v", "ServerlessConfig": {"MemorySizeInMB": 2048, "MaxConcurrency": 5}}
ASYNC = {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://b/out"}}}


def config(*variants: Json, **more: Any) -> Json:
    return {"ProductionVariants": list(variants or (PLAIN,)), **more}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (config(**ASYNC), config(), "The AsyncInferenceConfig parameter cannot be removed from this endpoint e"),
        (config(), config(**ASYNC), "The AsyncInferenceConfig parameter cannot be added to this endpoint e"),
        (config(), config(SERVERLESS), "Variant v of endpoint e has instances"),
        (config(PLAIN, {**PLAIN, "VariantName": "w"}), config(PLAIN, {**SERVERLESS, "VariantName": "w"}), "Variant w"),
    ],
)
def test_an_update_to_another_kind_of_endpoint_is_refused(old: Json, new: Json, message: str) -> None:
    with pytest.raises(AwsError, match=message) as caught:
        refuse_other_kind("e", old, new)
    assert (caught.value.code, caught.value.http_status) == ("ValidationException", 400)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (config(**ASYNC), config(**ASYNC)),
        (config(SERVERLESS), config(SERVERLESS)),
        (config(SERVERLESS), config()),
        (config(), config(PLAIN, {**SERVERLESS, "VariantName": "new"})),
    ],
)
def test_other_updates_are_accepted(old: Json, new: Json) -> None:
    refuse_other_kind("e", old, new)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()


def make_config(scene: Scene, name: str, model: str = "m", *, variant: Json = PLAIN, **more: Any) -> None:
    members = {"EndpointConfigName": name, "ProductionVariants": [{**variant, "ModelName": model}], **more}
    create_endpoint_config(scene.context, members)


async def test_an_asynchronous_endpoint_stays_asynchronous(scene: Scene) -> None:
    make_config(scene, "plain")
    make_config(scene, "async", **ASYNC)
    create_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "async"})
    await scene.settle()
    before = scene.store.revision()
    with pytest.raises(AwsError, match="cannot be removed from this endpoint e"):
        update_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "plain"})
    assert scene.store.revision() == before
    assert describe_endpoint(scene.context, {"EndpointName": "e"})["EndpointStatus"] == "InService"


async def test_a_serverless_variant_has_no_number_of_instances(scene: Scene) -> None:
    make_config(scene, "serverless", variant=SERVERLESS)
    create_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "serverless"})
    await scene.settle()
    change = {"VariantName": "v", "DesiredInstanceCount": 3}
    with pytest.raises(AwsError, match='Variant "v" is serverless'):
        update_weights(scene.context, {"EndpointName": "e", "DesiredWeightsAndCapacities": [change]})
    weight = {"VariantName": "v", "DesiredWeight": 2.0}
    update_weights(scene.context, {"EndpointName": "e", "DesiredWeightsAndCapacities": [weight]})


async def test_a_serverless_variant_gets_another_concurrency(scene: Scene) -> None:
    def change(**update: int) -> None:
        desired = {"VariantName": "v", "DesiredWeight": 2.0, "ServerlessUpdateConfig": update}
        update_weights(scene.context, {"EndpointName": "e", "DesiredWeightsAndCapacities": [desired]})

    make_config(scene, "serverless", variant=SERVERLESS)
    create_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "serverless"})
    await scene.settle()
    with pytest.raises(AwsError, match="ProvisionedConcurrency of 6; expected at most MaxConcurrency, 5"):
        change(ProvisionedConcurrency=6)
    change(MaxConcurrency=10, ProvisionedConcurrency=2)
    await scene.settle(30)
    (variant,) = describe_endpoint(scene.context, {"EndpointName": "e"})["ProductionVariants"]
    expected = {"MemorySizeInMB": 2048, "MaxConcurrency": 10, "ProvisionedConcurrency": 2}
    assert (variant["CurrentServerlessConfig"], variant["CurrentWeight"]) == (expected, 2.0)
    route = scene.store.get(ROUTE, "e")
    assert isinstance(route, Record)
    assert [variant.max_concurrency for variant in route.spec.variants] == [10]
    make_config(scene, "plain")
    update_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "plain"})
    await scene.settle(30)
    with pytest.raises(AwsError, match='Variant "v" has instances'):
        change(MaxConcurrency=3)


def deployment(wait_s: int) -> Json:
    routing = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": wait_s}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing}}


async def test_the_last_deployment_config_is_that_of_the_last_request_also_if_it_was_rolled_back(scene: Scene) -> None:
    for name, model in (("first", "m"), ("second", "n"), ("broken", "bad")):
        make_config(scene, name, model)
    create_endpoint(
        scene.context, {"EndpointName": "e", "EndpointConfigName": "first", "DeploymentConfig": deployment(1)}
    )
    await scene.settle()
    update_endpoint(
        scene.context, {"EndpointName": "e", "EndpointConfigName": "broken", "DeploymentConfig": deployment(2)}
    )
    await scene.settle(30)
    found = describe_endpoint(scene.context, {"EndpointName": "e"})
    assert (found["EndpointConfigName"], found["EndpointStatus"]) == ("first", "InService"), "it was rolled back"
    assert found["LastDeploymentConfig"] == deployment(2)
    weight = {"VariantName": "v", "DesiredInstanceCount": 2}
    update_weights(scene.context, {"EndpointName": "e", "DesiredWeightsAndCapacities": [weight]})
    await scene.settle()
    assert describe_endpoint(scene.context, {"EndpointName": "e"})["LastDeploymentConfig"] == deployment(2)
    update_endpoint(
        scene.context, {"EndpointName": "e", "EndpointConfigName": "second", "RetainDeploymentConfig": True}
    )
    record = scene.store.get(ENDPOINT, "e")
    assert isinstance(record, Record)
    assert record.spec.revision.deployment == deployment(2)
    await scene.settle(30)
    update_endpoint(scene.context, {"EndpointName": "e", "EndpointConfigName": "first"})
    await scene.settle(30)
    assert "LastDeploymentConfig" not in describe_endpoint(scene.context, {"EndpointName": "e"}), "the default was used"
