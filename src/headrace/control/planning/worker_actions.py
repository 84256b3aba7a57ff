"""
The actions on workers: the difference between the workers that a deployment needs and those that exist.

Actions are idempotent: executing one twice, or partly, does no harm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cluster.launcher import WorkerPhase
from headrace.control.model.worker import FleetKey, WorkerView
from headrace.control.planning.config import ReconcilerConfig
from headrace.control.planning.deployment import DesiredState

STANDBY_S = 10.0
"""Requests wait for the replacement of a crashed worker if it starts within this time; else they fail at once."""
_MAX_COUNTED = 30
"""Maximum number of failed workers of a fleet whose records are kept to count crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Create a worker for a fleet."""

    fleet: FleetKey
    instance: str = ""
    """Instance on which a component's copy is placed; empty for a worker that is an instance of its own."""


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
    """Remove the record and the folder of a worker that has ended; its log is retained."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRecord:
    """Remove the record of an endpoint or a component that has nothing left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdapter:
    """Load an adapter into a worker, in place of another version of it."""

    worker: str
    url: str
    token: str = field(default="", repr=False)
    adapter: str
    """Name of the adapter's inference component."""
    version: str
    source: str
    """Location of the artifacts."""
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadAdapter:
    """Remove an adapter from a worker."""

    worker: str
    url: str
    token: str = field(default="", repr=False)
    adapter: str


AdapterAction = LoadAdapter | UnloadAdapter
Action = Start | Launch | Drain | GiveUp | Stop | Forget | RemoveRecord | AdapterAction


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The next actions on the workers of one endpoint or component."""

    actions: tuple[Action, ...]
    staying: Sequence[WorkerView]
    """Workers that are neither given up nor released."""
    starting: frozenset[str]
    """Variants of which a worker is started now or soon."""


def plan_workers(
    desired: DesiredState, workers: Sequence[WorkerView], *, now_s: float, config: ReconcilerConfig
) -> WorkerPlan:
    """Return the actions that turn the existing workers into the desired ones."""
    given_up = _give_up(desired, workers, now_s, config)
    released = _release(desired.num_workers, workers, {action.worker for action in given_up})
    leaving = {action.worker for action in given_up} | {action.worker for action in released}
    staying = [worker for worker in workers if worker.name not in leaving]
    restarts_s = {fleet: restart_at_s(staying, fleet, now_s=now_s, config=config) for fleet in desired.num_workers}
    started = _start(desired, staying, restarts_s, now_s)
    actions = (
        *given_up,
        *released,
        *(Launch(worker=worker.name) for worker in staying if worker.is_wanted and worker.phase is None),
        *started,
        *_put_away([worker for worker in workers if not worker.is_wanted], now_s, config),
        *_clear_logs(desired.num_workers, workers, now_s, config),
    )
    soon = {fleet for fleet, count in desired.num_workers.items() if count and restarts_s[fleet] - now_s <= STANDBY_S}
    starting = frozenset(variant for variant, _ in soon | {action.fleet for action in started})
    return WorkerPlan(actions=actions, staying=staying, starting=starting)


def removal_actions(
    deleting_s: float, workers: Sequence[WorkerView], *, now_s: float, config: ReconcilerConfig
) -> tuple[Action, ...]:
    """
    Return the actions of a deletion.

    A worker that does not end in time, or cannot be reached, delays the deletion no further.
    """
    if not workers:
        return (RemoveRecord(),)
    if config.waited_s(deleting_s, now_s) > config.stop_bound_s:
        stops = (Stop(worker=worker.name, grace_s=0.0) for worker in workers if not worker.is_gone)
        return (*stops, *(Forget(worker=worker.name) for worker in workers), RemoveRecord())
    actions = end_workers(workers, now_s, config)
    is_last = sum(isinstance(action, Forget) for action in actions) == len(workers)
    return (*actions, RemoveRecord()) if is_last else tuple(actions)


def end_workers(workers: Sequence[WorkerView], now_s: float, config: ReconcilerConfig) -> list[Action]:
    """Drain and stop all of these workers, and forget them."""
    drains = [Drain(worker=worker.name) for worker in workers if worker.is_wanted]
    gone = [Forget(worker=worker.name) for worker in workers if worker.is_gone and worker.failed_s is not None]
    leaving = [worker for worker in workers if not worker.is_wanted]
    return [*drains, *_put_away(leaving, now_s, config, is_hasty=True), *gone]


def _give_up(
    desired: DesiredState, workers: Sequence[WorkerView], now_s: float, config: ReconcilerConfig
) -> list[GiveUp]:
    """Give up workers that have passed a time limit."""
    actions = []
    for worker in workers:
        workload = desired.workloads.get(worker.fleet)
        if workload is None or not worker.is_wanted:
            continue
        why = overdue_reason(
            worker,
            download_s=workload.download_timeout_s,
            health_s=workload.health_timeout_s,
            provision_s=workload.provision_timeout_s,
            now_s=now_s,
            config=config,
        )
        if why:
            actions.append(GiveUp(worker=worker.name, why=why))
    return actions


def _release(wanted: Mapping[FleetKey, int], workers: Sequence[WorkerView], given_up: set[str]) -> list[Drain]:
    """Drain the surplus workers of each fleet."""
    drains: list[Drain] = []
    for fleet in sorted({worker.fleet for worker in workers}):
        alive = [
            worker for worker in workers if worker.fleet == fleet and worker.is_wanted and worker.name not in given_up
        ]
        drains.extend(Drain(worker=worker.name) for worker in surplus(alive, wanted.get(fleet, 0)))
    return drains


def _start(
    desired: DesiredState, workers: Sequence[WorkerView], restarts_s: Mapping[FleetKey, float], now_s: float
) -> list[Start]:
    """Start workers that are missing."""
    starts: list[Start] = []
    for fleet, count in sorted(desired.num_workers.items()):
        missing = count - sum(worker.is_wanted and not worker.is_leaving for worker in workers if worker.fleet == fleet)
        if fleet[1] != desired.halted_revision and missing > 0 and now_s >= restarts_s[fleet]:
            starts.extend([Start(fleet=fleet)] * missing)
    return starts


def _put_away(
    workers: Sequence[WorkerView], now_s: float, config: ReconcilerConfig, *, is_hasty: bool = False
) -> list[Stop | Forget]:
    """Stop draining workers once their requests have had time to end, and forget those that ended normally."""
    actions: list[Stop | Forget] = []
    for worker in workers:
        if worker.is_gone or worker.phase is None:
            if worker.failed_s is None:
                actions.append(Forget(worker=worker.name))
        elif worker.stopping_s is None:
            if _is_drained(worker, now_s, config, is_hasty=is_hasty):
                actions.append(Stop(worker=worker.name, grace_s=config.stop_grace_s))
        elif config.waited_s(worker.stopping_s, now_s) > config.stop_grace_s + config.slack_s / 4:
            actions.append(Stop(worker=worker.name, grace_s=0.0))
    return actions


def _is_drained(worker: WorkerView, now_s: float, config: ReconcilerConfig, *, is_hasty: bool) -> bool:
    """Return whether a worker may be stopped; requests of one that failed, or is being deleted, get no extra time."""
    if worker.ready_s is None:
        return True
    is_waited_for = worker.num_requests > 0 and worker.failed_s is None and not is_hasty
    waited_s = config.waited_s(now_s if worker.draining_s is None else worker.draining_s, now_s)
    return waited_s >= (config.max_drain_s if is_waited_for else config.drain_s)


def _clear_logs(
    wanted: Mapping[FleetKey, int], workers: Sequence[WorkerView], now_s: float, config: ReconcilerConfig
) -> list[Forget]:
    """Forget failed workers, except the newest few and those by which the delay of the next start is computed."""
    failed = sorted(
        (worker for worker in workers if worker.is_gone and worker.failed_s is not None),
        key=lambda worker: (worker.failed_s or 0.0, worker.name),
        reverse=True,
    )
    counting = _counting_failures(wanted, failed, now_s, config)
    kept = {worker.name for worker in failed[: config.num_kept_logs]} | counting
    return [Forget(worker=worker.name) for worker in failed if worker.name not in kept]


def _counting_failures(
    wanted: Mapping[FleetKey, int], failed: Sequence[WorkerView], now_s: float, config: ReconcilerConfig
) -> set[str]:
    """Return the newest failures of each wanted fleet, as many as it takes to reach the longest delay."""
    enough = 2
    while enough < _MAX_COUNTED and backoff_delay_s(enough, config) < config.max_backoff_s:
        enough += 1
    counting: set[str] = set()
    for fleet in wanted:
        recent = [
            worker
            for worker in failed
            if worker.fleet == fleet and _is_recent(worker.failed_s or 0.0, now_s=now_s, config=config)
        ]
        counting |= {worker.name for worker in recent[:enough]}
    return counting


def restart_at_s(workers: Iterable[WorkerView], fleet: FleetKey, *, now_s: float, config: ReconcilerConfig) -> float:
    """Return when the next worker of a fleet may start: now, or after a delay that grows from its second crash on."""
    crashes = [
        worker.failed_s
        for worker in workers
        if worker.fleet == fleet
        and worker.failed_s is not None
        and _is_recent(worker.failed_s, now_s=now_s, config=config)
    ]
    return max(crashes) + backoff_delay_s(len(crashes), config) if crashes else now_s


def _is_recent(failed_s: float, *, now_s: float, config: ReconcilerConfig) -> bool:
    """Return whether a crash counts; one in the future does not: the clock has been set back since, maybe by hours."""
    return 0.0 <= now_s - failed_s < config.crash_window_s


def backoff_delay_s(num_crashes: int, config: ReconcilerConfig) -> float:
    """Return the delay before a replacement after this number of recent crashes."""
    if num_crashes <= 1:
        return 0.0
    return min(config.max_backoff_s, config.backoff_s * 2.0 ** min(num_crashes - 2, 30))


def surplus(workers: Sequence[WorkerView], wanted: int) -> list[WorkerView]:
    """
    Return the workers of a fleet to drain so that `wanted` stay.

    Those that do not serve come first, then the newest; a copy that is leaving goes when enough others serve.
    """
    staying = [worker for worker in workers if not worker.is_leaving]
    ordered = sorted(staying, key=lambda worker: (worker.can_serve, -worker.created_s, worker.name))
    extra = ordered[: max(0, len(staying) - wanted)]
    leaving = sorted(
        (worker for worker in workers if worker.is_leaving), key=lambda worker: (worker.can_serve, worker.name)
    )
    num_serving = sum(worker.can_serve for worker in (*ordered[len(extra) :], *leaving))
    num_idle = sum(not worker.can_serve for worker in leaving)
    return [*extra, *leaving[: num_idle + max(0, num_serving - wanted)]]


def overdue_reason(
    worker: WorkerView,
    *,
    download_s: float,
    health_s: float,
    provision_s: float | None = None,
    now_s: float,
    config: ReconcilerConfig,
) -> str:
    """Return which time limit a worker has passed, in a few words; empty if none."""
    in_phase_s = config.waited_s(worker.phase_since_s, now_s)
    wait_s = health_s if provision_s is None else provision_s
    if worker.phase is None and worker.waiting and in_phase_s > wait_s:
        return f"it could not be started within {wait_s:g} s. {worker.waiting}"
    if worker.phase is WorkerPhase.FETCHING and in_phase_s > download_s + config.slack_s / 4:
        return f"its model data did not arrive within {download_s:g} s"
    if worker.phase is WorkerPhase.STARTING and in_phase_s > health_s:
        return f"it did not become healthy within {health_s:g} s"
    if worker.phase is WorkerPhase.UNHEALTHY and in_phase_s > config.unhealthy_s:
        return f"it stopped answering health checks {config.unhealthy_s:g} s ago"
    return ""
