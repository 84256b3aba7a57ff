"""
The actions on workers: the difference between the workers that a deployment needs and those that exist.

Actions are idempotent: executing one twice, or partly, does no harm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.worker import FleetKey, WorkerView
from headrace.platform.control.model.workload import Workload
from headrace.platform.control.planning.config import PassContext, ReconcilerConfig
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.rollout import is_rolling_back, wanted_workers

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


def plan_workers(deployment: Deployment, workers: Sequence[WorkerView], context: PassContext) -> WorkerPlan:
    """Return the actions that turn the existing workers into those that the deployment needs now."""
    wanted, now_s = wanted_workers(deployment), context.now_s
    workloads = {
        (workload.variant, number): workload
        for number, revision in deployment.revisions.items()
        for workload in revision.workloads
    }
    given_up = [
        GiveUp(worker=worker.name, why=why)
        for worker in workers
        if worker.is_wanted
        and (workload := workloads.get(worker.fleet)) is not None
        and (why := overdue_reason(worker, workload, context))
    ]
    lost = {action.worker for action in given_up}
    # A worker that is given up counts neither as surplus nor as present: it is drained and replaced in this pass.
    released = [
        Drain(worker=worker.name)
        for fleet in sorted({worker.fleet for worker in workers})
        for worker in surplus(
            [worker for worker in workers if worker.fleet == fleet and worker.is_wanted and worker.name not in lost],
            wanted.get(fleet, 0),
        )
    ]
    leaving = lost | {action.worker for action in released}
    staying = [worker for worker in workers if worker.name not in leaving]
    # After repeated crashes the replacement is delayed; requests wait for it only if it starts soon.
    restarts_s = {fleet: restart_at_s(staying, fleet, context) for fleet in wanted}
    halted = deployment.progress.target if is_rolling_back(deployment) else None
    started: list[Start] = []
    for fleet, count in sorted(wanted.items()):
        missing = count - sum(worker.is_wanted and not worker.is_leaving for worker in staying if worker.fleet == fleet)
        if fleet[1] != halted and missing > 0 and now_s >= restarts_s[fleet]:
            started.extend([Start(fleet=fleet)] * missing)
    soon = {fleet for fleet, count in wanted.items() if count and restarts_s[fleet] - now_s <= STANDBY_S}
    actions = (
        *given_up,
        *released,
        *(Launch(worker=worker.name) for worker in staying if worker.is_wanted and worker.phase is None),
        *started,
        *_put_away([worker for worker in workers if not worker.is_wanted], context),
        *_clear_logs(wanted, workers, context),
    )
    starting = frozenset(variant for variant, _ in soon | {action.fleet for action in started})
    return WorkerPlan(actions=actions, staying=staying, starting=starting)


def end_workers(workers: Sequence[WorkerView], context: PassContext) -> list[Action]:
    """Drain and stop all of these workers, and forget them."""
    drains = [Drain(worker=worker.name) for worker in workers if worker.is_wanted]
    gone = [Forget(worker=worker.name) for worker in workers if worker.is_gone and worker.failed_s is not None]
    leaving = [worker for worker in workers if not worker.is_wanted]
    return [*drains, *_put_away(leaving, context, is_hasty=True), *gone]


def _put_away(workers: Sequence[WorkerView], context: PassContext, *, is_hasty: bool = False) -> list[Stop | Forget]:
    """Stop draining workers once their requests have had time to end, and forget those that ended normally."""
    actions: list[Stop | Forget] = []
    for worker in workers:
        if worker.is_gone or worker.phase is None:
            if worker.failed_s is None:
                actions.append(Forget(worker=worker.name))
        elif worker.stopping_s is None:
            if _is_drained(worker, context, is_hasty=is_hasty):
                actions.append(Stop(worker=worker.name, grace_s=context.config.stop_grace_s))
        elif context.waited_s(worker.stopping_s) > context.config.stop_grace_s + context.config.slack_s / 4:
            actions.append(Stop(worker=worker.name, grace_s=0.0))
    return actions


def _is_drained(worker: WorkerView, context: PassContext, *, is_hasty: bool) -> bool:
    """Return whether a worker may be stopped; requests of one that failed, or is being deleted, get no extra time."""
    if worker.ready_s is None:
        return True
    is_waited_for = worker.num_requests > 0 and worker.failed_s is None and not is_hasty
    waited_s = context.waited_s(context.now_s if worker.draining_s is None else worker.draining_s)
    return waited_s >= (context.config.max_drain_s if is_waited_for else context.config.drain_s)


def _clear_logs(wanted: Iterable[FleetKey], workers: Sequence[WorkerView], context: PassContext) -> list[Forget]:
    """Forget failed workers, except the newest few and those by which the delay of the next start is computed."""
    failed = sorted(
        (worker for worker in workers if worker.is_gone and worker.failed_s is not None),
        key=lambda worker: (worker.failed_s or 0.0, worker.name),
        reverse=True,
    )
    kept = {worker.name for worker in failed[: context.config.num_kept_logs]}
    # The newest failures of each fleet count for its delay, as many as it takes to reach the longest delay.
    enough = 2
    while enough < _MAX_COUNTED and backoff_delay_s(enough, context.config) < context.config.max_backoff_s:
        enough += 1
    for fleet in wanted:
        recent = [worker.name for worker in failed if worker.fleet == fleet and _is_recent(worker, context)]
        kept.update(recent[:enough])
    return [Forget(worker=worker.name) for worker in failed if worker.name not in kept]


def restart_at_s(workers: Iterable[WorkerView], fleet: FleetKey, context: PassContext) -> float:
    """Return when the next worker of a fleet may start: now, or after a delay that grows from its second crash on."""
    crashes = [worker.failed_s or 0.0 for worker in workers if worker.fleet == fleet and _is_recent(worker, context)]
    return max(crashes) + backoff_delay_s(len(crashes), context.config) if crashes else context.now_s


def _is_recent(worker: WorkerView, context: PassContext) -> bool:
    """Return whether a crash counts; one in the future does not: the clock has been set back since, maybe by hours."""
    return worker.failed_s is not None and 0.0 <= context.now_s - worker.failed_s < context.config.crash_window_s


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


def overdue_reason(worker: WorkerView, workload: Workload, context: PassContext) -> str:
    """Return which time limit a worker has passed, in a few words; empty if none."""
    in_phase_s, slack_s = context.waited_s(worker.phase_since_s), context.config.slack_s
    download_s, health_s, unhealthy_s = (
        workload.download_timeout_s,
        workload.health_timeout_s,
        context.config.unhealthy_s,
    )
    wait_s = health_s if workload.provision_timeout_s is None else workload.provision_timeout_s
    if worker.phase is None and worker.waiting and in_phase_s > wait_s:
        return f"it could not be started within {wait_s:g} s. {worker.waiting}"
    if worker.phase is WorkerPhase.FETCHING and in_phase_s > download_s + slack_s / 4:
        return f"its model data did not arrive within {download_s:g} s"
    if worker.phase is WorkerPhase.STARTING and in_phase_s > health_s:
        return f"it did not become healthy within {health_s:g} s"
    if worker.phase is WorkerPhase.UNHEALTHY and in_phase_s > unhealthy_s:
        return f"it stopped answering health checks {unhealthy_s:g} s ago"
    return ""
