"""
The operations that all kinds of jobs share: describe, list, stop and delete.

Jobs are only written here; the loop of `platform.jobs` reads them from the store and runs them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from headrace.platform.control.api.context import CallContext, list_page
from headrace.platform.control.model.jobs import ENDED, AnyJob, JobState, visible_job_state
from headrace.platform.control.model.names import TITLES, unreadable_message
from headrace.platform.state.records import AnyKind, Json, Record, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error

IN_CAPITALS: Final[Mapping[JobState, str]] = {
    "InProgress": "INPROGRESS",
    "Completed": "COMPLETED",
    "Failed": "FAILED",
    "Stopping": "STOPPING",
    "Stopped": "STOPPED",
}


def _no_more(_record: AnyJob) -> Json:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCalls:
    """The operations of one kind of job, in AWS's terms."""

    kind: AnyKind
    name_member: str
    """Such as `TransformJobName`; AWS forms other members from the word before `Name`: `TransformJobArn`."""
    list_member: str
    status_member: str = ""
    """Where it is not `<word>Status`."""
    times: tuple[str, str]
    """Members for the times of start and end; an empty one is not shown."""
    states: Mapping[JobState, str] = field(default_factory=dict)
    """AWS's words for states, where they differ."""
    state_before_start: str = ""
    result: Callable[[AnyJob], Json] = _no_more
    """Returns the members of a description that the job has found."""
    summary: Callable[[AnyJob], Json] = _no_more
    """Returns further members of a list's row."""
    absent_code: str = "ResourceNotFound"

    @property
    def word(self) -> str:
        return self.name_member.removesuffix("Name")

    def create(self, context: CallContext, params: Json, *, spec: object) -> Json:
        """Add a job; refuse a name that is taken, in AWS's words."""
        name = params[self.name_member]
        context.refuse_existing(self.kind, name)
        return {f"{self.word}Arn": context.create(self.kind, name, spec=spec, params=params)}

    def describe(self, context: CallContext, params: Json) -> Json:
        record = self.find_readable(context, params)
        shown = {**record.spec.members, **self._facts(context, record), **self.result(record)}
        if self.times[0] and record.status.started_s is not None:
            shown[self.times[0]] = record.status.started_s
        if tags := record.tags:
            shown["Tags"] = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
        return shown

    def list(self, context: CallContext, params: Json) -> Json:

        def read(selection: Selection) -> Iterator[Json]:
            for record in context.store.each(self.kind, selection):
                more = {} if isinstance(record, Unreadable) else self.summary(record)
                yield {**more, **self._facts(context, record)}

        return list_page(read, params, word=self.word, member=self.list_member, status=self._status_member)

    def stop(self, context: CallContext, params: Json) -> Json:
        record = self.find_readable(context, params)
        if record.status.state in ENDED:
            raise validation_error(
                f"The request was rejected because the {TITLES[self.kind]} is in status {self._shown_state(record)}."
            )
        if record.spec.stop_requested_s is None:
            context.store.update(record, spec=replace(record.spec, stop_requested_s=context.now_s))
        return {f"{self.word}Arn": context.arn(self.kind, record.name)}

    def delete(self, context: CallContext, params: Json) -> Json:
        """Remove a job that has ended; one that runs must be stopped first."""
        record = self._find(context, params)
        if isinstance(record, Record) and record.status.state not in ENDED:
            raise validation_error(
                f"The {TITLES[self.kind]} is in status {self._shown_state(record)}. Stop it, and delete it once it "
                "has ended."
            )
        context.store.remove(record)
        return {f"{self.word}Arn": context.arn(self.kind, record.name)}

    @property
    def _status_member(self) -> str:
        return self.status_member or f"{self.word}Status"

    def _find(self, context: CallContext, params: Json) -> AnyJob | Unreadable:
        name = params[self.name_member]
        record = context.store.find(self.kind, name)
        if record is None:
            raise AwsError(self.absent_code, f'Could not find {TITLES[self.kind]} "{context.arn(self.kind, name)}".')
        return record

    def find_readable(self, context: CallContext, params: Json) -> AnyJob:
        record = self._find(context, params)
        if isinstance(record, Unreadable):
            raise validation_error(unreadable_message(record))
        return record

    def _shown_state(self, record: AnyJob | Unreadable) -> str:
        state = visible_job_state(record)
        is_waiting = state == "InProgress" and isinstance(record, Record) and record.status.started_s is None
        if is_waiting and self.state_before_start:
            return self.state_before_start
        return self.states.get(state, state)

    def _facts(self, context: CallContext, record: AnyJob | Unreadable) -> Json:
        """Return the members that Describe and List share."""
        facts: Json = {
            self.name_member: record.name,
            f"{self.word}Arn": context.arn(self.kind, record.name),
            "CreationTime": record.created_s,
            "LastModifiedTime": record.modified_s,
            self._status_member: self._shown_state(record),
        }
        if isinstance(record, Unreadable):
            return {**facts, "FailureReason": unreadable_message(record)}
        if record.status.ended_s is not None:
            facts[self.times[1]] = record.status.ended_s
        if record.status.failure_reason:
            facts["FailureReason"] = record.status.failure_reason
        return facts
