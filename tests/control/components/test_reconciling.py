"""Components through the API's handlers and the reconciler: played copies, a real store, a clock moved by hand."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cluster.fake import FakeMachine, ManualClock, fails_after, ready_after
from headrace.cluster.launcher import WorkerSpec
from headrace.control.components.api import (
    create_inference_component,
    delete_inference_component,
    list_inference_components,
    update_inference_component,
    update_runtime_config,
)
from headrace.control.components.describe import describe_inference_component
from headrace.control.components.overview import read_overview
from headrace.control.context import CallContext
from headrace.control.describe_endpoint import describe_endpoint
from headrace.control.endpoint_configs_api import create_endpoint_config
from headrace.control.endpoints_api import create_endpoint, delete_endpoint, update_endpoint
from headrace.control.models_api import create_model
from headrace.state.records import Kind, Record
from headrace.state.routes import route_from_json
from headrace.state.sql import open_store
from headrace.wire.aws.errors import AwsError
from tests.control.components.world import managed
from tests.control.support import IMAGE, ROLE, SITE, ListedLogs, reconciler_of

NEED = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024}
TYPE = "ml.p3.8xlarge"


class Scene:
    """A store, a machine and the time; one endpoint `ep` for components."""

    def __init__(self, *, is_strict: bool = False) -> None:
        self.clock = ManualClock()
        self.store = open_store("sqlite://", now_s=self.clock)
        self.machine = FakeMachine(clock=self.clock, script=self._script)
        self.reconciler = reconciler_of(self.store, self.machine, clock=self.clock)
        self.is_strict = is_strict
        for name in ("m", "n", "bad"):
            container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": name}}
            create_model(self.context, {"ModelName": name, "PrimaryContainer": container, "ExecutionRoleArn": ROLE})

    def _script(self, spec: WorkerSpec) -> Any:
        return fails_after(message="It is bad.") if spec.environment["HF_MODEL_ID"] == "bad" else ready_after(1.0)

    @property
    def context(self) -> CallContext:
        return CallContext(
            store=self.store,
            logs=ListedLogs(),
            site=SITE,
            identity_arn="",
            now_s=self.clock(),
            request_id="r",
            is_strict=self.is_strict,
        )

    def config(self, name: str = "ep", **variant: Any) -> None:
        production = {"VariantName": "v", "InstanceType": TYPE, "InitialInstanceCount": 1, **variant}
        params = {"EndpointConfigName": name, "ExecutionRoleArn": ROLE, "ProductionVariants": [production]}
        create_endpoint_config(self.context, params)

    async def host(self, **variant: Any) -> None:
        self.config(**variant)
        create_endpoint(self.context, {"EndpointName": "ep", "EndpointConfigName": "ep"})
        await self.settle(1)

    def create(self, name: str, *, copies: int = 1, model: str = "m", **more: Any) -> None:
        specification = {"ModelName": model, "ComputeResourceRequirements": NEED}
        params: dict[str, Any] = {"Specification": specification} if "Specifications" not in more else {}
        params |= {"InferenceComponentName": name, "EndpointName": "ep", "RuntimeConfig": {"CopyCount": copies}}
        create_inference_component(self.context, {**params, **more})

    def update(self, name: str, model: str, **deployment: Any) -> None:
        params = {
            "InferenceComponentName": name,
            "Specification": {"ModelName": model, "ComputeResourceRequirements": NEED},
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": 0,
                },
                **deployment,
            },
        }
        update_inference_component(self.context, params)

    def scale(self, name: str, copies: int) -> None:
        params = {"InferenceComponentName": name, "DesiredRuntimeConfig": {"CopyCount": copies}}
        update_runtime_config(self.context, params)

    def delete(self, name: str) -> None:
        delete_inference_component(self.context, {"InferenceComponentName": name})

    def seen(self, name: str) -> dict[str, Any]:
        return describe_inference_component(self.context, {"InferenceComponentName": name})

    def status(self, name: str) -> tuple[str, int]:
        found = self.seen(name)
        return found["InferenceComponentStatus"], found["RuntimeConfig"]["CurrentCopyCount"]

    def num_instances(self) -> int:
        (variant,) = describe_endpoint(self.context, {"EndpointName": "ep"})["ProductionVariants"]
        return int(variant["CurrentInstanceCount"])

    def record(self, name: str) -> Record:
        found = self.store.get(Kind.INFERENCE_COMPONENT, name)
        assert found is not None
        return found

    def copies(self) -> Counter[str]:
        """Component -> copies that are routed to."""
        route = self.store.get(Kind.ROUTE, "ep")
        assert route is not None
        routed = route_from_json(route.spec).components
        return Counter({one.name: sum(len(fleet.replicas) for fleet in one.route.fleets) for one in routed})

    async def settle(self, seconds: float = 15.0, *, pause_s: float = 0.5) -> None:
        """Passes, and time between them."""
        for _ in range(int(seconds / pause_s)):
            self.clock.advance(pause_s)
            await self.reconciler.pass_once()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {**spec, "version": "none"},
        lambda spec: {**spec, "version": {**spec["version"], "config": {}}},
        lambda spec: {name: value for name, value in spec.items() if name != "asked"},
        lambda spec: {**spec, "request": None},
        lambda spec: {**spec, "version": {**spec["version"], "deployment": ["Alarms"]}},
    ],
)
async def test_a_component_that_cannot_be_read_hurts_only_itself(scene: Scene, change: Any) -> None:
    await scene.host()
    scene.create("sound")
    scene.create("broken", copies=2)
    await scene.settle()
    record = scene.record("broken")
    scene.store.update(record, spec=change(record.spec))
    await scene.settle(5)
    assert scene.copies() == {"sound": 1}
    scene.scale("sound", 2)
    await scene.settle()
    assert scene.status("sound") == ("InService", 2)
    with pytest.raises(AwsError, match="cannot be read"):
        scene.scale("broken", 1)
    found = scene.seen("broken")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "Delete the component, and create it again." in found["FailureReason"]
    listed = list_inference_components(scene.context, {"SortBy": "Name", "SortOrder": "Ascending"})
    assert [one["InferenceComponentStatus"] for one in listed["InferenceComponents"]] == ["Failed", "InService"]
    scene.create("too-many")
    await scene.settle()
    assert "hold 4 copies" in scene.seen("too-many")["FailureReason"], "its copies take their room"
    scene.delete("broken")
    scene.delete("too-many")
    assert scene.seen("broken")["InferenceComponentStatus"] == "Deleting"
    await scene.settle()
    scene.create("broken")
    await scene.settle()
    assert scene.copies() == {"broken": 1, "sound": 2}
    assert len(list(scene.machine.living())) == 3


async def test_a_status_that_cannot_be_read_hurts_only_its_component(scene: Scene) -> None:
    await scene.host()
    scene.create("sound")
    scene.create("broken")
    await scene.settle()
    record = scene.record("broken")
    progress = {**record.status["progress"], "stable": 77}
    scene.store.update(record, status={**record.status, "progress": progress})
    await scene.settle(5)
    scene.scale("sound", 2)
    await scene.settle()
    assert scene.status("sound") == ("InService", 2)
    assert "77 is not a version" in scene.seen("broken")["FailureReason"]
    shown = {one["name"]: one["status"] for one in read_overview(scene.store, "ep")["components"]}
    assert shown == {"sound": "InService", "broken": "Failed"}


async def test_a_component_without_an_endpoint_in_its_record_can_be_deleted(scene: Scene) -> None:
    await scene.host()
    scene.create("broken")
    await scene.settle()
    spec = scene.record("broken").spec
    scene.store.update(scene.record("broken"), spec={name: spec[name] for name in ("asked", "version", "request")})
    await scene.settle(5)
    assert scene.seen("broken")["EndpointName"] == ""
    scene.delete("broken")
    await scene.settle()
    assert scene.store.get(Kind.INFERENCE_COMPONENT, "broken") is None
    assert not list(scene.machine.living())


async def test_nothing_is_written_for_one_that_cannot_be_read(scene: Scene) -> None:
    await scene.host()
    scene.create("broken")
    await scene.settle()
    scene.store.update(scene.record("broken"), spec={**scene.record("broken").spec, "version": {}})
    await scene.settle(5)
    before = scene.store.revision()
    await scene.settle()
    assert scene.store.revision() == before


async def test_an_empty_instance_goes_after_its_cooldown(scene: Scene) -> None:
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


async def test_copies_move_together_under_consolidation(scene: Scene) -> None:
    await scene.host(**managed())
    for name in ("a", "b"):
        scene.create(name, copies=4)
    await scene.settle()
    for name in ("a", "b"):
        scene.scale(name, 2)
    await scene.settle(280, pause_s=5)
    assert scene.num_instances() == 2
    for _ in range(80):
        await scene.settle(1)
        assert scene.status("a")[1] >= 2
        assert scene.status("b")[1] >= 2
    assert scene.num_instances() == 1
    assert scene.copies() == {"a": 2, "b": 2}
    assert len(list(scene.machine.living())) == 4
    before = scene.store.revision()
    await scene.settle(600, pause_s=5)
    assert scene.store.revision() == before


async def test_an_alarm_takes_the_update_of_a_component_back(scene: Scene) -> None:
    alarm = scene.store.create(Kind.ALARM, "errors", spec={"AlarmName": "errors"}, status={"state": "OK"})
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
    scene.store.update(alarm, status={"state": "ALARM"})
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
        (("ml.g5.xlarge",), "No one of Specifications is for ml.p3.8xlarge"),
    ],
)
async def test_specifications_that_are_not_clear_are_refused(
    scene: Scene, kinds: tuple[str | None, ...], message: str
) -> None:
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


async def test_components_stay_as_they_are_when_the_update_of_their_host_is_taken_back(scene: Scene) -> None:
    alarm = scene.store.create(Kind.ALARM, "errors", spec={"AlarmName": "errors"}, status={"state": "OK"})
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
    scene.store.update(alarm, status={"state": "ALARM"})
    await scene.settle()
    found = describe_endpoint(scene.context, {"EndpointName": "ep"})
    assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", "ep")
    assert (scene.num_instances(), scene.copies()) == (1, {"c": 4})
    assert set(before) <= set(scene.machine.workers)


async def test_deletions_that_meet_leave_nothing(scene: Scene) -> None:
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
    endpoint = scene.store.get(Kind.ENDPOINT, "ep")
    assert endpoint is not None
    scene.store.update(endpoint, is_deleting=True)  # as by somebody who read it before `b` was made
    await scene.settle(40)
    assert [scene.store.list(kind) for kind in (Kind.ENDPOINT, Kind.INFERENCE_COMPONENT, Kind.WORKER)] == [[], [], []]
    assert not scene.machine.workers


async def test_strict_lets_nobody_delete_what_is_under_way() -> None:
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
        assert scene.store.list(Kind.INFERENCE_COMPONENT) == []
    finally:
        scene.store.close()
