"""The reconciliation of components: instances, updates, alarms, hosts and deletions."""

from typing import Any

import pytest

from headrace.platform.cloudwatch.alarms.records import AlarmStatus
from headrace.platform.control.api.components import update_inference_component
from headrace.platform.control.api.endpoints import delete_endpoint, describe_endpoint, update_endpoint
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.routes import ROUTE
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.cloudwatch.samples import create_alarm
from tests.platform.control.components.scene import NEED, TYPE, Scene
from tests.platform.control.planning.host_world import managed
from tests.platform.control.support import IMAGE, reconciler_of


async def test_a_component_has_the_routing_strategy_of_its_host(scene: Scene) -> None:
    def strategy() -> str:
        route = scene.store.get(ROUTE, "ep")
        assert route is not None
        (routed,) = route.spec.components
        return routed.route.strategy

    await scene.host()
    scene.create("c")
    await scene.settle()
    assert strategy() == "RANDOM"
    scene.config("least", RoutingConfig={"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"})
    update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "least"})
    await scene.settle()
    assert strategy() == "LEAST_OUTSTANDING_REQUESTS"


async def test_a_component_at_zero_is_updated_and_wakes_with_the_new_model(scene: Scene) -> None:
    await scene.host()
    scene.create("c", copies=0)
    await scene.settle()
    scene.update("c", "n")
    await scene.settle()
    assert scene.status("c") == ("InService", 0)
    assert scene.seen("c")["Specification"]["ModelName"] == "n"
    scene.scale("c", 1)
    await scene.settle()
    (worker,) = scene.machine.living()
    assert worker.spec.environment["HF_MODEL_ID"] == "n"


async def test_an_empty_instance_is_removed_after_the_cooldown(scene: Scene) -> None:
    await scene.host(**managed(strategy="IDLE_RELEASE"))
    scene.create("c", copies=6)
    await scene.settle()
    assert scene.num_instances() == 2
    scene.scale("c", 1)
    await scene.settle(290, pause_s=2)
    assert scene.num_instances() == 2
    await scene.settle(30, pause_s=2)
    assert scene.num_instances() == 1
    assert scene.status("c") == ("InService", 1)


@pytest.mark.parametrize("is_mortal", [False, True])
async def test_copies_move_together_under_consolidation(scene: Scene, *, is_mortal: bool) -> None:
    await scene.host(**managed())
    for name in ("a", "b"):
        scene.create(name, copies=4)
    await scene.settle()
    for name in ("a", "b"):
        scene.scale(name, 2)
    await scene.settle(280, pause_s=5)
    assert scene.num_instances() == 2
    desired = set[int]()
    for number in range(80):
        await scene.settle(1)
        if is_mortal and number % 3 == 0:
            scene.reconciler = reconciler_of(scene.store, scene.machine, clock=scene.clock)
        assert scene.status("a")[1] >= 2
        desired.add(scene.counts()["DesiredInstanceCount"])
        assert scene.status("b")[1] >= 2
    assert scene.num_instances() == 1
    assert desired == {1, 2}
    assert scene.copies() == {"a": 2, "b": 2}
    assert len(list(scene.machine.living())) == 4
    before = scene.store.revision()
    await scene.settle(600, pause_s=5)
    assert scene.store.revision() == before


async def test_an_alarm_rolls_the_update_of_a_component_back(scene: Scene) -> None:
    alarm = create_alarm(scene.store, "errors")
    await scene.host()
    scene.create("c", copies=2)
    await scene.settle()
    size = {"Type": "COPY_COUNT", "Value": 1}
    scene.update(
        "c",
        "n",
        RollingUpdatePolicy={"MaximumBatchSize": size, "WaitIntervalInSeconds": 300},
        AutoRollbackConfiguration={"Alarms": [{"AlarmName": "errors"}]},
    )
    await scene.settle()
    assert scene.seen("c")["InferenceComponentStatus"] == "Updating"
    scene.store.update(alarm, status=AlarmStatus(state="ALARM"))
    await scene.settle()
    assert scene.status("c") == ("InService", 2)
    assert scene.seen("c")["FailureReason"] == "Alarm errors of AutoRollbackConfiguration is in ALARM."
    assert scene.seen("c")["Specification"]["ModelName"] == "m"


async def test_an_update_without_spare_room_fails_at_once_and_says_so(scene: Scene) -> None:
    await scene.host()
    scene.create("c", copies=4)
    await scene.settle()
    scene.update("c", "n")
    await scene.settle(5)
    assert scene.status("c") == ("InService", 4)
    reason = scene.seen("c")["FailureReason"]
    assert reason.startswith("There is not enough hardware resources on the instances for this endpoint")
    assert "needs room for a batch of new copies (MaximumBatchSize)" in reason
    assert scene.seen("c")["Specification"]["ModelName"] == "m"
    scene.scale("c", 3)
    await scene.settle()
    scene.update("c", "n")
    await scene.settle(30)
    assert scene.status("c") == ("InService", 3)
    assert scene.seen("c")["Specification"]["ModelName"] == "n"


async def test_all_specifications_are_described_and_the_fitting_one_is_deployed(scene: Scene) -> None:
    await scene.host()

    def several(model: str) -> list[dict[str, Any]]:
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": model}}
        return [
            {"InstanceType": "ml.g5.xlarge", "ModelName": "bad", "ComputeResourceRequirements": NEED},
            {"InstanceType": TYPE, "Container": container, "ComputeResourceRequirements": NEED},
        ]

    scene.create("c", Specifications=several("m"))
    await scene.settle()
    found = scene.seen("c")
    assert "Specification" not in found
    other, own = found["Specifications"]
    assert other == several("m")[0]
    assert own["Container"]["DeployedImage"]["ResolvedImage"] == IMAGE
    assert scene.status("c") == ("InService", 1)
    update_inference_component(scene.context, {"InferenceComponentName": "c", "Specifications": several("bad")})
    await scene.settle()
    assert "It is bad." in scene.seen("c")["FailureReason"]
    assert scene.seen("c")["Specifications"][1]["Container"]["Environment"] == {"HF_MODEL_ID": "m"}
    scene.update("c", "n")
    await scene.settle()
    assert scene.seen("c")["Specification"]["ModelName"] == "n"
    assert "Specifications" not in scene.seen("c")


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ((TYPE, TYPE), "Several of Specifications are for ml.p3.8xlarge"),
        ((TYPE, None), "InstanceType is missing"),
        (("ml.g5.xlarge",), "None of Specifications is for ml.p3.8xlarge"),
    ],
)
async def test_ambiguous_specifications_are_refused(scene: Scene, kinds: tuple[str | None, ...], message: str) -> None:
    await scene.host()
    base = {"ModelName": "m", "ComputeResourceRequirements": NEED}
    several = [{**base, "InstanceType": kind} if kind else base for kind in kinds]
    with pytest.raises(AwsError, match=message):
        scene.create("c", Specifications=several)


async def test_a_batch_of_more_than_half_is_refused(scene: Scene) -> None:
    await scene.host()
    scene.create("c")
    await scene.settle()
    size = {"Type": "CAPACITY_PERCENT", "Value": 80}
    with pytest.raises(AwsError, match="MaximumBatchSize is 80 %"):
        scene.update("c", "n", RollingUpdatePolicy={"MaximumBatchSize": size, "WaitIntervalInSeconds": 0})


async def test_a_host_keeps_the_variants_that_components_are_on(scene: Scene) -> None:
    await scene.host()
    scene.create("c")
    await scene.settle()
    scene.config("renamed", VariantName="w")
    scene.config("own", ModelName="m")
    for name in ("renamed", "own"):
        with pytest.raises(AwsError, match='Inference component "c" is on variant "v"'):
            update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": name})
    scene.config("larger", InitialInstanceCount=2)
    update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "larger"})
    await scene.settle()
    assert scene.num_instances() == 2
    assert scene.copies() == {"c": 1}


async def test_components_stay_unchanged_when_the_update_of_their_host_is_rolled_back(scene: Scene) -> None:
    alarm = create_alarm(scene.store, "errors")
    await scene.host()
    scene.create("c", copies=3)
    await scene.settle()
    before = sorted(scene.machine.workers)
    scene.config("larger", InitialInstanceCount=3)
    routing = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 300}
    params = {
        "EndpointName": "ep",
        "EndpointConfigName": "larger",
        "DeploymentConfig": {
            "BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing},
            "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
        },
    }
    update_endpoint(scene.context, params)
    await scene.settle()
    assert scene.copies() == {"c": 3}
    scene.scale("c", 4)
    await scene.settle()
    assert scene.status("c") == ("InService", 4)
    scene.store.update(alarm, status=AlarmStatus(state="ALARM"))
    await scene.settle()
    found = describe_endpoint(scene.context, {"EndpointName": "ep"})
    assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", "ep")
    assert (scene.num_instances(), scene.copies()) == (1, {"c": 4})
    assert set(before) <= set(scene.machine.workers)


async def test_concurrent_deletions_leave_nothing_behind(scene: Scene) -> None:
    await scene.host()
    for name in ("a", "b"):
        scene.create(name, copies=2)
    await scene.settle(1)
    scene.delete("a")
    scene.delete("a")
    with pytest.raises(AwsError, match="It has: a, b"):
        delete_endpoint(scene.context, {"EndpointName": "ep"})
    with pytest.raises(AwsError, match="in-progress"):
        scene.scale("a", 1)
    with pytest.raises(AwsError, match="Cannot create already existing"):
        scene.create("a")
    endpoint = scene.store.get(ENDPOINT, "ep")
    assert endpoint is not None
    scene.store.update(endpoint, is_deleting=True)  # as by a writer that read it before `b` was created
    await scene.settle(40)
    assert [scene.store.list(kind) for kind in (ENDPOINT, INFERENCE_COMPONENT, WORKER)] == [[], [], []]
    assert not scene.machine.workers


async def test_strict_mode_refuses_to_delete_a_component_in_progress() -> None:
    scene = Scene(is_strict=True)
    try:
        await scene.host()
        with pytest.raises(AwsError, match="copy count an integer larger than 0"):
            scene.create("c", copies=0)
        scene.create("c")
        for step in ("made", "scaled", "updated"):
            with pytest.raises(AwsError, match="Cannot delete in-progress inference component"):
                scene.delete("c")
            await scene.settle()
            if step == "made":
                scene.scale("c", 2)
            elif step == "scaled":
                scene.update("c", "n")
        scene.create("failed", model="bad")
        await scene.settle()
        assert scene.seen("failed")["InferenceComponentStatus"] == "Failed"
        for name in ("c", "failed"):
            scene.delete(name)
        await scene.settle()
        assert scene.store.list(INFERENCE_COMPONENT) == []
    finally:
        scene.store.close()
