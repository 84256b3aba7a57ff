"""The checks after each commit, on the records as they are in the database."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.resources import Resources, resources_of_type
from headrace.platform.control.model.rollout_config import Rollout
from headrace.platform.control.model.worker import WORKER, ReplicaSpec, WorkerRecord
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.state import store
from headrace.platform.state.records import Kind, Record
from tests.simulation.database import CONNECTION, TERM

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

HOST_TYPE: Final = "ml.m5.xlarge"
"""Instance type of the variant that hosts components."""
_ROUNDING_S: Final = 0.001
_LONGEST_PASS_S: Final = 15.0
"""Seconds between the first read and the last write of a pass, at most."""
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

    findings: list[str] = field(default_factory=list)
    has_jumped: bool = False
    """A clock has jumped: times in records cannot be compared."""
    _progress: dict[str, Progress] = field(default_factory=dict)
    """By the uid of an endpoint, as written last."""
    _newest: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    """Uid of an endpoint → its number of instances when it was written last."""
    _bounds: dict[str, range] = field(default_factory=dict)
    """Name of a target → the numbers of instances that it allows."""
    _replaced: dict[str, list[tuple[range, float]]] = field(default_factory=dict)
    """Name of a target → those that it allowed before, each with the time of its replacement."""

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
        elif kind == SCALABLE_TARGET.name:
            target = store.decode_row(SCALABLE_TARGET, row)
            if isinstance(target, Record):
                self._note_bounds(name, range(target.spec.min_capacity, target.spec.max_capacity + 1), row.modified_s)
        elif kind == WORKER.name:
            worker = store.decode_row(WORKER, row)
            if isinstance(worker, Record) and worker.status.phase is None and worker.spec.copy is not None:
                self._check_room(worker)
        return f"{kind} {name} {revision}"

    def _check_rollout(self, record: EndpointRecord) -> None:
        """Check that no traffic moves before the pause between two steps is over, and that no step is left out."""
        now = record.status.progress
        if now is None:
            return
        before = self._progress.get(record.uid, now)
        self._progress[record.uid] = now
        is_same_update = before.target is not None and before.target == now.target
        if not is_same_update or {before.state, now.state} != {State.UPDATING}:
            return
        rollout = record.status.revisions[now.target].rollout
        if rollout.wait_s and (before.stage, before.step) != (now.stage, now.step):
            for finding in self._step(before, now, rollout):
                self.findings.append(f"Endpoint {record.name}: {finding}")

    def _step(self, before: Progress, now: Progress, rollout: Rollout) -> Iterator[str]:
        passed_s = now.stage_since_s - before.stage_since_s
        if before.stage is Stage.BAKING and passed_s < rollout.wait_s - _ROUNDING_S and not self.has_jumped:
            yield f"step {before.step} has baked for {passed_s:.2f} s; expected {rollout.wait_s:g} s."
        if now.step > before.step + 1 or (before.stage is Stage.PROVISIONING and now.stage is Stage.TERMINATING):
            yield f"step {before.step} is followed by {now.stage} of step {now.step}."
        if now.stage is Stage.TERMINATING and before.step + 1 < len(rollout.steps):
            yield f"its update ends after {before.step + 1} of {len(rollout.steps)} steps."

    def _note_bounds(self, target: str, allowed: range, now_s: float) -> None:
        before = self._bounds.get(target, allowed)
        if before != allowed:
            self._replaced.setdefault(target, []).append((before, now_s))
        self._bounds[target] = allowed

    def _check_bounds(self, record: EndpointRecord) -> None:
        """
        Check that no policy or schedule sets a capacity outside the bounds of its target.

        A pass that has read the target may write the endpoint after the bounds were replaced; the next pass mends it.
        """
        if TERM.get() is None or record.status.progress is None:
            return
        for workload in record.spec.revision.workloads:
            known = self._counts.get(record.uid, workload.count)
            self._counts[record.uid] = workload.count
            target = TargetKey.of_variant(record.name, workload.variant).name
            allowed = self._bounds.get(target)
            if known == workload.count or allowed is None or workload.count in allowed:
                continue
            is_late = all(
                workload.count not in before or record.modified_s - replaced_s > _LONGEST_PASS_S
                for before, replaced_s in self._replaced.get(target, ())
            )
            if is_late:
                self.findings.append(
                    f"Endpoint {record.name} is scaled to {workload.count}; its target has {allowed[0]} to "
                    f"{allowed[-1]}."
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
