"""The checks of workers after each commit: in which order they go, when they are replaced, and what outlives them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import EndpointRecord
from headrace.platform.control.model.worker import WorkerRecord
from headrace.platform.control.planning.config import ReconcilerConfig
from tests.simulation.database import CONNECTION, TERM

_CONFIG: Final = ReconcilerConfig()
_MANY: Final = 3
"""Crashes after which the next worker of a fleet has to wait."""
_LIMIT: Final = re.compile(r"(?:healthy|arrive) within (\d+) s")
_LATE_S: Final = 5.0
"""Seconds for which a phase may have lasted before it is written."""
_NAMES: Final = "SELECT uid FROM headrace_records WHERE kind IN ('endpoint', 'worker')"


@dataclass
class Fleets:
    """The workers as they were written last, by their fleets."""

    has_jumped: bool = False
    """A clock has jumped: times in records cannot be compared."""
    _workers: dict[str, WorkerRecord] = field(default_factory=dict)
    """By uid."""
    _since_s: dict[str, float] = field(default_factory=dict)
    """Uid of a worker → when its phase was written."""
    _endpoints: dict[str, EndpointRecord] = field(default_factory=dict)
    """By uid."""

    def written_endpoint(self, record: EndpointRecord) -> None:
        self._endpoints[record.uid] = record

    def hosts(self, worker: WorkerRecord) -> list[str]:
        """Return the ids of the instances on which a copy can be placed."""
        endpoint = self._endpoints.get(worker.spec.endpoint_uid)
        known = [] if endpoint is None else endpoint.status.instances.get(worker.spec.variant, [])
        return [host.id for host in known if host.leaving_s is None]

    def written(self, worker: WorkerRecord, now_s: float) -> Iterator[str]:
        """Note a worker that was written, and yield what is wrong with it."""
        before = self._workers.get(worker.uid)
        self._workers[worker.uid] = worker
        if before is None:
            self._since_s[worker.uid] = now_s
            yield from self._check_backoff(worker)
            return
        if before.deleting_s is None and worker.deleting_s is not None:
            yield from self._check_order(worker)
        if before.status.phase is not worker.status.phase:
            self._since_s[worker.uid] = now_s
        if before.status.failed_s is None and worker.status.failed_s is not None:
            yield from self._check_patience(worker, now_s)

    def failed(self, endpoint: EndpointRecord, reason: str, since_s: float) -> Iterator[str]:
        """Yield what is wrong with the reason why a deployment has failed that began at `since_s`."""
        earlier = [
            worker.name
            for worker in self._workers.values()
            if worker.spec.endpoint_uid == endpoint.uid
            and worker.status.failure == reason
            and (worker.status.failed_s or 0.0) < since_s
        ]
        if earlier and not self.has_jumped:
            yield f"The change of {endpoint.name} has failed because of {earlier}, which had failed before it."

    def removed(self, now_s: float) -> Iterator[str]:
        """Note that records were removed; yield the endpoints that are gone before their workers."""
        existing = {uid for (uid,) in CONNECTION.execute(_NAMES)}
        self._workers = {uid: worker for uid, worker in self._workers.items() if uid in existing}
        for uid in self._endpoints.keys() - existing:
            endpoint = self._endpoints.pop(uid)
            waited_s = now_s - (endpoint.deleting_s or 0.0)
            left = [worker.name for worker in self._workers.values() if worker.spec.endpoint_uid == uid]
            if left and waited_s < _CONFIG.stop_bound_s and not self.has_jumped:
                yield f"Endpoint {endpoint.name} is gone, and its workers {left} are not."

    def _check_order(self, drained: WorkerRecord) -> Iterator[str]:
        """Check that no worker that serves goes before another one that has never served."""
        endpoint = self._endpoints.get(drained.spec.endpoint_uid)
        is_kept = endpoint is not None and endpoint.deleting_s is None
        if TERM.get() is None:  # a member that stops ends all workers
            return
        if not is_kept or drained.status.phase is not WorkerPhase.READY or drained.spec.copy is not None:
            return
        idle = [
            worker.name
            for worker in self._fleet(drained)
            if worker.deleting_s is None and worker.status.failed_s is None and worker.status.ready_s is None
        ]
        if idle:
            yield f"{drained.name} serves, and goes before {idle}."

    def _check_backoff(self, started: WorkerRecord) -> Iterator[str]:
        """Check that a fleet whose workers crash again and again waits before the next one."""
        crashes = sorted(
            (
                worker
                for worker in self._fleet(started)
                if worker.status.phase is WorkerPhase.EXITED  # others were given up, after some time
                and (worker.status.failed_s or 0.0) > started.created_s - _CONFIG.crash_window_s
            ),
            key=lambda worker: worker.status.failed_s or 0.0,
        )
        if len(crashes) < _MANY or self.has_jumped:
            return
        last = crashes[-1]
        is_of_same_pass = last.status.handle is None and self._lacks_others(started)
        waited_s = started.created_s - (last.status.failed_s or 0.0)
        if waited_s < _CONFIG.backoff_s and not is_of_same_pass:
            yield f"{started.name} starts {waited_s:.2f} s after crash {len(crashes)} of its fleet."

    def _lacks_others(self, started: WorkerRecord) -> bool:
        """Return whether a fleet lacks further workers: one pass starts them all, also when the first cannot start."""
        endpoint = self._endpoints.get(started.spec.endpoint_uid)
        workload = None if endpoint is None else endpoint.spec.revision.workload(started.spec.variant)
        living = [worker for worker in self._fleet(started) if not (worker.deleting_s or worker.status.failed_s)]
        return started.spec.copy is not None or workload is None or len(living) + 1 < workload.count

    def _check_patience(self, given_up: WorkerRecord, now_s: float) -> Iterator[str]:
        """Check that a worker which is given up after a time has had that time, whatever the clocks say."""
        limit = _LIMIT.search(given_up.status.failure)
        waited_s = now_s - self._since_s[given_up.uid]
        if limit is not None and waited_s < float(limit[1]) - _LATE_S:
            yield f"{given_up.name} is given up after {waited_s:.1f} s: {limit[0]}."

    def _fleet(self, member: WorkerRecord) -> list[WorkerRecord]:
        """Return the other workers of a fleet."""
        return [worker for worker in self._workers.values() if worker is not member and _key(worker) == _key(member)]


def _key(worker: WorkerRecord) -> tuple[Any, ...]:
    spec = worker.spec
    return spec.endpoint_uid, spec.fleet, None if spec.copy is None else spec.copy.component_uid
