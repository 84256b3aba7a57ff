"""A deployment in one pass: the workers and the traffic of each stage, and the transitions from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import ComponentRevision
from headrace.platform.control.model.endpoint import EndpointRevision
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import DesiredCapacity, Progress, Revision, Stage, State
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.deployment import Deployment, ExternalConditions
from headrace.platform.control.planning.rollout import advance, rollout_bound_s, traffic_fraction, wanted_workers
from tests.platform.control.planning.world import config, pass_context

BEGUN_S = 1000.0
BOUND_S = 2 * (100 + 50) + 60
"""Twice the time limits of a worker's start, and the reconciler's slack."""


def canary(percent: int = 10, **policy: Any) -> dict[str, Any]:
    size = {"Type": "CAPACITY_PERCENT", "Value": percent}
    routing = {"Type": "CANARY", "CanarySize": size, "WaitIntervalInSeconds": 30}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing, **policy}}


def rolling(batch: int, kind: str = "INSTANCE_COUNT", **policy: Any) -> dict[str, Any]:
    size = {"Type": kind, "Value": batch}
    return {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 30, **policy}}


def endpoint(number: int = 1, count: int = 1, deployment: dict[str, Any] | None = None) -> Revision:
    found = config(a=count)
    found["ProductionVariants"][0] |= {
        "ModelDataDownloadTimeoutInSeconds": 100,
        "ContainerStartupHealthCheckTimeoutInSeconds": 50,
    }
    return EndpointRevision(number=number, config=found, models={"m": {}}, deployment=deployment or {})


def component(copies: int) -> Revision:
    return ComponentRevision(number=1, variant="a", instance_type="t", specification={}, model={}, copies=copies)


def updating(count: int, deployment: dict[str, Any], *, state: State = State.UPDATING, **progress: Any) -> Deployment:
    """Return an update from revision 1 to 2, both with so many workers."""
    members = {"stable": 1, "target": 2, "since_s": BEGUN_S, "stage_since_s": BEGUN_S, **progress}
    return Deployment(
        progress=Progress(observed_generation=2, state=state, **members),
        revisions={1: endpoint(1, count), 2: endpoint(2, count, deployment)},
    )


def serving(state: State, revision: Revision, **progress: Any) -> Deployment:
    """Return a deployment whose revision serves."""
    members = {"stable": 1, "since_s": BEGUN_S, "stage_since_s": BEGUN_S, **progress}
    return Deployment(progress=Progress(observed_generation=1, state=state, **members), revisions={1: revision})


def ready(number: int, revision: int = 1) -> list[WorkerView]:
    return [worker(f"w{revision}-{index}", revision) for index in range(number)]


def worker(
    name: str, revision: int = 1, *, phase: WorkerPhase | None = WorkerPhase.READY, **members: Any
) -> WorkerView:
    return WorkerView(name=name, variant="a", revision=revision, created_s=0.0, phase=phase, **members)


def after(
    deployment: Deployment, workers: list[WorkerView], now_s: float = BEGUN_S, **conditions: Any
) -> tuple[State, Progress]:
    """Return the progress after one pass."""
    found = advance(deployment, workers, pass_context(now_s), conditions=ExternalConditions(**conditions)).progress
    return found.state, found


@pytest.mark.parametrize(
    ("state", "stage", "step", "expected"),
    [
        (State.UPDATING, Stage.PROVISIONING, 0, 0.0),
        (State.UPDATING, Stage.BAKING, 0, 0.1),
        (State.UPDATING, Stage.PROVISIONING, 1, 0.1),
        (State.UPDATING, Stage.BAKING, 1, 1.0),
        (State.UPDATING, Stage.TERMINATING, 1, 1.0),
        (State.ROLLING_BACK, Stage.PROVISIONING, 1, 0.0),
        (State.IN_SERVICE, Stage.PROVISIONING, 0, 0.0),
    ],
)
def test_the_traffic_of_each_stage_of_a_canary(state: State, stage: Stage, step: int, expected: float) -> None:
    assert traffic_fraction(updating(2, canary(), state=state, stage=stage, step=step)) == expected
    alone = Progress(observed_generation=1, state=State.CREATING, since_s=0.0, target=1)
    assert traffic_fraction(Deployment(progress=alone, revisions={1: endpoint()})) == 0.0


@given(st.integers(1, 100), st.integers(1, 100), st.data())
def test_a_rolling_update_starts_a_batch_and_stops_as_many_old_workers_as_have_been_replaced(
    count: int, batch: int, data: st.DataObject
) -> None:
    steps = updating(count, rolling(batch)).revisions[2].rollout.steps
    step = data.draw(st.integers(0, len(steps) - 1))
    replaced, begun = min(count, step * batch), min(count, (step + 1) * batch)
    for stage in (Stage.PROVISIONING, Stage.BAKING):
        update = updating(count, rolling(batch), stage=stage, step=step)
        assert wanted_workers(update) == {("a", 1): count - replaced, ("a", 2): begun}
    terminating = updating(count, rolling(batch), stage=Stage.TERMINATING, step=len(steps) - 1)
    assert wanted_workers(terminating) == {("a", 1): 0, ("a", 2): count}


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        (updating(4, canary()), {("a", 1): 4, ("a", 2): 4}),
        (updating(4, canary(), state=State.ROLLING_BACK), {("a", 1): 4}),
        (updating(4, canary(), state=State.FAILED), {}),
        (updating(4, canary(), state=State.DELETING), {}),
        (serving(State.IN_SERVICE, endpoint(count=3)), {("a", 1): 3}),
        # A rolling update is rolled back in batches, or at once; until then the new workers serve.
        (updating(4, rolling(1), state=State.ROLLING_BACK, step=2), {("a", 1): 4, ("a", 2): 2}),
        (updating(4, rolling(1), state=State.ROLLING_BACK, step=0), {("a", 1): 4, ("a", 2): 0}),
        (
            updating(
                4,
                rolling(1, RollbackMaximumBatchSize={"Type": "INSTANCE_COUNT", "Value": 1}),
                state=State.ROLLING_BACK,
                step=3,
            ),
            {("a", 1): 2, ("a", 2): 3},
        ),
    ],
)
def test_the_workers_of_each_state(deployment: Deployment, expected: dict[tuple[str, int], int]) -> None:
    assert wanted_workers(deployment) == expected


def test_a_creation_ends_when_its_workers_are_ready_or_time_is_up() -> None:
    creating = Deployment(
        progress=Progress(observed_generation=1, state=State.CREATING, since_s=BEGUN_S, target=1),
        revisions={1: endpoint(count=2)},
    )
    assert after(creating, ready(1), BEGUN_S + BOUND_S)[0] is State.CREATING
    state, progress = after(creating, ready(1), BEGUN_S + BOUND_S + 1)
    assert (state, progress.failure_reason) == (State.FAILED, "The endpoint was not ready after 361 s.")
    assert (progress.since_s, progress.stable) == (BEGUN_S + BOUND_S + 1, None)
    state, progress = after(creating, ready(2), BEGUN_S + 7)
    assert (state, progress.stable, progress.target, progress.since_s) == (State.IN_SERVICE, 1, None, BEGUN_S + 7)
    assert after(creating, ready(1), no_room="Full.")[1].failure_reason == "Full."


def test_workers_that_cannot_be_had_in_time_leave_the_count_that_served() -> None:
    fallback = {"a": DesiredCapacity(weight=1.0, count=1)}
    scaling = serving(State.UPDATING, endpoint(count=3), fallback=fallback)
    assert after(scaling, ready(2), BEGUN_S + BOUND_S)[0] is State.UPDATING
    assert after(scaling, ready(3), BEGUN_S + BOUND_S + 1)[0] is State.IN_SERVICE
    found = advance(scaling, ready(1), pass_context(BEGUN_S + BOUND_S + 1))
    assert found.progress.state is State.IN_SERVICE
    assert found.progress.failure_reason == "The workers that were asked for were not ready after 361 s."
    assert found.revisions[1].num_workers == 1
    unknown = advance(serving(State.UPDATING, endpoint(count=3)), [], pass_context(BEGUN_S + BOUND_S + 1))
    assert (unknown.progress.state, unknown.revisions[1].num_workers) == (State.ROLLING_BACK, 3)


@pytest.mark.parametrize("state", [State.UPDATING, State.IN_SERVICE])
@pytest.mark.parametrize(
    ("num_fitting", "num_unplaced", "copies", "missing"), [(0, 0, 2, 3), (1, 0, 3, 2), (9, 0, 5, 0), (1, 4, 3, 6)]
)
def test_copies_without_room_wait_and_the_others_serve(
    state: State, num_fitting: int, num_unplaced: int, copies: int, missing: int
) -> None:
    """A copy that crashes in service loses its room if another component takes it before the restart."""
    workers = [
        *ready(1),
        worker("starts", phase=WorkerPhase.STARTING),
        worker("drains", draining_s=1.0),
        worker("leaves", is_leaving=True),
        worker("other", 2),
    ]
    deployment = serving(state, component(5), num_unplaced=num_unplaced)
    conditions = ExternalConditions(no_room="Full.", num_fitting=num_fitting)
    found = advance(deployment, workers, pass_context(BEGUN_S), conditions=conditions)
    assert (found.revisions[1].num_workers, found.progress.num_unplaced) == (copies, missing)
    assert found.progress.failure_reason.startswith(f"Full. {missing} of {copies + missing} copies" if missing else "")


def test_copies_start_when_there_is_room_for_them() -> None:
    waiting = serving(State.IN_SERVICE, component(2), num_unplaced=3)
    found = advance(waiting, ready(2), pass_context(BEGUN_S + 9), conditions=ExternalConditions(growth=2))
    progress = found.progress
    assert (progress.state, progress.since_s, progress.num_unplaced) == (State.UPDATING, BEGUN_S + 9, 1)
    assert found.revisions[1].num_workers == 4
    assert progress.fallback == {"a": DesiredCapacity(weight=1.0, count=2)}
    # Without room only the reason is recorded, once.
    full = advance(waiting, ready(2), pass_context(BEGUN_S + 9), conditions=ExternalConditions(no_room="Full."))
    assert full.progress.state is State.IN_SERVICE
    assert full.progress.failure_reason.startswith("Full. 3 of 5 copies are missing")
    again = advance(full, ready(2), pass_context(BEGUN_S + 9), conditions=ExternalConditions(no_room="Fuller."))
    assert again == full
    assert advance(waiting, ready(2), pass_context(BEGUN_S + 9)) == waiting


@pytest.mark.parametrize(
    ("progress", "workers", "waited_s", "expected"),
    [
        # Provisioning until the workers are ready, then baking for the wait, then the next step.
        ({}, ready(1, 2), 10, (Stage.PROVISIONING, 0)),
        ({}, ready(2, 2), 10, (Stage.BAKING, 0)),
        ({"stage": Stage.BAKING}, ready(2, 2), 29, (Stage.BAKING, 0)),
        ({"stage": Stage.BAKING}, ready(1, 2), 31, (Stage.BAKING, 0)),
        ({"stage": Stage.BAKING}, ready(2, 2), 30, (Stage.BAKING, 1)),
        ({"stage": Stage.BAKING, "step": 1}, ready(2, 2), 30, (Stage.TERMINATING, 1)),
        ({"stage": Stage.TERMINATING, "step": 1}, ready(2, 2), 119, (Stage.TERMINATING, 1)),
        ({"stage": Stage.TERMINATING, "step": 1}, [], 119, (Stage.TERMINATING, 1)),
    ],
)
def test_an_update_walks_through_its_steps(
    progress: dict[str, Any], workers: list[WorkerView], waited_s: float, expected: tuple[Stage, int]
) -> None:
    update = updating(2, canary(TerminationWaitInSeconds=120), **progress)
    state, found = after(update, workers, BEGUN_S + waited_s)
    assert (state, found.stage, found.step) == (State.UPDATING, *expected)


def test_the_old_workers_of_an_update_are_kept_for_the_termination_wait() -> None:
    update = updating(2, canary(TerminationWaitInSeconds=120), stage=Stage.TERMINATING, step=1)
    state, progress = after(update, ready(2, 2), BEGUN_S + 120)
    assert (state, progress.stable, progress.target) == (State.IN_SERVICE, 2, None)


def test_an_alarm_counts_once_the_new_revision_has_traffic() -> None:
    assert after(updating(2, canary()), [], alarm="Errors.")[0] is State.UPDATING
    baking = updating(2, canary(), stage=Stage.BAKING)
    state, progress = after(baking, ready(1), alarm="Errors.")
    assert (state, progress.failure_reason, progress.fallback) == (State.ROLLING_BACK, "Errors.", None)
    terminating = updating(2, canary(TerminationWaitInSeconds=120), stage=Stage.TERMINATING, step=1)
    assert after(terminating, ready(1), alarm="Errors.")[0] is State.ROLLING_BACK


def failed(name: str, failed_s: float, failure: str = "Lost.", **members: Any) -> WorkerView:
    return worker(name, 2, phase=WorkerPhase.EXITED, failed_s=failed_s, failure=failure, **members)


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([failed("a", BEGUN_S)], ""),
        ([failed("a", BEGUN_S, "First."), failed("b", BEGUN_S + 1, "Second.")], "Second."),
        ([failed("b", BEGUN_S + 1, "Second."), failed("a", BEGUN_S, "First.")], "Second."),
        ([failed("a", BEGUN_S - 1), failed("b", BEGUN_S + 1)], ""),
        ([failed("a", BEGUN_S, "Broken.", is_permanent=True)], "Broken."),
        ([failed("a", BEGUN_S - 1, "Broken.", is_permanent=True)], ""),
        ([failed("b", BEGUN_S + 1, "2", is_permanent=True), failed("a", BEGUN_S, "1", is_permanent=True)], "1"),
    ],
)
def test_a_revision_is_hopeless_after_a_permanent_failure_or_two_others(workers: list[WorkerView], reason: str) -> None:
    state, progress = after(updating(2, canary()), workers, BEGUN_S + 5)
    assert (state, progress.failure_reason) == (State.ROLLING_BACK if reason else State.UPDATING, reason)


@pytest.mark.parametrize(
    ("deployment", "expected_s"),
    [
        ({}, 2 * 150 + 0 + 60),
        (canary(), 2 * 150 + 2 * 30 + 60),
        (canary(MaximumExecutionTimeoutInSeconds=700), 700),
        (rolling(25, "CAPACITY_PERCENT"), 4 * 2 * 150 + 4 * 30 + 60),
    ],
)
def test_an_update_has_the_time_that_its_starts_and_its_pauses_take(
    deployment: dict[str, Any], expected_s: float
) -> None:
    assert rollout_bound_s(endpoint(2, 4, deployment), ReconcilerConfig()) == expected_s
    update = updating(4, deployment)
    assert after(update, [], BEGUN_S + expected_s)[0] is State.UPDATING
    state, progress = after(update, [], BEGUN_S + expected_s + 1)
    assert (state, progress.failure_reason) == (
        State.ROLLING_BACK,
        f"The update was not done after {expected_s + 1:.0f} s.",
    )


def test_a_rollback_ends_with_the_old_workers_or_fails_after_their_time() -> None:
    back = updating(2, canary(), state=State.ROLLING_BACK, failure_reason="Errors.")
    assert after(back, ready(1), BEGUN_S + BOUND_S)[0] is State.ROLLING_BACK
    stuck = advance(back, ready(1), pass_context(BEGUN_S + BOUND_S + 1))
    assert (stuck.progress.state, stuck.progress.target) == (State.UPDATE_ROLLBACK_FAILED, None)
    assert list(stuck.revisions) == [1]
    state, progress = after(back, ready(2))
    assert (state, progress.stable, progress.failure_reason) == (State.IN_SERVICE, 1, "Errors.")


@pytest.mark.parametrize(
    ("stage", "step", "expected"), [(Stage.PROVISIONING, 2, 2), (Stage.BAKING, 2, 2), (Stage.TERMINATING, 3, 4)]
)
def test_a_rolling_update_is_rolled_back_from_the_workers_that_it_has_replaced(
    stage: Stage, step: int, expected: int
) -> None:
    update = updating(4, rolling(1, MaximumExecutionTimeoutInSeconds=3600), stage=stage, step=step)
    state, progress = after(update, ready(1), alarm="Errors.")
    assert (state, progress.stage, progress.step) == (State.ROLLING_BACK, Stage.PROVISIONING, expected)
    state, progress = after(update, ready(1), alarm="Errors.", no_room="Full.")
    assert (state, progress.step) == (State.ROLLING_BACK, 0), "without room for both fleets the new one goes at once"
