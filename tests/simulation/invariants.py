"""The checks after each commit, on the records as they are in the database."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey, TargetRecord
from headrace.platform.autoscaling.records.activities import SCALING_ACTIVITY, ActivityRecord
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.jobs import ENDED, AnyJob
from headrace.platform.control.model.resources import Resources, resources_of_type
from headrace.platform.control.model.rollout_config import Rollout
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.control.model.worker import WORKER, WorkerRecord
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.state import store
from headrace.platform.state.records import Kind, Record
from tests.simulation.database import CONNECTION, TERM
from tests.simulation.fleets import Fleets

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

HOST_TYPE: Final = "ml.m5.xlarge"
"""Instance type of the variant that hosts components."""
_DEPLOYING: Final = frozenset({State.CREATING, State.UPDATING})
_FAILING: Final = frozenset({State.FAILED, State.ROLLING_BACK})
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
    fleets: Fleets = field(default_factory=Fleets)
    rolled_back: set[str] = field(default_factory=set)
    """Names of the endpoints a change of which has failed."""
    _progress: dict[str, Progress] = field(default_factory=dict)
    """By the uid of an endpoint, as written last."""
    _served: dict[tuple[str, int], float] = field(default_factory=dict)
    """Name of an endpoint and a number of instances → when it was written last that it has so many."""
    _begun: dict[str, float] = field(default_factory=dict)
    """Scaling activity → when it was written first."""
    _ended: dict[str, str] = field(default_factory=dict)
    """Uid of a job that has ended → how."""
    _newest: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    """Uid of an endpoint → its number of instances when it was written last."""
    _bounds: dict[str, range] = field(default_factory=dict)
    """Name of a target → the numbers of instances that it allows."""
    _replaced: dict[str, list[tuple[range, float]]] = field(default_factory=dict)
    """Name of a target → those that it allowed before, each with the time of its replacement."""

    def jumped(self) -> None:
        """Compare no times from now on: a clock has jumped."""
        self.has_jumped = self.fleets.has_jumped = True

    def committed(self, now_s: float) -> str:
        """Check the record that was written, and return a line about it."""
        values = CONNECTION.execute(_NEWEST).fetchone()
        if values is None:
            self.findings += self.fleets.removed(now_s)
            return "removed"
        row = _Row(values)
        kind, name, revision = values[1], values[2], values[3]
        if revision <= self._newest:
            self.findings.append(f"Revision {revision} was written after revision {self._newest}.")
        self._newest = revision
        checked = self._checks().get(kind)
        if checked is not None:
            record = store.decode_row(checked[0], row)
            if isinstance(record, Record):
                checked[1](record, now_s)
        return f"{kind} {name} {revision}"

    def _checks(self) -> dict[str, tuple[Any, Callable[[Any, float], None]]]:
        """Return the kinds of records that are checked, each with its check, by their names."""
        return {
            ENDPOINT.name: (ENDPOINT, self._check_endpoint),
            SCALABLE_TARGET.name: (SCALABLE_TARGET, self._note_bounds),
            SCALING_ACTIVITY.name: (SCALING_ACTIVITY, self._check_activity),
            TRANSFORM_JOB.name: (TRANSFORM_JOB, self._check_end),
            WORKER.name: (WORKER, self._check_worker),
        }

    def _check_endpoint(self, record: EndpointRecord, now_s: float) -> None:
        self._check_rollout(record)
        self._check_bounds(record)
        self.fleets.written_endpoint(record)
        progress = record.status.progress
        if progress is not None and progress.state is State.IN_SERVICE:
            num_ready = sum(record.status.ready.values())
            self._served |= {(record.name, number): now_s for number in range(num_ready + 1)}

    def _check_worker(self, worker: WorkerRecord, now_s: float) -> None:
        self.findings += self.fleets.written(worker, now_s)
        if worker.status.phase is None and worker.spec.copy is not None:
            self._check_room(worker)

    def _check_activity(self, activity: ActivityRecord, now_s: float) -> None:
        """Check that an activity which says that it has succeeded has."""
        spec = activity.spec
        begun_s = self._begun.setdefault(activity.uid, now_s)
        endpoint = spec.resource_id.partition("/")[2].partition("/")[0]
        served_s = self._served.get((endpoint, spec.capacity or 0), 0.0)
        if spec.status_code == "Successful" and spec.capacity is not None and served_s < begun_s:
            self.findings.append(f"{spec.description} It is Successful before {endpoint} has so many.")

    def _check_end(self, job: AnyJob, _now_s: float) -> None:
        """Check that a job that has ended does not change."""
        state = self._ended.get(job.uid)
        if state is not None and job.status.state != state:
            self.findings.append(f"Job {job.name} was {state}, and is {job.status.state}.")
        if job.status.state in ENDED:
            self._ended[job.uid] = job.status.state

    def _check_rollout(self, record: EndpointRecord) -> None:
        """Check that no traffic moves before the pause between two steps is over, and that no step is left out."""
        now = record.status.progress
        if now is None:
            return
        before = self._progress.get(record.uid, now)
        self._progress[record.uid] = now
        if before.state in _DEPLOYING and (
            now.state in _FAILING or (now.state is State.IN_SERVICE and now.failure_reason)
        ):
            self.rolled_back.add(record.name)
            self.findings += self.fleets.failed(record, now.failure_reason, before.since_s)
        is_updated = before.state is State.UPDATING and before.target is not None and before.target == now.stable
        if is_updated and now.state is State.IN_SERVICE:
            self._check_termination(record, before, now)
        is_same_update = before.target is not None and before.target == now.target
        if not is_same_update or {before.state, now.state} != {State.UPDATING}:
            return
        rollout = record.status.revisions[now.target].rollout
        if rollout.wait_s and (before.stage, before.step) != (now.stage, now.step):
            for finding in self._step(before, now, rollout):
                self.findings.append(f"Endpoint {record.name}: {finding}")

    def _check_termination(self, record: EndpointRecord, before: Progress, now: Progress) -> None:
        """Check that the old workers have stayed for the time in which a client could still ask for them."""
        assert now.stable is not None
        waited_s = now.since_s - before.stage_since_s if before.stage is Stage.TERMINATING else 0.0
        expected_s = record.status.revisions[now.stable].rollout.termination_wait_s
        if waited_s < expected_s - _ROUNDING_S and not self.has_jumped:
            self.findings.append(
                f"Endpoint {record.name}: the old workers end after {waited_s:.2f} s; expected {expected_s:g} s."
            )

    def _step(self, before: Progress, now: Progress, rollout: Rollout) -> Iterator[str]:
        passed_s = now.stage_since_s - before.stage_since_s
        if before.stage is Stage.BAKING and passed_s < rollout.wait_s - _ROUNDING_S and not self.has_jumped:
            yield f"step {before.step} has baked for {passed_s:.2f} s; expected {rollout.wait_s:g} s."
        if now.step > before.step + 1 or (before.stage is Stage.PROVISIONING and now.stage is Stage.TERMINATING):
            yield f"step {before.step} is followed by {now.stage} of step {now.step}."
        if now.stage is Stage.TERMINATING and before.step + 1 < len(rollout.steps):
            yield f"its update ends after {before.step + 1} of {len(rollout.steps)} steps."

    def _note_bounds(self, record: TargetRecord, _now_s: float) -> None:
        target, allowed = record.name, range(record.spec.min_capacity, record.spec.max_capacity + 1)
        before = self._bounds.get(target, allowed)
        if before != allowed:
            self._replaced.setdefault(target, []).append((before, record.modified_s))
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
        """Check that the copies on an instance fit into it, and that those of a component are spread."""
        copy = created.spec.copy
        assert copy is not None
        hosts = {copy.instance, *self.fleets.hosts(created)}
        whole, used, own = resources_of_type(HOST_TYPE), dict.fromkeys(hosts, Resources()), Counter[str]()
        for worker in self._read(WORKER, "kind = ?", WORKER.name):
            other = worker.spec.copy
            if other is None or other.instance not in hosts:
                continue
            is_placed = worker.status.phase is not WorkerPhase.EXITED
            if is_placed:
                used[other.instance] += other.need
            is_planned_for = worker.modified_s > created.created_s - _LONGEST_PASS_S and other.instance != copy.instance
            if is_placed or is_planned_for:
                own[other.instance] += other.component == copy.component
        if not used[copy.instance].fits_in(whole):
            self.findings.append(f"Instance {copy.instance} has copies of {used[copy.instance]}.")
        least = min(own[host] for host in hosts if host == copy.instance or (used[host] + copy.need).fits_in(whole))
        if own[copy.instance] - 1 > least:
            self.findings.append(f"A copy of {copy.component} joins {own[copy.instance] - 1} on {copy.instance}.")

    @staticmethod
    def _read(kind: Kind[SpecT, StatusT], condition: str, *values: Any) -> list[Record[SpecT, StatusT]]:
        rows = CONNECTION.execute(f"{_SELECT} WHERE {condition}", values).fetchall()
        records = (store.decode_row(kind, _Row(row)) for row in rows)
        return [record for record in records if isinstance(record, Record)]
