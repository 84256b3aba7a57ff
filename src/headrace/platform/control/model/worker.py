"""Workers: their records, the changes of their status after observations, and the view that planners get of them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.platform.cluster.launcher import Handle, Observation, WorkerPhase
from headrace.platform.cluster.worker_exit import is_exit_line
from headrace.platform.cluster.worker_files import container_log
from headrace.platform.control.model.component import ComponentRecord, is_component
from headrace.platform.control.model.endpoint import JOB_ENDPOINT, EndpointRecord
from headrace.platform.control.model.jobs import job_of_endpoint
from headrace.platform.control.model.names import COMPONENT_LOG_PREFIX, ENDPOINT_LOG_PREFIX, JOB_LOG_GROUPS
from headrace.platform.control.model.resources import Resources, read_requirements
from headrace.platform.state.records import Json, Kind, Record, RecordPart

FleetKey = tuple[str, int]
"""Variant and revision."""
_NUMBERS: Final = re.compile(r"[\d.]+")
_MAX_REASON_CHARACTERS = 1024
"""Maximum length of a `FailureReason`."""
_PING_FAILED = (
    "The {container} for production variant {variant} did not pass the ping health check. "
    "Please check CloudWatch logs for this endpoint."
)
_NO_ROOM = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
_DOWNLOAD_FAILED = (
    "Failed to download model data for the {container} of production variant {variant}. "
    "Please ensure that there is an object at the location of the model and that it can be read."
)


class CopySpec(RecordPart, frozen=True, kw_only=True):
    """The inference component that a worker is a copy of, and the instance on which the copy is placed."""

    component: str
    component_uid: str
    instance: str
    """Id of the virtual instance."""
    requirements: Json
    """`ComputeResourceRequirements` of its revision."""

    @property
    def need(self) -> Resources:
        return read_requirements(self.requirements)


class ReplicaSpec(RecordPart, frozen=True, kw_only=True):
    """The purpose of a worker; fixed when its record is created."""

    endpoint: str
    endpoint_uid: str
    variant: str
    revision: int
    log_group: str
    log_stream: str
    copy: CopySpec | None = None
    """None for a worker of the endpoint's own model."""
    containers: list[str] = msgspec.field(default_factory=list)
    """Names of the containers that it runs, each with a log of its own; empty for a model with one container."""

    def __post_init__(self) -> None:
        """Refuse malformed requirements."""
        _ = self.copy is not None and self.copy.need

    @property
    def fleet(self) -> FleetKey:
        return self.variant, self.revision

    def logs(self, worker: str) -> dict[str, str]:
        """Return the log streams of the worker and of its containers, by the names of their logs."""
        return {worker: self.log_stream} | {
            container_log(worker, container): f"{self.log_stream}/{container}" for container in self.containers
        }


class AdapterState(RecordPart, frozen=True, kw_only=True):
    """An adapter in a worker, as the platform loaded it last."""

    loaded: str = ""
    """The loaded version; empty if none is."""
    failed: str = ""
    """The version that last failed to load; empty if none has failed since the last success."""
    failed_s: float = 0.0
    """Time of that failure."""
    failure: str = ""
    """Text of that failure."""
    is_permanent: bool = False
    """True if another attempt would fail for the same reason."""


class ReplicaStatus(RecordPart, frozen=True, kw_only=True):
    handle: Handle | None = None
    """The launcher's handle of its process; None before it was started."""
    phase: WorkerPhase | None = None
    """None before it was started."""
    phase_since_s: float | None = None
    ready_s: float | None = None
    """Time at which it was first ready."""
    stopping_s: float | None = None
    """Time at which it was told to stop."""
    failed_s: float | None = None
    """Time at which it was lost or given up."""
    failure: str = ""
    """Text of the failure, as a FailureReason."""
    waiting: str = ""
    """Reason why it cannot be started yet."""
    is_permanent: bool = False
    """True if another worker would fail for the same reason."""
    notices: list[str] = msgspec.field(default_factory=list)
    """Settings that could not be honoured."""
    placement: str = ""
    """Sentence with the GPUs that it runs on; empty: none."""
    container: str = ""
    """Which of several containers is not ready, or has ended the worker; empty: none, or there is one container."""
    adapters: dict[str, AdapterState] = msgspec.field(default_factory=dict)
    """Adapters that were loaded into it, or could not be, by the name of their inference component."""


WorkerRecord = Record[ReplicaSpec, ReplicaStatus]


def _with_containers(spec: Json, status: Json) -> tuple[Json, Json]:
    """Version 2 -> 3: `containers` and `container`."""
    return spec, status


def _with_certificates(spec: Json, status: Json) -> tuple[Json, Json]:
    """Version 3 -> 4: URLs that name a certificate, by which an older member would not reach the worker."""
    return spec, status


WORKER: Final = Kind("worker", ReplicaSpec, ReplicaStatus, oldest=2, migrations=(_with_containers, _with_certificates))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as the planners see it; see `ReplicaStatus` for what is not described here."""

    name: str
    variant: str
    revision: int
    created_s: float
    phase: WorkerPhase | None = None
    phase_since_s: float = 0.0
    url: str = ""
    token: str = field(default="", repr=False)
    """Bearer token that the worker requires; empty for none."""
    ready_s: float | None = None
    draining_s: float | None = None
    """Time at which it stopped getting requests."""
    stopping_s: float | None = None
    failed_s: float | None = None
    failure: str = ""
    waiting: str = ""
    is_permanent: bool = False
    num_requests: int = 0
    """Known requests in flight."""
    is_leaving: bool = False
    """True while its instance is being emptied: it is stopped once another copy serves in its place."""
    adapters: Mapping[str, AdapterState] = field(default_factory=dict)

    @property
    def fleet(self) -> FleetKey:
        return self.variant, self.revision

    @property
    def is_wanted(self) -> bool:
        """True while it serves or is starting."""
        return self.draining_s is None and self.failed_s is None and self.phase is not WorkerPhase.EXITED

    @property
    def can_serve(self) -> bool:
        """True while it accepts requests."""
        return self.is_wanted and self.phase is WorkerPhase.READY

    @property
    def is_gone(self) -> bool:
        """True once its process has ended."""
        return self.phase is WorkerPhase.EXITED


def replica_spec(
    owner: EndpointRecord | ComponentRecord, fleet: FleetKey, instance_id: str, *, placed_on: str
) -> ReplicaSpec:
    """Return the spec of a worker of an endpoint's own model, or of a copy of an inference component."""
    variant, number = fleet
    endpoint, endpoint_uid, log_group, copy = owner.name, owner.uid, ENDPOINT_LOG_PREFIX + owner.name, None
    latest = owner.spec.revision
    workload = (latest if latest.number == number else owner.status.revisions[number]).workload(variant)
    log_stream = f"{variant}/{instance_id}"
    if owner.kind is JOB_ENDPOINT:
        kind_name, job = job_of_endpoint(owner.name)
        log_group = next(group for kind, group in JOB_LOG_GROUPS.items() if kind.name == kind_name)
        log_stream = f"{job}/{instance_id}-{int(owner.created_s)}"
    if is_component(owner):
        revision = owner.spec.revision if owner.spec.revision.number == number else owner.status.revisions[number]
        endpoint, endpoint_uid = owner.spec.endpoint, owner.spec.endpoint_uid
        log_group = COMPONENT_LOG_PREFIX + owner.name
        requirements = revision.specification.get("ComputeResourceRequirements") or {}
        copy = CopySpec(component=owner.name, component_uid=owner.uid, instance=placed_on, requirements=requirements)
    return ReplicaSpec(
        endpoint=endpoint,
        endpoint_uid=endpoint_uid,
        variant=variant,
        revision=number,
        log_group=log_group,
        log_stream=log_stream,
        copy=copy,
        containers=list(workload.containers) if workload is not None else [],
    )


def view_worker(record: WorkerRecord, *, num_requests: int = 0) -> WorkerView:
    """Return a worker as the planners see it, with `num_requests` in flight."""
    status, handle = record.status, record.status.handle
    return WorkerView(
        name=record.name,
        variant=record.spec.variant,
        revision=record.spec.revision,
        created_s=record.created_s,
        phase=status.phase,
        phase_since_s=record.created_s if status.phase_since_s is None else status.phase_since_s,
        url=handle.url if handle is not None else "",
        token=handle.token if handle is not None else "",
        ready_s=status.ready_s,
        draining_s=record.deleting_s,
        stopping_s=status.stopping_s,
        failed_s=status.failed_s,
        failure=status.failure,
        waiting=status.waiting,
        is_permanent=status.is_permanent,
        num_requests=num_requests,
        adapters=status.adapters,
    )


def notices_of(records: Sequence[WorkerRecord]) -> dict[str, list[str]]:
    """Return the notices of wanted workers by variant."""
    notices: dict[str, list[str]] = {}
    for record in records:
        if record.deleting_s is None:
            texts = notices.setdefault(record.spec.variant, [])
            texts.extend(text for text in record.status.notices if text not in texts)
    return notices


def placements_of(records: Sequence[WorkerRecord]) -> dict[str, list[str]]:
    """Return the sentences about lost workers, the GPUs of wanted ones, and why workers wait, by variant."""
    placements = restarts_of(records)
    for record in records:
        found = [text for text in (record.status.placement, record.status.waiting) if text]
        if record.deleting_s is None and record.status.failed_s is None and found:
            texts = placements.setdefault(record.spec.variant, [])
            texts.extend(text for text in found if text not in texts)
    return placements


def restarts_of(records: Sequence[WorkerRecord]) -> dict[str, list[str]]:
    """Return a sentence by variant about workers that were lost after they were ready; the newest records are kept."""
    lost: dict[str, list[WorkerRecord]] = {}
    for record in records:
        if record.status.failed_s is not None and record.status.ready_s is not None:
            lost.setdefault(record.spec.variant, []).append(record)
    sentences = {}
    for variant, workers in lost.items():
        last = max(workers, key=lambda record: record.status.failed_s or 0.0)
        at = datetime.fromtimestamp(last.status.failed_s or 0.0, UTC)
        count = "1 restart" if len(workers) == 1 else f"{len(workers)} restarts"
        stream = last.spec.log_stream
        sentences[variant] = [f"{count} of workers, the last at {at:%Y-%m-%d %H:%M:%S} UTC after log stream {stream}."]
    return sentences


def waiting_status(status: ReplicaStatus, *, why: str) -> ReplicaStatus:
    """Return the status of a worker that waits for its start; keep the old reason if only its numbers have changed."""
    is_same = _NUMBERS.sub("", why) == _NUMBERS.sub("", status.waiting)
    return status if is_same else replace(status, waiting=why)


def launched_status(status: ReplicaStatus, handle: Handle, *, notices: Sequence[str], now_s: float) -> ReplicaStatus:
    """Return the status after the launcher has started the worker, or found it running."""
    return replace(
        status,
        handle=handle,
        phase=WorkerPhase.FETCHING,
        phase_since_s=now_s,
        notices=list(notices),
        waiting="",
    )


def observed_status(status: ReplicaStatus, seen: Observation, *, now_s: float) -> ReplicaStatus:
    """Return the status after an observation; the same object if nothing has changed."""
    if seen.phase is not status.phase:
        status = replace(status, phase=seen.phase, phase_since_s=now_s)
    if seen.phase is WorkerPhase.READY and status.ready_s is None:
        status = replace(status, ready_s=now_s)
    if seen.placement and seen.placement != status.placement:
        status = replace(status, placement=seen.placement)
    if seen.container != status.container:
        status = replace(status, container=seen.container)
    notices = list(dict.fromkeys([*status.notices, *seen.notices]))
    return replace(status, notices=notices) if notices != status.notices else status


def worker_failure(
    record: WorkerRecord,
    *,
    why: str,
    ended_in: WorkerPhase | None,
    lacks_room: bool,
    log_tail: Sequence[str],
    container: str = "",
) -> str:
    """Return the FailureReason of a worker that was lost or given up, in the phase `ended_in`, for a `container`."""
    was_fetching = ended_in is WorkerPhase.FETCHING
    template = _NO_ROOM if lacks_room else _DOWNLOAD_FAILED if was_fetching else _PING_FAILED
    stream = record.spec.logs(record.name)[failed_log(record.name, container)]
    opening = template.format(variant=record.spec.variant, container=container or "primary container")
    return failure_text(opening, why=why, log=f"{record.spec.log_group}, stream {stream}", log_tail=log_tail)


def failed_log(worker: str, container: str) -> str:
    """Return the name of the log of a failed worker, or of its container that failed."""
    return container_log(worker, container) if container else worker


def failure_text(opening: str, *, why: str, log: str, log_tail: Sequence[str]) -> str:
    """Return AWS's sentence, our reason, the name of the log, and as many of its newest lines as fit."""
    text = f"{opening} Reason: {why}" if why else opening
    title, colon = f"\nIts log ({log})", " ends with:"
    text = _cut(text, _MAX_REASON_CHARACTERS - len(title) - len(colon)) + title
    lines: list[str] = []
    room = _MAX_REASON_CHARACTERS - len(text) - len(colon)
    for line in reversed([_printed(text) for text in log_tail if text.strip() and not is_exit_line(text)]):
        short = _cut(line, 300)
        if len(short) + 1 > room:
            break
        room -= len(short) + 1
        lines.insert(0, short)
    return "\n".join([f"{text}{colon}", *lines]) if lines else f"{text}."


def _printed(line: str) -> str:
    """Return the line that a worker's program printed, taken out of the log event that contains it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return line.strip()
    return str(event["line"]).strip() if isinstance(event, dict) and "line" in event else line.strip()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
