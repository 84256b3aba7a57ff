"""Decisions on single workers: who is drained, stopped, forgotten and given up, and when the next one starts."""

from typing import Any

import pytest

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import EndpointRevision
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import Progress, State, Workload
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.worker_actions import (
    Drain,
    Forget,
    GiveUp,
    Launch,
    Start,
    Stop,
    WorkerPlan,
    backoff_delay_s,
    end_workers,
    overdue_reason,
    plan_workers,
    restart_at_s,
    surplus,
)
from tests.platform.control.planning.world import config, pass_context

FLEET = ("a", 1)
NOW_S = 10_000.0


def worker(name: str = "w", phase: WorkerPhase | None = WorkerPhase.READY, **members: Any) -> WorkerView:
    """Return a worker that is ready since long ago."""
    ready = {"ready_s": 10.0} if phase is WorkerPhase.READY else {}
    return WorkerView(
        **{"name": name, "variant": "a", "revision": 1, "created_s": 0.0, "phase": phase, **ready, **members}
    )


def crashed(name: str, failed_s: float, **members: Any) -> WorkerView:
    return worker(name, WorkerPhase.EXITED, failed_s=failed_s, **members)


def planned(workers: list[WorkerView], count: int = 1, limits: ReconcilerConfig | None = None) -> WorkerPlan:
    """Plan an endpoint in service whose variant `a` needs so many workers."""
    revision = EndpointRevision(number=1, config=config(a=count), models={"m": {}})
    progress = Progress(observed_generation=1, state=State.IN_SERVICE, since_s=0.0, stable=1)
    return plan_workers(Deployment(progress=progress, revisions={1: revision}), workers, pass_context(NOW_S, limits))


@pytest.mark.parametrize(
    ("workers", "wanted", "drained"),
    [
        # Those that do not serve go first, then the newest.
        ([worker("old"), worker("new", created_s=5.0)], 1, ["new"]),
        ([worker("old", WorkerPhase.STARTING), worker("new", created_s=5.0)], 1, ["old"]),
        ([worker("a"), worker("b"), worker("c")], 1, ["a", "b"]),
        ([worker("a")], 2, []),
        # One that is leaving goes once enough others serve, or at once if it does not serve itself.
        ([worker("stays"), worker("leaves", is_leaving=True)], 1, ["leaves"]),
        ([worker("stays"), worker("leaves", is_leaving=True)], 2, []),
        ([worker("stays", WorkerPhase.STARTING), worker("leaves", is_leaving=True)], 1, []),
        ([worker("stays"), worker("b", is_leaving=True), worker("a", is_leaving=True)], 2, ["a"]),
        ([worker("stays"), worker("leaves", WorkerPhase.STARTING, is_leaving=True)], 2, ["leaves"]),
        ([worker("x", is_leaving=True), worker("y", WorkerPhase.STARTING, is_leaving=True)], 1, ["y"]),
        # A worker that is drained in this pass does not count as serving.
        ([worker("a"), worker("b"), worker("leaves", is_leaving=True)], 1, ["a", "leaves"]),
    ],
)
def test_workers_beyond_the_wanted_number_are_drained(
    workers: list[WorkerView], wanted: int, drained: list[str]
) -> None:
    assert [worker.name for worker in surplus(workers, wanted)] == drained


def test_a_missing_worker_is_started_and_one_without_a_process_launched() -> None:
    assert planned([]).actions == (Start(fleet=FLEET),)
    assert planned([worker("a")], count=3).actions == (Start(fleet=FLEET),) * 2
    assert planned([worker("a", None, phase_since_s=NOW_S)]).actions == (Launch(worker="a"),)
    assert planned([worker("a"), worker("b")]).actions == (Drain(worker="a"),)
    leaving = planned([worker("a", is_leaving=True)])
    assert leaving.actions == (Start(fleet=FLEET),)
    assert [worker.name for worker in leaving.staying] == ["a"]


def test_a_worker_that_is_given_up_is_neither_drained_as_surplus_nor_counted_as_present() -> None:
    hung = worker("hung", WorkerPhase.UNHEALTHY, phase_since_s=NOW_S - 31)
    plan = planned([hung, worker("good")])
    assert plan.actions == (GiveUp(worker="hung", why="it stopped answering health checks 30 s ago"),)
    assert [worker.name for worker in plan.staying] == ["good"]
    assert planned([hung]).actions[1:] == (Start(fleet=FLEET),)
    of_another_revision = worker("hung", WorkerPhase.UNHEALTHY, revision=7)
    assert planned([of_another_revision, worker("good")]).actions == (Drain(worker="hung"),)


@pytest.mark.parametrize(
    ("phase", "waited_s", "is_overdue"),
    [
        (WorkerPhase.FETCHING, 115.0, False),
        (WorkerPhase.FETCHING, 115.5, True),
        (WorkerPhase.STARTING, 200.0, False),
        (WorkerPhase.STARTING, 200.5, True),
        (WorkerPhase.UNHEALTHY, 30.0, False),
        (WorkerPhase.UNHEALTHY, 30.5, True),
        (WorkerPhase.READY, 9000.0, False),
        (None, 9000.0, False),
    ],
)
def test_each_phase_has_its_own_time_limit(phase: WorkerPhase | None, waited_s: float, *, is_overdue: bool) -> None:
    workload = Workload(
        variant="a", weight=1, count=1, model={}, instance_type="", download_timeout_s=100, health_timeout_s=200
    )
    seen = worker(phase=phase, phase_since_s=NOW_S - waited_s)
    assert bool(overdue_reason(seen, workload, pass_context(NOW_S))) == is_overdue


def test_the_delay_of_a_replacement_doubles_from_the_second_crash_to_its_maximum() -> None:
    limits = ReconcilerConfig(backoff_s=1.0, max_backoff_s=60.0)
    assert [backoff_delay_s(crashes, limits) for crashes in range(9)] == [0, 0, 1, 2, 4, 8, 16, 32, 60]
    assert backoff_delay_s(10_000, limits) == 60


@pytest.mark.parametrize(
    ("failures_s", "expected_s"),
    [
        ([], NOW_S),
        ([NOW_S - 5], NOW_S - 5),
        ([NOW_S - 5, NOW_S - 9], NOW_S - 4),
        ([NOW_S, NOW_S - 9], NOW_S + 1),
        ([NOW_S - 9, NOW_S - 8, NOW_S - 7], NOW_S - 5),
        # Crashes older than the window, and those after a clock that was set back, do not count.
        ([NOW_S - 599, NOW_S - 1], NOW_S),
        ([NOW_S - 600, NOW_S - 1], NOW_S - 1),
        ([NOW_S + 1, NOW_S - 1], NOW_S - 1),
        ([NOW_S + 1], NOW_S),
    ],
)
def test_the_next_worker_starts_a_delay_after_the_last_crash(failures_s: list[float], expected_s: float) -> None:
    workers = [crashed(f"w{index}", failed_s) for index, failed_s in enumerate(failures_s)]
    others = [worker("x"), crashed("y", NOW_S, variant="b"), crashed("z", NOW_S, revision=2)]
    assert restart_at_s([*workers, *others], FLEET, pass_context(NOW_S)) == expected_s


@pytest.mark.parametrize(("delay_s", "is_waited_for"), [(9.0, True), (10.0, True), (10.5, False), (60.0, False)])
def test_requests_wait_for_a_replacement_that_starts_within_ten_seconds(delay_s: float, *, is_waited_for: bool) -> None:
    limits = ReconcilerConfig(backoff_s=delay_s)
    plan = planned([crashed("v", NOW_S), crashed("w", NOW_S)], limits=limits)
    assert plan.actions == ()
    assert plan.starting == (frozenset({"a"}) if is_waited_for else frozenset())


def test_no_request_waits_for_a_variant_that_needs_no_worker() -> None:
    assert planned([], count=0).starting == frozenset()
    assert planned([]).starting == {"a"}


@pytest.mark.parametrize(
    ("members", "action"),
    [
        # No request: stopped once every gateway has read the route.
        ({"draining_s": NOW_S - 0.9}, None),
        ({"draining_s": NOW_S - 1.0}, Stop(worker="w", grace_s=30)),
        ({"draining_s": NOW_S - 5.0, "ready_s": None}, Stop(worker="w", grace_s=30)),
        ({"draining_s": NOW_S, "ready_s": None}, Stop(worker="w", grace_s=30)),
        # With requests in flight: when the last has ended, at the latest after the longest stream.
        ({"draining_s": NOW_S - 479, "num_requests": 1}, None),
        ({"draining_s": NOW_S - 480, "num_requests": 1}, Stop(worker="w", grace_s=30)),
        ({"draining_s": NOW_S - 1, "num_requests": 1, "failed_s": NOW_S - 1}, Stop(worker="w", grace_s=30)),
        # Killed if it does not end: after its grace, and a while for the launcher.
        ({"draining_s": 0.0, "stopping_s": NOW_S - 45}, None),
        ({"draining_s": 0.0, "stopping_s": NOW_S - 45.5}, Stop(worker="w", grace_s=0)),
        # Forgotten when it has ended, or was never started; not if it failed, for the sake of its log.
        ({"draining_s": 0.0, "phase": WorkerPhase.EXITED}, Forget(worker="w")),
        ({"draining_s": 0.0, "phase": None}, Forget(worker="w")),
        ({"phase": WorkerPhase.EXITED, "failed_s": NOW_S - 700}, None),
        ({"phase": None, "failed_s": NOW_S - 700}, None),
    ],
)
def test_a_drained_worker_is_stopped_then_killed_then_forgotten(members: dict[str, Any], action: Any) -> None:
    plan = planned([worker("stays"), worker(**members)])
    assert plan.actions == (() if action is None else (action,))


def test_a_deletion_waits_for_no_request_and_keeps_no_log() -> None:
    workers = [
        worker("serves"),
        worker("drains", draining_s=NOW_S - 2, num_requests=5),
        worker("ended", WorkerPhase.EXITED, draining_s=NOW_S - 50),
        crashed("crashed", NOW_S - 50),
        worker("failed", draining_s=NOW_S - 1, failed_s=NOW_S - 1),
    ]
    assert end_workers(workers, pass_context(NOW_S)) == [
        Drain(worker="serves"),
        Stop(worker="drains", grace_s=30),
        Forget(worker="ended"),
        Stop(worker="failed", grace_s=30),
        Forget(worker="crashed"),
    ]


def test_the_newest_logs_are_kept_and_those_that_count_for_the_delay_of_the_next_start() -> None:
    def kept(ages_s: list[float], **limits: Any) -> list[float]:
        workers = [crashed(f"{age_s:04}", NOW_S - age_s) for age_s in ages_s]
        plan = planned([worker("stays"), *workers], limits=ReconcilerConfig(**limits))
        forgotten = {action.worker for action in plan.actions if isinstance(action, Forget)}
        return [age_s for age_s, seen in zip(ages_s, workers, strict=True) if seen.name not in forgotten]

    assert kept([1, 2, 601, 602, 603]) == [1, 2, 601], "three logs"
    assert kept([1, 2, 3, 4, 5], num_kept_logs=1) == [1, 2, 3, 4, 5]
    assert kept(list(range(1, 13)), num_kept_logs=1) == list(range(1, 9)), "eight crashes reach the longest delay"
    assert kept(list(range(1, 13)), num_kept_logs=1, max_backoff_s=2.0) == [1, 2, 3]
    assert kept(list(range(1, 40)), num_kept_logs=1, max_backoff_s=1e12) == list(range(1, 31)), "no more than 30"
    assert kept([600, 601], num_kept_logs=0) == []
