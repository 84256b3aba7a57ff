"""
Jobs: work that begins, ends and leaves nothing running. One form of record, and the kinds that need no other.

The API writes what is requested, and the loop of `platform.jobs` what became of it.
"""

from typing import Any, Final, Literal

import msgspec

from headrace.platform.control.model.definitions import DefinitionSpec
from headrace.platform.state.records import AnyKind, Json, Kind, NoStatus, Record, RecordPart, Unreadable
from headrace.platform.state.routes import INTERNAL

JobState = Literal["InProgress", "Completed", "Failed", "Stopping", "Stopped"]
ENDED: Final[frozenset[JobState]] = frozenset({"Completed", "Failed", "Stopped"})


class JobSpec(RecordPart, frozen=True, kw_only=True):
    members: Json
    """The Create operation's members."""
    stop_requested_s: float | None = None


class JobStatus(RecordPart, frozen=True, kw_only=True):
    state: JobState = "InProgress"
    started_s: float | None = None
    ended_s: float | None = None
    failure_reason: str = ""


class ResolvedJobSpec(JobSpec, frozen=True, kw_only=True):
    resolved: Json = msgspec.field(default_factory=dict)
    """What the members name, copied when the job was created: a model, a workload."""


class JobResult(JobStatus, frozen=True, kw_only=True):
    result: Json = msgspec.field(default_factory=dict)
    """Results so far, which a job that goes on after a restart continues."""


AnyJob = Record[Any, Any]
"""A job of any kind: its spec is a `JobSpec`, its status a `JobStatus`."""
OPTIMIZATION_JOB: Final = Kind("optimization-job", ResolvedJobSpec, JobResult)
RECOMMENDATIONS_JOB: Final = Kind("inference-recommendations-job", ResolvedJobSpec, JobResult)
AI_BENCHMARK_JOB: Final = Kind("ai-benchmark-job", ResolvedJobSpec, JobResult)
AI_WORKLOAD_CONFIG: Final = Kind("ai-workload-config", DefinitionSpec, NoStatus)


def visible_job_state(record: AnyJob | Unreadable) -> JobState:
    """Return the state to show: a stop is visible before it has been acted on."""
    if isinstance(record, Unreadable):
        return "Failed"
    state: JobState = record.status.state
    is_stopping = record.spec.stop_requested_s is not None and state not in ENDED
    return "Stopping" if is_stopping else state


def job_endpoint_name(job: str, kind: AnyKind | None = None, number: int = 0) -> str:
    """
    Return the name of a job's workers in records and routes, which no endpoint of a user can have.

    Without a kind it is a transform job; other jobs number theirs.
    """
    return f"{INTERNAL}{job}" if kind is None else f"{INTERNAL}{kind.name}.{job}.{number}"


def job_of_endpoint(endpoint: str) -> tuple[str, str]:
    """Return the name of the kind, and of the job, that workers belong to: names of jobs have no dot."""
    kind, *rest = endpoint.removeprefix(INTERNAL).split(".")
    return (kind, rest[0]) if rest else ("transform-job", kind)
