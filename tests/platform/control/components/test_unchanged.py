"""An update leaves unchanged what it does not name."""

from typing import Any

import pytest

from headrace.platform.control.api.components import update_inference_component
from headrace.platform.control.api.definitions import MODELS
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import TYPE, Scene
from tests.platform.control.support import IMAGE

NEED = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024, "MaxMemoryRequiredInMb": 2048}
STARTUP = {"ModelDataDownloadTimeoutInSeconds": 100, "ContainerStartupHealthCheckTimeoutInSeconds": 200}
OWN: Json = {
    "ModelName": "m",
    "ComputeResourceRequirements": NEED,
    "StartupParameters": STARTUP,
    "SchedulingConfig": {"PlacementStrategy": "BINPACK"},
}
CONTAINER = {"Image": IMAGE, "ArtifactUrl": "s3://b/m/", "Environment": {"HF_MODEL_ID": "m", "B": "2"}}
CONTAINED: Json = {**OWN, "Container": CONTAINER}
del CONTAINED["ModelName"]
ROLLING = {
    "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1}, "WaitIntervalInSeconds": 0},
    "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
}


async def updated(scene: Scene, old: Json, given: Json, **more: Any) -> Json:
    """Return the specification that is requested after an update."""
    await scene.host()
    scene.create("a", copies=2, Specification=old)
    await scene.settle()
    update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": given, **more})
    revision = scene.record("a").spec.revision
    assert revision.copies == 2
    return dict(revision.specification)


@pytest.mark.parametrize(
    ("old", "given", "changed"),
    [
        (OWN, {"ModelName": "n"}, {"ModelName": "n"}),
        (OWN, {"StartupParameters": STARTUP}, {}),
        (
            OWN,
            {"StartupParameters": {"ModelDataDownloadTimeoutInSeconds": 60}},
            {"StartupParameters": {**STARTUP, "ModelDataDownloadTimeoutInSeconds": 60}},
        ),
        (
            OWN,
            {"ComputeResourceRequirements": {"MinMemoryRequiredInMb": 512}},
            {"ComputeResourceRequirements": {**NEED, "MinMemoryRequiredInMb": 512}},
        ),
        (
            OWN,
            {"SchedulingConfig": {"PlacementStrategy": "SPREAD"}},
            {"SchedulingConfig": {"PlacementStrategy": "SPREAD"}},
        ),
        (OWN, {"InstanceType": TYPE}, {"InstanceType": TYPE}),
        (
            CONTAINED,
            {"Container": {"ArtifactUrl": "s3://b/n/"}},
            {"Container": {**CONTAINER, "ArtifactUrl": "s3://b/n/"}},
        ),
        (
            CONTAINED,
            {"Container": {"Environment": {"HF_MODEL_ID": "n"}}},
            {"Container": {**CONTAINER, "Environment": {"HF_MODEL_ID": "n"}}},
        ),
    ],
)
async def test_every_member_that_an_update_leaves_out_stays(
    scene: Scene, old: Json, given: Json, changed: Json
) -> None:
    assert await updated(scene, old, given) == {**old, **changed}


async def test_a_model_replaces_a_container_and_a_container_a_model(scene: Scene) -> None:
    kept = {name: value for name, value in OWN.items() if name != "ModelName"}
    assert await updated(scene, CONTAINED, {"ModelName": "n"}) == {**kept, "ModelName": "n"}
    await scene.settle(20)
    update_inference_component(
        scene.context, {"InferenceComponentName": "a", "Specification": {"Container": CONTAINER}}
    )
    assert scene.record("a").spec.revision.specification == {**kept, "Container": CONTAINER}
    await scene.settle(20)
    both = {"ModelName": "m", "Container": CONTAINER}
    with pytest.raises(AwsError, match="Give one of ModelName and Container"):
        update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": both})


async def test_each_of_several_specifications_keeps_what_it_leaves_out(scene: Scene) -> None:
    other = {**OWN, "InstanceType": "ml.g5.xlarge"}
    await scene.host()
    scene.create("a", Specifications=[{**OWN, "InstanceType": TYPE}, other])
    await scene.settle()
    given = [{"InstanceType": "ml.g5.xlarge", "ModelName": "n"}, {"InstanceType": TYPE, "StartupParameters": {}}]
    update_inference_component(scene.context, {"InferenceComponentName": "a", "Specifications": given})
    revision = scene.record("a").spec.revision
    assert revision.specifications == [{**other, "ModelName": "n"}, {**OWN, "InstanceType": TYPE}]


async def test_an_update_that_leaves_out_a_deleted_model_keeps_its_copy(scene: Scene) -> None:
    await scene.host()
    scene.create("a")
    await scene.settle()
    before = scene.record("a").spec.revision.model
    MODELS.delete(scene.context, {"ModelName": "m"})
    change = {"StartupParameters": {"ModelDataDownloadTimeoutInSeconds": 60}}
    update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": change})
    assert scene.record("a").spec.revision.model == before
    await scene.settle(20)
    named = {"InferenceComponentName": "a", "Specification": {"ModelName": "none"}}
    with pytest.raises(AwsError, match="Could not find model"):
        update_inference_component(scene.context, named)


async def test_the_deployment_config_stays_also_after_a_rollback(scene: Scene) -> None:
    await scene.host()
    scene.create("a", copies=2)
    await scene.settle()
    scene.update("a", "n")
    await scene.settle(20)
    first = scene.seen("a")["LastDeploymentConfig"]
    update_inference_component(
        scene.context,
        {"InferenceComponentName": "a", "Specification": {"ModelName": "bad"}, "DeploymentConfig": ROLLING},
    )
    await scene.settle(30)
    found = scene.seen("a")
    assert found["Specification"]["ModelName"] == "n", "it was rolled back"
    assert found["LastDeploymentConfig"] == ROLLING != first
    scene.scale("a", 1)
    await scene.settle()
    assert scene.seen("a")["LastDeploymentConfig"] == ROLLING
    change = {"StartupParameters": STARTUP}
    update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": change})
    revision = scene.record("a").spec.revision
    assert revision.deployment == ROLLING
    assert revision.specification["ModelName"] == "n", "unchanged means as it is described, not as it failed"
