"""A worker's record: what is written when it is made, seen, given up and told to stop; and how the planner reads it."""

from collections.abc import Sequence

import msgspec

from headrace.cluster.launcher import Handle, Observation, WorkerPhase
from headrace.control.model.fleet import WorkerView
from headrace.control.model.names import component_log_group_of, log_group_of, log_stream_of
from headrace.control.model.progress import EndpointView
from headrace.control.model.version import read_version
from headrace.state.records import Json, RawRecord

_MAX_REASON_CHARACTERS = 1024
"""Of `FailureReason`."""
_PING_FAILED = (
    "The primary container for production variant {variant} did not pass the ping health check. "
    "Please check CloudWatch logs for this endpoint."
)
_NO_ROOM = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
_DOWNLOAD_FAILED = (
    "Failed to download model data for the primary container of production variant {variant}. "
    "Please ensure that there is an object at the location of the model and that it can be read."
)


def worker_spec_json(endpoint: EndpointView, *, variant: str, generation: int, instance_id: str) -> Json:
    """What the record of a variant's worker says from the beginning."""
    return {
        "endpoint": endpoint.name,
        "endpoint_uid": endpoint.uid,
        "variant": variant,
        "generation": generation,
        "log_group": log_group_of(endpoint.name),
        "log_stream": log_stream_of(variant, instance_id),
    }


def copy_spec_json(component: RawRecord, *, variant: str, generation: int, copy_id: str, instance: str) -> Json:
    """What the record of a component's copy says from the beginning; what it needs stands in its version."""
    version = read_version(component.spec["version"])
    if version.generation != generation:
        version = read_version(component.status["versions"][str(generation)])
    return {
        "endpoint": component.spec["endpoint"],
        "endpoint_uid": component.spec["endpoint_uid"],
        "variant": variant,
        "generation": generation,
        "component": component.name,
        "component_uid": component.uid,
        "instance": instance,
        "requirements": version.raw["config"]["Specification"].get("ComputeResourceRequirements") or {},
        "log_group": component_log_group_of(component.name),
        "log_stream": log_stream_of(variant, copy_id),
    }


def view_worker(record: RawRecord, *, num_requests: int = 0) -> WorkerView:
    """Read a worker's record; `num_requests` are running on it."""
    status = record.status
    phase, handle = status.get("phase"), handle_of(record)
    return WorkerView(
        name=record.name,
        variant=record.spec["variant"],
        generation=record.spec["generation"],
        created_s=record.created_s,
        phase=WorkerPhase(phase) if phase is not None else None,
        phase_since_s=status.get("phase_since_s", record.created_s),
        url=handle.url if handle is not None else "",
        token=handle.token if handle is not None else "",
        ready_s=status.get("ready_s"),
        draining_s=record.deleting_s,
        stopping_s=status.get("stopping_s"),
        failed_s=status.get("failed_s"),
        failure=status.get("failure", ""),
        waiting=status.get("waiting", ""),
        is_permanent=status.get("is_permanent", False),
        num_requests=num_requests,
    )


def handle_of(record: RawRecord) -> Handle | None:
    """How to find the worker's process; None before it was started."""
    handle = record.status.get("handle")
    return msgspec.convert(handle, Handle) if handle is not None else None


def notices_of(records: Sequence[RawRecord]) -> dict[str, list[str]]:
    """What could not be honoured for the workers that are wanted, and what they wait for, by variant."""
    notices: dict[str, list[str]] = {}
    for record in records:
        if record.deleting_s is None:
            texts = notices.setdefault(record.spec["variant"], [])
            said = [*record.status.get("notices", []), *filter(None, [record.status.get("waiting")])]
            texts.extend(text for text in said if text not in texts)
    return notices


def waiting_status(record: RawRecord, *, why: str) -> Json:
    """Status while the launcher cannot start the worker yet: the first reason stays, as its numbers change always."""
    return {**record.status, "waiting": record.status.get("waiting", why)}


def given_up_status(record: RawRecord, *, now_s: float) -> Json:
    """Status of a worker that is given up: one that was never started has ended with it."""
    if handle_of(record) is not None:
        return dict(record.status)
    return {**record.status, "phase": WorkerPhase.EXITED.value, "phase_since_s": now_s}


def launched_status(record: RawRecord, handle: Handle, *, notices: Sequence[str], now_s: float) -> Json:
    """Status after the launcher has started the worker, or has found it alive."""
    before = {name: value for name, value in record.status.items() if name != "waiting"}
    return {
        **before,
        "handle": msgspec.to_builtins(handle),
        "phase": WorkerPhase.FETCHING.value,
        "phase_since_s": now_s,
        "notices": list(notices),
    }


def observed_status(record: RawRecord, seen: Observation, *, now_s: float) -> Json:
    """Status after a look at the worker: the same as before if nothing has changed."""
    status = dict(record.status)
    if seen.phase.value != status.get("phase"):
        status |= {"phase": seen.phase.value, "phase_since_s": now_s}
    if seen.phase is WorkerPhase.READY and "ready_s" not in status:
        status["ready_s"] = now_s
    notices = list(dict.fromkeys([*status.get("notices", []), *seen.notices]))
    return {**status, "notices": notices} if notices != status.get("notices", []) else status


def failed_status(
    record: RawRecord,
    status: Json,
    *,
    now_s: float,
    why: str,
    is_permanent: bool,
    was_fetching: bool,
    lacks_room: bool,
    log_tail: Sequence[str],
) -> Json:
    """Status after the worker was lost or given up; `why` is a few words, or what the worker said itself."""
    template = _NO_ROOM if lacks_room else _DOWNLOAD_FAILED if was_fetching else _PING_FAILED
    reason = failure_text(template.format(variant=record.spec["variant"]), why=why, log_tail=log_tail)
    return {**status, "failed_s": now_s, "failure": reason, "is_permanent": is_permanent}


def failure_text(opening: str, *, why: str, log_tail: Sequence[str]) -> str:
    """AWS's sentence, our reason, and as many of the last lines of the log as fit, the newest kept."""
    text = f"{opening} Reason: {why}" if why else opening
    text = _cut(text, _MAX_REASON_CHARACTERS)
    lines: list[str] = []
    room = _MAX_REASON_CHARACTERS - len(text) - len("\nLast lines of its log:")
    for line in reversed([one.strip() for one in log_tail if one.strip()]):
        short = _cut(line, 300)
        if len(short) + 1 > room:
            break
        room -= len(short) + 1
        lines.insert(0, short)
    return "\n".join([f"{text}\nLast lines of its log:", *lines]) if lines else text


def exit_words(seen: Observation) -> str:
    """Why a worker ended, as far as can be known."""
    if seen.message:
        return seen.message
    if seen.exit_code is None:
        return "it ended, and left no exit status."
    if seen.exit_code < 0:
        return f"it was ended by signal {-seen.exit_code}."
    return f"it ended with exit status {seen.exit_code}."


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
