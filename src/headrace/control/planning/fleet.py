"""Fleets: the workers of one revision of a workload, when they are replaced and which of them go."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.cluster.launcher import WorkerPhase
from headrace.control.model.worker import FleetKey, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits and bounds of the reconciler; times are seconds."""

    drain_s: float = 1.0
    """Least time between the end of a worker's traffic and SIGTERM: every gateway must have read the route."""
    max_drain_s: float = 480.0
    """Longest such time while requests run on it: the gateway's limit for a stream."""
    stop_grace_s: float = 30.0
    """Between SIGTERM and SIGKILL, for requests that run; the same as SageMaker's."""
    unhealthy_s: float = 30.0
    """A worker whose `/ping` fails for this long is replaced."""
    num_allowed_failures: int = 1
    """Worker failures tolerated before the deployment fails."""
    backoff_s: float = 1.0
    """Before the second replacement of a crashed worker; doubles with each crash. The first starts at once."""
    max_backoff_s: float = 60.0
    crash_window_s: float = 600.0
    """Older crashes do not count."""
    slack_s: float = 60.0
    """Added to the time that a transient state may take by its own settings."""
    num_kept_logs: int = 3
    """Failed workers of an endpoint whose logs are kept."""
    awake_since_s: float = 0.0
    """When this process of the platform began: time before it does not count for deadlines."""

    def waited_s(self, since_s: float, now_s: float) -> float:
        """Return how long something has been waited for."""
        return now_s - max(since_s, self.awake_since_s)

    @property
    def stop_bound_s(self) -> float:
        """After this time a worker that was told to stop is dead, or cannot be reached."""
        return self.drain_s + self.stop_grace_s + self.slack_s


def num_ready(workers: Iterable[WorkerView], fleet: FleetKey) -> int:
    """Return how many workers of a fleet serve."""
    return sum(worker.can_serve for worker in workers if worker.fleet == fleet)


def failures_since(workers: Iterable[WorkerView], revision: int, since_s: float) -> list[WorkerView]:
    """Return the failed workers of a revision, oldest failure first."""
    failed = [
        worker
        for worker in workers
        if worker.revision == revision and worker.failed_s is not None and worker.failed_s >= since_s
    ]
    return sorted(failed, key=lambda worker: (worker.failed_s or 0.0, worker.name))


def hopeless_reason(workers: Iterable[WorkerView], revision: int, *, since_s: float, limits: Limits) -> str | None:
    """Return why a revision that is being deployed cannot come up, or None if it still may."""
    failed = failures_since(workers, revision, since_s)
    permanent = next((worker for worker in failed if worker.is_permanent), None)
    if permanent is not None:
        return permanent.failure
    return failed[-1].failure if len(failed) > limits.num_allowed_failures else None


def restart_at_s(workers: Iterable[WorkerView], fleet: FleetKey, *, now_s: float, limits: Limits) -> float:
    """Return when the next worker of a fleet may start: now, or after a delay that grows from its second crash on."""
    crashes = [
        worker.failed_s
        for worker in workers
        if worker.fleet == fleet and worker.failed_s is not None and now_s - worker.failed_s < limits.crash_window_s
    ]
    return max(crashes) + backoff_delay_s(len(crashes), limits) if crashes else now_s


def backoff_delay_s(num_crashes: int, limits: Limits) -> float:
    """Return the delay before a replacement after this number of recent crashes."""
    if num_crashes <= 1:
        return 0.0
    return min(limits.max_backoff_s, limits.backoff_s * 2.0 ** min(num_crashes - 2, 30))


def surplus(workers: Sequence[WorkerView], wanted: int) -> list[WorkerView]:
    """
    Return the workers of a fleet to drain when this number is wanted.

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


def overdue_reason(worker: WorkerView, *, download_s: float, health_s: float, now_s: float, limits: Limits) -> str:
    """Return which time limit a worker has passed, in a few words; empty if none."""
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
