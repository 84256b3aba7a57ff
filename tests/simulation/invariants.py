"""What must hold after each commit, checked on the records as they are in the database."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.resources import Resources, resources_of_type
from headrace.platform.control.model.worker import WORKER, ReplicaSpec, WorkerRecord
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.state import store
from headrace.platform.state.records import Kind, Record
from tests.simulation.database import CONNECTION, TERM
from tests.simulation.loop import SimulatedLoop

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

HOST_TYPE: Final = "ml.m5.xlarge"
"""Instance type of the variant that hosts components."""
_SKEW_S: Final = 0.5
_COLUMNS: Final = (
    *("uid", "kind", "name", "revision", "spec", "status", "tags"),
    *("created_s", "modified_s", "deleting_s", "schema_version"),
)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM headrace_records"
_NEWEST: Final = f"{_SELECT} WHERE revision = (SELECT revision FROM headrace_store)"


class _Row:
    def __init__(self, values: tuple[Any, ...]) -> None:
        self.__dict__.update(zip(_COLUMNS, values, strict=True))


@dataclass
class Invariants:
    """The rules of rollouts, capacity and scaling, and what has broken them."""

    loop: SimulatedLoop
    findings: list[str] = field(default_factory=list)
    _stages: dict[str, tuple[Progress, float]] = field(default_factory=dict)
    """Uid of an endpoint → its progress, and when its stage began, by the only clock that never jumps."""
    _jumped_s: float = -1.0
    _newest: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    """Uid of an endpoint → its number of instances when it was written last."""

    def jumped(self) -> None:
        """Note that a clock has jumped: times in records cannot be compared with the true time from then on."""
        self._jumped_s = self.loop.now_s

    def committed(self) -> str:
        """Check the record that was written, and return a line about it."""
        values = CONNECTION.execute(_NEWEST).fetchone()
        if values is None:
            return "removed"
        row = _Row(values)
        kind, name, revision = values[1], values[2], values[3]
        if revision <= self._newest:
            self.findings.append(f"Revision {revision} was written after revision {self._newest}.")
        self._newest = revision
        if kind == ENDPOINT.name:
            record = store.decode_row(ENDPOINT, row)
            if isinstance(record, Record):
                self._check_rollout(record)
                self._check_bounds(record)
        elif kind == WORKER.name:
            worker = store.decode_row(WORKER, row)
            if isinstance(worker, Record) and worker.status.phase is None and worker.spec.copy is not None:
                self._check_room(worker)
        return f"{kind} {name} {revision}"

    def _check_rollout(self, record: EndpointRecord) -> None:
        """Check that no traffic moves before the pause between two steps is over, and that no step is left out."""
        progress = record.status.progress
        if progress is None:
            return
        before, since_s = self._stages.get(record.uid, (progress, self.loop.now_s))
        is_same = (before.target, before.stage, before.step, before.state) == (
            *(progress.target, progress.stage, progress.step, progress.state),
        )
        if not is_same:
            for finding in self._step(record, before, progress, self.loop.now_s - since_s):
                self.findings.append(f"Endpoint {record.name}: {finding}")
            since_s = self.loop.now_s
        self._stages[record.uid] = progress, since_s

    def _step(self, record: EndpointRecord, before: Progress, now: Progress, passed_s: float) -> Iterator[str]:
        if before.target is None or before.state is not State.UPDATING or self._jumped_s >= self.loop.now_s - passed_s:
            return
        if now.target == before.target and now.state is State.UPDATING:
            revision = record.status.revisions.get(before.target)
            rollout = revision.rollout if revision is not None else None
            if rollout is not None and before.stage is Stage.BAKING and passed_s < rollout.wait_s - _SKEW_S:
                yield f"step {before.step} has baked for {passed_s:.2f} s; expected {rollout.wait_s:g} s."
            if now.step > before.step + 1 or (before.stage is Stage.PROVISIONING and now.stage is Stage.TERMINATING):
                yield f"step {before.step} is followed by {now.stage} of step {now.step}."
            if rollout is not None and now.stage is Stage.TERMINATING and before.step + 1 < len(rollout.steps):
                yield f"its update ends after {before.step + 1} of {len(rollout.steps)} steps."

    def _check_bounds(self, record: EndpointRecord) -> None:
        """Check that no policy or schedule sets a capacity outside the bounds of its target."""
        if TERM.get() is None or record.status.progress is None:
            return
        for workload in record.spec.revision.workloads:
            known = self._counts.get(record.uid, workload.count)
            self._counts[record.uid] = workload.count
            key = TargetKey.of_variant(record.name, workload.variant)
            target = self._read(SCALABLE_TARGET, "kind = ? AND name = ?", SCALABLE_TARGET.name, key.name)
            if known == workload.count or not target:
                continue
            spec = target[0].spec
            if not spec.min_capacity <= workload.count <= spec.max_capacity:
                self.findings.append(
                    f"Endpoint {record.name} is scaled to {workload.count}; its target has {spec.min_capacity} to "
                    f"{spec.max_capacity}."
                )

    def _check_room(self, created: WorkerRecord) -> None:
        """Check that the copies on an instance fit into it."""
        copy = created.spec.copy
        assert copy is not None
        used = Resources()
        for worker in self._read(WORKER, "kind = ?", WORKER.name):
            if worker.spec.copy is not None and _takes_room(worker, copy.instance):
                used += worker.spec.copy.need
        if not used.fits_in(resources_of_type(HOST_TYPE)):
            self.findings.append(f"Instance {copy.instance} has copies of {used}.")

    @staticmethod
    def _read(kind: Kind[SpecT, StatusT], condition: str, *values: Any) -> list[Record[SpecT, StatusT]]:
        rows = CONNECTION.execute(f"{_SELECT} WHERE {condition}", values).fetchall()
        records = (store.decode_row(kind, _Row(row)) for row in rows)
        return [record for record in records if isinstance(record, Record)]


def _takes_room(worker: WorkerRecord, instance: str) -> bool:
    spec: ReplicaSpec = worker.spec
    return spec.copy is not None and spec.copy.instance == instance and worker.status.phase is not WorkerPhase.EXITED
