"""
What to do for one endpoint now. Pure: its record, its workers and the time give actions, a route and a new progress.

Called by the reconciler once a pass, with what is true and not with what has happened: after any crash, of a worker or
of the platform, the next pass decides anew. Actions are such that doing one twice, or half, does no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cluster.launcher import WorkerPhase
from headrace.control.model.fleet import (
    FleetKey,
    Limits,
    WorkerView,
    backoff_delay_s,
    overdue_reason,
    restart_at_s,
    surplus,
)
from headrace.control.model.progress import EndpointView, State
from headrace.control.planning.rollout import (
    NOTHING,
    Deployment,
    Outside,
    advance,
    is_rolling_back,
    take_up,
    wanted_workers,
)
from headrace.control.planning.routes import plan_route
from headrace.state.routes import Route

STANDBY_S = 10.0
"""A crashed worker whose replacement starts within so long is waited for; else requests fail at once."""
_MAX_COUNTED = 30
"""Failed workers of one fleet whose records are kept to count by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Make a worker of a fleet."""

    variant: str
    generation: int
    instance: str = ""
    """Where a copy of a component is placed; empty: it is an instance of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the process of a worker that has a record only: the platform ended between the two."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Give a worker no more requests; it will be stopped."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Count a worker as failed, and drain it."""

    worker: str
    why: str
    """A few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a worker's process."""

    worker: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Remove the record, the folder and the log of a worker that has ended."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEndpoint:
    """Nothing is left of the endpoint, or of the component: the name is free."""


Action = Start | Launch | Drain | GiveUp | Stop | Forget | RemoveEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """In this order: publish the route, record the progress, act."""

    deployment: Deployment | None
    """None: the endpoint is being deleted, its progress is of no interest any more."""
    route: Route | None
    """None: there shall be none."""
    actions: tuple[Action, ...]


def plan_endpoint(
    view: EndpointView,
    workers: Sequence[WorkerView],
    *,
    endpoint_arn: str,
    now_s: float,
    limits: Limits,
    outside: Outside = NOTHING,
) -> Plan:
    """
    Decide about one endpoint, or one inference component.

    Args:
        view: its record.
        workers: all of its workers, dead ones included.
        endpoint_arn: for the route.
        now_s: seconds since 1970.
        limits: how patient to be.
        outside: what else speaks against what is being deployed.
    """
    if view.deleting_s is not None:
        return plan_removal(view.deleting_s, workers, now_s=now_s, limits=limits)
    deployment = advance(take_up(view, now_s), workers, now_s=now_s, limits=limits, outside=outside)
    given_up = _give_up(deployment, workers, now_s, limits)
    released = _release(deployment, workers, {action.worker for action in given_up})
    leaving = {action.worker for action in given_up} | {action.worker for action in released}
    staying = [worker for worker in workers if worker.name not in leaving]
    actions = (
        *given_up,
        *released,
        *_fill(deployment, staying, now_s, limits),
        *_put_away([worker for worker in workers if not worker.is_wanted], now_s, limits),
        *_clear_logs(deployment, workers, now_s, limits),
    )
    starting = {action.variant for action in actions if isinstance(action, Start)}
    starting |= _restarting(deployment, staying, now_s, limits)
    route = plan_route(view, deployment, staying, endpoint_arn=endpoint_arn, starting=starting)
    return Plan(deployment=deployment, route=route, actions=actions)


def plan_orphans(workers: Sequence[WorkerView], *, now_s: float, limits: Limits) -> tuple[Action, ...]:
    """What to do with workers whose endpoint is gone."""
    return tuple(_wind_up(workers, now_s, limits))


def plan_removal(deleting_s: float, workers: Sequence[WorkerView], *, now_s: float, limits: Limits) -> Plan:
    """Delete an endpoint; a worker that does not end in time, or cannot be seen, does not hold it up."""
    return Plan(deployment=None, route=None, actions=_dismantle(deleting_s, workers, now_s, limits))


def _dismantle(deleting_s: float, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> tuple[Action, ...]:
    if not workers:
        return (RemoveEndpoint(),)
    if limits.waited_s(deleting_s, now_s) > limits.stop_bound_s:
        stops = (Stop(worker=worker.name, grace_s=0.0) for worker in workers if not worker.is_gone)
        return (*stops, *(Forget(worker=worker.name) for worker in workers), RemoveEndpoint())
    actions = _wind_up(workers, now_s, limits)
    is_last = sum(isinstance(action, Forget) for action in actions) == len(workers)
    return (*actions, RemoveEndpoint()) if is_last else tuple(actions)


def _wind_up(workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[Action]:
    """Bring all of these workers to their end, and forget them."""
    drains = [Drain(worker=worker.name) for worker in workers if worker.is_wanted]
    gone = [Forget(worker=worker.name) for worker in workers if worker.is_gone and worker.failed_s is not None]
    leaving = [worker for worker in workers if not worker.is_wanted]
    return [*drains, *_put_away(leaving, now_s, limits, is_hasty=True), *gone]


def _give_up(deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[GiveUp]:
    """Workers that have passed a time limit."""
    actions = []
    for worker in workers:
        version = deployment.versions.get(worker.generation)
        variant = version.variant(worker.variant) if version is not None else None
        if variant is None or not worker.is_wanted:
            continue
        why = overdue_reason(
            worker,
            download_s=variant.download_timeout_s,
            health_s=variant.health_timeout_s,
            now_s=now_s,
            limits=limits,
        )
        if why:
            actions.append(GiveUp(worker=worker.name, why=why))
    return actions


def _release(deployment: Deployment, workers: Sequence[WorkerView], given_up: set[str]) -> list[Drain]:
    """Workers that are more than wanted."""
    wanted = wanted_workers(deployment)
    drains: list[Drain] = []
    for fleet in sorted({worker.fleet for worker in workers}):
        alive = [one for one in workers if one.fleet == fleet and one.is_wanted and one.name not in given_up]
        drains.extend(Drain(worker=worker.name) for worker in surplus(alive, wanted.get(fleet, 0)))
    return drains


def _fill(deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[Start | Launch]:
    """Workers that are missing, and those whose process is."""
    actions: list[Start | Launch] = [
        Launch(worker=worker.name) for worker in workers if worker.is_wanted and worker.phase is None
    ]
    for fleet, count in sorted(wanted_workers(deployment).items()):
        if is_rolling_back(deployment) and fleet[1] == deployment.progress.target:
            continue
        missing = count - sum(one.is_wanted and not one.is_leaving for one in workers if one.fleet == fleet)
        if missing > 0 and now_s >= restart_at_s(workers, fleet, now_s=now_s, limits=limits):
            actions.extend([Start(variant=fleet[0], generation=fleet[1])] * missing)
    return actions


def _restarting(deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> set[str]:
    """Variants whose next worker may start so soon that requests wait for it."""
    return {
        variant
        for (variant, generation), count in wanted_workers(deployment).items()
        if count and restart_at_s(workers, (variant, generation), now_s=now_s, limits=limits) - now_s <= STANDBY_S
    }


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
    """Whether a worker may be told to stop; one that failed, or whose endpoint is deleted, is not waited for long."""
    if worker.ready_s is None:
        return True
    is_waited_for = worker.num_requests > 0 and worker.failed_s is None and not is_hasty
    return now_s - (worker.draining_s or now_s) >= (limits.max_drain_s if is_waited_for else limits.drain_s)


def _clear_logs(deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits) -> list[Forget]:
    """Forget failed workers but the newest few, and those that the delay of the next start is counted by."""
    failed = sorted(
        (worker for worker in workers if worker.is_gone and worker.failed_s is not None),
        key=lambda worker: (worker.failed_s or 0.0, worker.name),
        reverse=True,
    )
    counting = _counting_failures(deployment, failed, now_s, limits)
    kept = {worker.name for worker in failed[: limits.num_kept_logs]} | counting
    return [Forget(worker=worker.name) for worker in failed if worker.name not in kept]


def _counting_failures(deployment: Deployment, failed: Sequence[WorkerView], now_s: float, limits: Limits) -> set[str]:
    """The newest failures of each fleet that is wanted, as many as it takes to reach the longest delay."""
    enough = 2
    while enough < _MAX_COUNTED and backoff_delay_s(enough, limits) < limits.max_backoff_s:
        enough += 1
    counting: set[str] = set()
    fleets: set[FleetKey] = set(wanted_workers(deployment))
    for fleet in fleets:
        recent = [one for one in failed if one.fleet == fleet and now_s - (one.failed_s or 0.0) < limits.crash_window_s]
        counting |= {worker.name for worker in recent[:enough]}
    return counting


def is_settled(plan: Plan, workers: Sequence[WorkerView]) -> bool:
    """Whether nothing is under way: the next look may come later."""
    if plan.deployment is None or plan.actions:
        return False
    is_calm = plan.deployment.progress.state in (State.IN_SERVICE, State.FAILED, State.UPDATE_ROLLBACK_FAILED)
    return is_calm and all(worker.phase in (WorkerPhase.READY, WorkerPhase.EXITED) for worker in workers)
