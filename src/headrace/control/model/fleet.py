"""Workers as the planner sees them, and what follows from looking at a fleet of them. Pure values and functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.cluster.launcher import WorkerPhase

FleetKey = tuple[str, int]
"""Variant and generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient the reconciler is. Seconds."""

    drain_s: float = 1.0
    """Between the end of a worker's traffic and SIGTERM, at least: until every gateway has heard of it."""
    max_drain_s: float = 480.0
    """And at most, while requests run on it: the longest that the gateway lets a stream take."""
    stop_grace_s: float = 30.0
    """Between SIGTERM and SIGKILL, for requests that run. SageMaker's own."""
    unhealthy_s: float = 30.0
    """A worker whose `/ping` fails for so long is replaced."""
    num_allowed_failures: int = 1
    """A new fleet may lose so many workers before its deployment has failed."""
    backoff_s: float = 1.0
    """Before the second replacement of a crashed worker; doubles with each crash. The first comes at once."""
    max_backoff_s: float = 60.0
    crash_window_s: float = 600.0
    """Crashes that are older do not count."""
    slack_s: float = 60.0
    """Added to what a transient state may take by its own settings."""
    num_kept_logs: int = 3
    """Failed workers of an endpoint whose logs are kept."""
    awake_since_s: float = 0.0
    """When this life of the platform began: time in which nobody looked counts for no deadline."""

    def waited_s(self, since_s: float, now_s: float) -> float:
        """How long something has been waited for."""
        return now_s - max(since_s, self.awake_since_s)

    @property
    def stop_bound_s(self) -> float:
        """After so long a worker that was told to stop is dead, or cannot be reached."""
        return self.drain_s + self.stop_grace_s + self.slack_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker: its record, and what was seen of it last."""

    name: str
    variant: str
    generation: int
    created_s: float
    phase: WorkerPhase | None = None
    """None: nobody has started it yet."""
    phase_since_s: float = 0.0
    url: str = ""
    token: str = field(default="", repr=False)
    """Bearer token that it asks for; empty: none."""
    ready_s: float | None = None
    """When it was ready for the first time."""
    draining_s: float | None = None
    """Since when it gets no more requests, for good."""
    stopping_s: float | None = None
    """When it was told to stop."""
    failed_s: float | None = None
    """When it was lost, or given up, against our will."""
    failure: str = ""
    """Why, as a FailureReason."""
    waiting: str = ""
    """What it waits for while it cannot be started."""
    is_permanent: bool = False
    """Another one would fail alike."""
    num_requests: int = 0
    """That it is answering now, as far as is known."""
    is_leaving: bool = False
    """A copy whose instance is being emptied: it goes once another one serves in its place."""

    @property
    def fleet(self) -> FleetKey:
        """What it belongs to."""
        return self.variant, self.generation

    @property
    def is_wanted(self) -> bool:
        """It serves, or is on its way to."""
        return self.draining_s is None and self.failed_s is None and self.phase is not WorkerPhase.EXITED

    @property
    def can_serve(self) -> bool:
        """It takes requests now."""
        return self.is_wanted and self.phase is WorkerPhase.READY

    @property
    def is_gone(self) -> bool:
        """There is no process of it."""
        return self.phase is WorkerPhase.EXITED


def num_ready(workers: Iterable[WorkerView], fleet: FleetKey) -> int:
    """How many of a fleet serve."""
    return sum(worker.can_serve for worker in workers if worker.fleet == fleet)


def failures_since(workers: Iterable[WorkerView], generation: int, since_s: float) -> list[WorkerView]:
    """The failed workers of a generation, oldest failure first."""
    failed = [
        worker
        for worker in workers
        if worker.generation == generation and worker.failed_s is not None and worker.failed_s >= since_s
    ]
    return sorted(failed, key=lambda worker: (worker.failed_s or 0.0, worker.name))


def hopeless_reason(workers: Iterable[WorkerView], generation: int, *, since_s: float, limits: Limits) -> str | None:
    """Why a fleet that is being deployed will not come, or None if it still may."""
    failed = failures_since(workers, generation, since_s)
    permanent = next((worker for worker in failed if worker.is_permanent), None)
    if permanent is not None:
        return permanent.failure
    return failed[-1].failure if len(failed) > limits.num_allowed_failures else None


def restart_at_s(workers: Iterable[WorkerView], fleet: FleetKey, *, now_s: float, limits: Limits) -> float:
    """When the next worker of a fleet may start: at once, or after a delay that grows from its second crash on."""
    crashes = [
        worker.failed_s
        for worker in workers
        if worker.fleet == fleet and worker.failed_s is not None and now_s - worker.failed_s < limits.crash_window_s
    ]
    return max(crashes) + backoff_delay_s(len(crashes), limits) if crashes else now_s


def backoff_delay_s(num_crashes: int, limits: Limits) -> float:
    """How long a worker that crashed so often lately is waited for."""
    if num_crashes <= 1:
        return 0.0
    return min(limits.max_backoff_s, limits.backoff_s * 2.0 ** min(num_crashes - 2, 30))


def surplus(workers: Sequence[WorkerView], wanted: int) -> list[WorkerView]:
    """
    Which of a fleet to let go when so many are wanted.

    Those that do not serve first, then the newest; a copy that is leaving when enough others serve.
    """
    staying = [worker for worker in workers if not worker.is_leaving]
    ordered = sorted(staying, key=lambda worker: (worker.can_serve, -worker.created_s, worker.name))
    extra = ordered[: max(0, len(staying) - wanted)]
    leaving = sorted((worker for worker in workers if worker.is_leaving), key=lambda one: (one.can_serve, one.name))
    num_serving = sum(worker.can_serve for worker in (*ordered[len(extra) :], *leaving))
    num_idle = sum(not worker.can_serve for worker in leaving)
    return [*extra, *leaving[: num_idle + max(0, num_serving - wanted)]]


def overdue_reason(worker: WorkerView, *, download_s: float, health_s: float, now_s: float, limits: Limits) -> str:
    """Which time limit a worker has passed, in a few words; empty if none."""
    in_phase_s = limits.waited_s(worker.phase_since_s, now_s)
    if worker.phase is None and worker.waiting and in_phase_s > health_s:
        return f"it could not be started within {health_s:g} s. {worker.waiting}"
    if worker.phase is WorkerPhase.FETCHING and in_phase_s > download_s + limits.slack_s / 4:
        return f"its model data did not arrive within {download_s:g} s"
    if worker.phase is WorkerPhase.STARTING and in_phase_s > health_s:
        return f"it did not become healthy within {health_s:g} s"
    if worker.phase is WorkerPhase.UNHEALTHY and in_phase_s > limits.unhealthy_s:
        return f"it stopped answering health checks {limits.unhealthy_s:g} s ago"
    return ""
