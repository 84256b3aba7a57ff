"""Copies without room on any instance: those that fit serve, the others start when there is room."""

import io

import pytest

from headrace.core.telemetry import setup_logging
from headrace.platform.autoscaling.planning.targets import COMPONENT_DIMENSION, TargetKey
from headrace.platform.autoscaling.records.capacity import read_capacity
from headrace.platform.control.api.components import update_inference_component
from headrace.platform.control.api.endpoints import update_endpoint, update_weights
from headrace.platform.control.loops.timing import WATCH_PAUSE_S
from headrace.platform.control.model.workload import HEALTH_TIMEOUT_S, State
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import NEED, Scene
from tests.platform.control.planning.host_world import HostWorld, component_config, managed
from tests.platform.control.planning.world import BROKEN, Behaviour


def counts(scene: Scene, name: str) -> tuple[str, int, int]:
    """State, desired and current copies."""
    found = scene.seen(name)
    config = found["RuntimeConfig"]
    return found["InferenceComponentStatus"], config["DesiredCopyCount"], config["CurrentCopyCount"]


async def short(scene: Scene) -> None:
    """`c` has three copies of five, `other` one, on four places."""
    await scene.host()
    scene.create("c")
    scene.create("other")
    await scene.settle()
    scene.scale("c", 5)
    await scene.settle()


async def test_the_copies_that_fit_serve_and_the_others_start_when_there_is_room(scene: Scene) -> None:
    await short(scene)
    assert counts(scene, "c") == ("InService", 5, 3)
    reason = scene.seen("c")["FailureReason"]
    assert reason.startswith("There is not enough hardware resources")
    assert reason.endswith("2 of 5 copies are missing; they start when there is room for them.")
    scene.delete("other")
    await scene.settle(40)
    assert counts(scene, "c") == ("InService", 5, 4)
    assert "1 of 5 copies are missing" in scene.seen("c")["FailureReason"]
    scene.config("larger", InitialInstanceCount=2)
    update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "larger"})
    await scene.settle(20)
    assert counts(scene, "c") == ("InService", 5, 5)
    assert "FailureReason" not in scene.seen("c")


async def test_a_component_with_unplaced_copies_causes_no_work(scene: Scene) -> None:
    await short(scene)
    await scene.settle(5)
    before = scene.store.revision()
    await scene.settle(300, pause_s=5)
    assert scene.store.revision() == before
    assert await scene.reconciler.pass_once() >= WATCH_PAUSE_S


async def test_more_instances_start_the_unplaced_copies(scene: Scene) -> None:
    await scene.host(**managed(most=1))
    scene.create("c")
    await scene.settle()
    scene.scale("c", 6)
    await scene.settle()
    assert counts(scene, "c") == ("InService", 6, 4)
    scene.config("larger", **managed(most=3))
    update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "larger"})
    await scene.settle(20)
    assert counts(scene, "c") == ("InService", 6, 6)
    assert scene.num_instances() == 2


async def test_a_component_at_zero_wakes_when_there_is_room(scene: Scene) -> None:
    await scene.host()
    scene.create("c", copies=0)
    scene.create("other", copies=4)
    await scene.settle()
    scene.scale("c", 1)
    await scene.settle()
    assert counts(scene, "c") == ("InService", 1, 0)
    scene.scale("other", 3)
    await scene.settle(40)
    assert counts(scene, "c") == ("InService", 1, 1)


async def test_a_lower_count_drops_the_unplaced_copies(scene: Scene) -> None:
    await short(scene)
    scene.scale("c", 2)
    await scene.settle(40)
    assert counts(scene, "c") == ("InService", 2, 2)
    assert "FailureReason" not in scene.seen("c")
    scene.scale("other", 2)
    await scene.settle()
    assert counts(scene, "other") == ("InService", 2, 2)


async def test_an_update_rolls_out_the_copies_that_have_room(scene: Scene) -> None:
    await short(scene)
    scene.scale("other", 0)
    await scene.settle(40)
    assert counts(scene, "c") == ("InService", 5, 4)
    scene.update("c", "n")
    await scene.settle(40)
    assert "needs room for a batch" in scene.seen("c")["FailureReason"], "no spare room at all"
    assert counts(scene, "c") == ("InService", 5, 4)
    update_weights(
        scene.context,
        {"EndpointName": "ep", "DesiredWeightsAndCapacities": [{"VariantName": "v", "DesiredInstanceCount": 2}]},
    )
    await scene.settle(40)
    assert counts(scene, "c") == ("InService", 5, 5)


def test_room_that_an_update_frees_is_taken_only_after_it() -> None:
    """Else it could not be taken back."""
    world = HostWorld(variant={}, count=2)
    large = world.add("large", 2, gpus=3)
    lacking = world.add("lacking", 0, gpus=2)
    world.settle()
    world.scale("lacking", 1)
    world.settle()
    assert lacking.state is State.IN_SERVICE
    size = {"Type": "COPY_COUNT", "Value": 1}
    rolling = {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 60}}
    large.update(component_config(1, count=2), deployment=rolling)
    world.settle(100)
    assert large.state is State.UPDATING
    assert world.serving("lacking") == 0
    large.alarm = "An alarm."
    world.settle(60)
    assert (large.state, large.reason, world.serving("large")) == (State.IN_SERVICE, "An alarm.", 2)
    large.alarm = ""
    large.update(component_config(1, count=2), deployment=rolling)
    world.settle(200)
    assert (world.serving("large"), world.serving("lacking")) == (2, 1)


def test_a_crashed_copy_is_replaced_on_its_instance() -> None:
    world = HostWorld(variant={})
    world.add("a", 1)
    other = world.add("b", 3)
    world.settle()
    world.scale("a", 3)
    world.settle()
    assert (world.serving("a"), world.serving("b")) == (1, 3)
    for _ in range(4):  # the later ones are waited for before they start again
        other.crash(next(worker.name for worker in other.wanted()))
        world.settle(20)
    world.settle(60)
    assert (world.serving("a"), world.serving("b")) == (1, 3)


def test_unplaced_copies_that_crash_when_they_start_are_rolled_back() -> None:
    world = HostWorld(variant={})
    lacking = world.add("a", 0, behaviour=BROKEN)
    world.add("b", 4)
    world.settle()
    world.scale("a", 2)
    world.settle()
    assert lacking.state is State.IN_SERVICE
    world.scale("b", 2)
    world.settle(60)
    assert lacking.state is State.IN_SERVICE
    assert "The model is broken." in lacking.reason
    made = lacking.num_made
    world.settle(120)
    assert lacking.num_made == made


async def test_unplaced_copies_are_no_capacity_for_the_autoscaler(scene: Scene) -> None:
    await scene.host()
    scene.create("c")
    await scene.settle()
    scene.scale("c", 5)
    key = TargetKey(resource_id="inference-component/c", dimension=COMPONENT_DIMENSION, component="c")
    told = set()
    for _ in range(16):
        await scene.settle(0.5)
        capacity = read_capacity(scene.store, key)
        assert capacity is not None
        told.add((capacity.desired, capacity.is_scalable, bool(capacity.failure) and capacity.is_scalable))
    assert told == {(5, False, False), (4, True, True)}


async def test_an_update_keeps_the_described_number_of_copies(scene: Scene) -> None:
    await scene.host()
    scene.create("c", copies=0, model="bad")
    await scene.settle()
    scene.scale("c", 1)
    await scene.settle(20)
    assert counts(scene, "c") == ("InService", 1, 0)
    assert "It is bad." in scene.seen("c")["FailureReason"]
    params = {"Specification": {"ModelName": "n", "ComputeResourceRequirements": NEED}}
    update_inference_component(scene.context, {"InferenceComponentName": "c", **params})
    await scene.settle()
    assert counts(scene, "c") == ("InService", 1, 1)


async def test_a_change_without_room_is_logged_once(scene: Scene) -> None:
    await scene.host()
    scene.create("c", copies=4)
    await scene.settle()
    log = io.StringIO()
    setup_logging(format="json", stream=log)
    scene.scale("c", 5)
    await scene.settle(20)
    lines = [line for line in log.getvalue().splitlines() if "not enough hardware" in line]
    assert len(lines) == 1
    assert "component.changed" in lines[0]


@pytest.mark.parametrize("is_strict", [False, True])
async def test_a_crashing_component_can_be_deleted_except_in_strict_mode(*, is_strict: bool) -> None:
    scene = Scene(is_strict=is_strict)
    try:
        await scene.host()
        scene.create("c")
        await scene.settle()
        scene.update("c", "bad")
        await scene.reconciler.pass_once()
        with pytest.raises(AwsError, match="Cannot update in-progress"):
            scene.update("c", "n")
        if is_strict:
            with pytest.raises(AwsError, match="Cannot delete in-progress"):
                scene.delete("c")
            await scene.settle(5)  # as on AWS; it has given up by then
        scene.delete("c")
        await scene.settle(60)
        with pytest.raises(AwsError, match="Could not find"):
            scene.seen("c")
    finally:
        scene.store.close()


@pytest.mark.parametrize("is_woken", [False, True])
@pytest.mark.parametrize("crash_s", [30.0, None])
def test_a_component_that_does_not_start_can_be_updated_after_its_deadline(
    crash_s: float | None, *, is_woken: bool
) -> None:
    """The second crash, or the time for the health check, ends an update; a new request is accepted then."""
    world = HostWorld(variant={})
    slow = Behaviour(ready_s=None, crash_s=crash_s)
    told = world.add("c", 0, behaviour=slow) if is_woken else world.add("c", 1)
    world.settle(10)
    if is_woken:
        world.scale("c", 1)
    else:
        told.update(component_config(), slow)
    world.settle(20)
    assert told.state is State.UPDATING
    bound_s = 2 * crash_s if crash_s is not None else HEALTH_TIMEOUT_S
    world.settle(bound_s - 10, pause_s=1)
    assert told.state is State.IN_SERVICE
    assert told.reason
    told.update(component_config())
    world.settle(60)
    assert (told.state, told.reason, world.serving("c")) == (State.IN_SERVICE, "", 1)
