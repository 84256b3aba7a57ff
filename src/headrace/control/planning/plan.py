"""
The next actions for one endpoint or component: its record, its workers and the time give actions, a route and a status.

The reconciler calls it once a pass with what is true, not with what has happened: after a crash of a worker or of the
platform the next pass decides again. Doing an action twice, or half, does no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.cluster.launcher import WorkerPhase
from headrace.control.model.worker import FleetKey, WorkerView
from headrace.control.model.workload import Deployable, Progress, State
from headrace.control.planning.fleet import Limits, backoff_delay_s, overdue_reason, restart_at_s, surplus
from headrace.control.planning.rollout import (
    NO_CONDITIONS,
    Deployment,
    ExternalConditions,
    advance,
    is_rolling_back,
    start_rollout,
    wanted_workers,
)
from headrace.control.planning.routes import plan_route
from headrace.state.routes import Route

STANDBY_S = 10.0
"""Requests wait for the replacement of a crashed worker if it starts within this time; else they fail at once."""
_MAX_COUNTED = 30
"""Failed workers of one fleet whose records are kept, to count crashes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Make a worker of a fleet."""

    fleet: FleetKey
    instance: str = ""
    """Instance that a copy of a component is placed on; empty: it is an instance of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the process of a worker that has only a record: the platform ended between the two."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Send a worker no more requests; it is stopped later."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Count a worker as failed, and drain it."""

    worker: str
    why: str
    """A few words for the log and the FailureReason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the process of a worker."""

    worker: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Remove the record, the folder and the log of a worker that has ended."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRecord:
    """Remove the record of an endpoint or a component that has nothing left."""


Action = Start | Launch | Drain | GiveUp | Stop | Forget | RemoveRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of planning. In this order: publish the route, record the progress, act."""

    deployment: Deployment | None
    """None: it is being deleted."""
    route: Route | None
    """None: it is removed."""
    actions: tuple[Action, ...]


def plan_deployable(
    record: Deployable,
    workers: Sequence[WorkerView],
    *,
    endpoint_arn: str,
    now_s: float,
    limits: Limits,
    conditions: ExternalConditions = NO_CONDITIONS,
) -> Plan:
    """
    Plan one endpoint, or one inference component.

    Args:
        record: of the endpoint or the component.
        workers: all of its workers, dead ones included.
        endpoint_arn: for the route.
        now_s: seconds since 1970.
        limits: time limits.
        conditions: what else speaks against the deployment.
    """
    if record.deleting_s is not None:
        return plan_removal(record.deleting_s, workers, now_s=now_s, limits=limits)
    deployment = advance(start_rollout(record, now_s), workers, now_s=now_s, limits=limits, conditions=conditions)
    wanted = wanted_workers(deployment)
    given_up = _give_up(deployment, workers, now_s, limits)
    released = _release(wanted, workers, {action.worker for action in given_up})
    leaving = {action.worker for action in given_up} | {action.worker for action in released}
    staying = [worker for worker in workers if worker.name not in leaving]
    restarts_s = {fleet: restart_at_s(staying, fleet, now_s=now_s, limits=limits) for fleet in wanted}
    started = _start(deployment, wanted, staying, restarts_s, now_s)
    actions = (
        *given_up,
        *released,
        *(Launch(worker=worker.name) for worker in staying if worker.is_wanted and worker.phase is None),
        *started,
        *_put_away([worker for worker in workers if not worker.is_wanted], now_s, limits),
        *_clear_logs(wanted, workers, now_s, limits),
    )
    starting = {action.fleet[0] for action in started}
    starting |= {fleet[0] for fleet, count in wanted.items() if count and restarts_s[fleet] - now_s <= STANDBY_S}
    route = plan_route(record, deployment, wanted, staying, endpoint_arn=endpoint_arn, starting=starting)
    return Plan(deployment=deployment, route=route, actions=actions)


def plan_orphans(workers: Sequence[WorkerView], *, now_s: float, limits: Limits) -> tuple[Action, ...]:
    """Plan the end of workers whose endpoint or component is gone."""
    return tuple(_wind_up(workers, now_s, limits))


def plan_removal(deleting_s: float, workers: Sequence[WorkerView], *, now_s: float, limits: Limits) -> Plan:
    """Plan a deletion; a worker that does not end in time, or cannot be reached, does not delay it for longer."""
    return Plan(deployment=None, route=None, actions=_dismantle(deleting_s, workers, now_s, limits))


def _dismantle(deleting_s: float, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> tuple[Action, ...]:
    if not workers:
        return (RemoveRecord(),)
    if limits.waited_s(deleting_s, now_s) > limits.stop_bound_s:
        stops = (Stop(worker=worker.name, grace_s=0.0) for worker in workers if not worker.is_gone)
        return (*stops, *(Forget(worker=worker.name) for worker in workers), RemoveRecord())
    actions = _wind_up(workers, now_s, limits)
    is_last = sum(isinstance(action, Forget) for action in actions) == len(workers)
    return (*actions, RemoveRecord()) if is_last else tuple(actions)


def _wind_up(workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[Action]:
    """Drain and stop all of these workers, and forget them."""
    drains = [Drain(worker=worker.name) for worker in workers if worker.is_wanted]
    gone = [Forget(worker=worker.name) for worker in workers if worker.is_gone and worker.failed_s is not None]
    leaving = [worker for worker in workers if not worker.is_wanted]
    return [*drains, *_put_away(leaving, now_s, limits, is_hasty=True), *gone]


def _give_up(deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[GiveUp]:
    """Give up workers that have passed a time limit."""
    actions = []
    for worker in workers:
        revision = deployment.revisions.get(worker.revision)
        workload = revision.workload(worker.variant) if revision is not None else None
        if workload is None or not worker.is_wanted:
            continue
        why = overdue_reason(
            worker,
            download_s=workload.download_timeout_s,
            health_s=workload.health_timeout_s,
            now_s=now_s,
            limits=limits,
        )
        if why:
            actions.append(GiveUp(worker=worker.name, why=why))
    return actions


def _release(wanted: Mapping[FleetKey, int], workers: Sequence[WorkerView], given_up: set[str]) -> list[Drain]:
    """Drain workers that are more than wanted."""
    drains: list[Drain] = []
    for fleet in sorted({worker.fleet for worker in workers}):
        alive = [
            worker for worker in workers if worker.fleet == fleet and worker.is_wanted and worker.name not in given_up
        ]
        drains.extend(Drain(worker=worker.name) for worker in surplus(alive, wanted.get(fleet, 0)))
    return drains


def _start(
    deployment: Deployment,
    wanted: Mapping[FleetKey, int],
    workers: Sequence[WorkerView],
    restarts_s: Mapping[FleetKey, float],
    now_s: float,
) -> list[Start]:
    """Start workers that are missing; a rolling update that is taken back gets none."""
    unwanted = deployment.progress.target if is_rolling_back(deployment) else None
    starts: list[Start] = []
    for fleet, count in sorted(wanted.items()):
        missing = count - sum(worker.is_wanted and not worker.is_leaving for worker in workers if worker.fleet == fleet)
        if fleet[1] != unwanted and missing > 0 and now_s >= restarts_s[fleet]:
            starts.extend([Start(fleet=fleet)] * missing)
    return starts


def _put_away(
    workers: Sequence[WorkerView], now_s: float, limits: Limits, *, is_hasty: bool = False
) -> list[Stop | Forget]:
    """Stop draining workers once their requests have had time, and forget those that have ended as they should."""
    actions: list[Stop | Forget] = []
    for worker in workers:
        if worker.is_gone or worker.phase is None:
            if worker.failed_s is None:
                actions.append(Forget(worker=worker.name))
        elif worker.stopping_s is None:
            if _is_drained(worker, now_s, limits, is_hasty=is_hasty):
                actions.append(Stop(worker=worker.name, grace_s=limits.stop_grace_s))
        elif now_s - worker.stopping_s > limits.stop_grace_s + limits.slack_s / 4:
            actions.append(Stop(worker=worker.name, grace_s=0.0))
    return actions


def _is_drained(worker: WorkerView, now_s: float, limits: Limits, *, is_hasty: bool) -> bool:
    """Return whether a worker may be stopped; requests of one that failed, or is being deleted, get no extra time."""
    if worker.ready_s is None:
        return True
    is_waited_for = worker.num_requests > 0 and worker.failed_s is None and not is_hasty
    return now_s - (worker.draining_s or now_s) >= (limits.max_drain_s if is_waited_for else limits.drain_s)


def _clear_logs(
    wanted: Mapping[FleetKey, int], workers: Sequence[WorkerView], now_s: float, limits: Limits
) -> list[Forget]:
    """Forget failed workers, except the newest few and those by which the delay of the next start is computed."""
    failed = sorted(
        (worker for worker in workers if worker.is_gone and worker.failed_s is not None),
        key=lambda worker: (worker.failed_s or 0.0, worker.name),
        reverse=True,
    )
    counting = _counting_failures(wanted, failed, now_s, limits)
    kept = {worker.name for worker in failed[: limits.num_kept_logs]} | counting
    return [Forget(worker=worker.name) for worker in failed if worker.name not in kept]


def _counting_failures(
    wanted: Mapping[FleetKey, int], failed: Sequence[WorkerView], now_s: float, limits: Limits
) -> set[str]:
    """Return the newest failures of each wanted fleet, as many as it takes to reach the longest delay."""
    enough = 2
    while enough < _MAX_COUNTED and backoff_delay_s(enough, limits) < limits.max_backoff_s:
        enough += 1
    counting: set[str] = set()
    for fleet in wanted:
        recent = [
            worker
            for worker in failed
            if worker.fleet == fleet and now_s - (worker.failed_s or 0.0) < limits.crash_window_s
        ]
        counting |= {worker.name for worker in recent[:enough]}
    return counting


def is_settled(plan: Plan, workers: Sequence[WorkerView]) -> bool:
    """Return whether nothing is in progress, so that the next pass may come later."""
    if plan.deployment is None or plan.actions:
        return False
    progress: Progress = plan.deployment.progress
    is_calm = progress.state in (State.IN_SERVICE, State.FAILED, State.UPDATE_ROLLBACK_FAILED)
    return is_calm and all(worker.phase in (WorkerPhase.READY, WorkerPhase.EXITED) for worker in workers)
