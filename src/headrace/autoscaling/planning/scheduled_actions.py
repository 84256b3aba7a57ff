"""Records of scheduled actions. Pure."""

from typing import Final

import msgspec

from headrace.autoscaling.planning.schedule import Schedule, Window, parse
from headrace.autoscaling.planning.targets import TargetMembers, child_arn
from headrace.state.records import Kind, Record, RecordPart
from headrace.wire.aws.scope import AwsScope


class CapacityBounds(RecordPart, frozen=True, kw_only=True, rename="pascal"):
    """The bounds that a scheduled action sets; None leaves one as it is."""

    min_capacity: int | None = None
    max_capacity: int | None = None


class ScheduledActionSpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    """A scheduled action as it was put."""

    scheduled_action_name: str
    schedule: str
    timezone: str | None = None
    start_time: float | None = None
    """Seconds since 1970, as `end_time`."""
    end_time: float | None = None
    scalable_target_action: CapacityBounds
    put_s: float = msgspec.field(name="put_s")
    """When it was put last; its schedule counts from then."""

    def __post_init__(self) -> None:
        """Check the schedule; a ValueError makes the record unreadable."""
        super().__post_init__()
        _ = self.parsed_schedule

    @property
    def parsed_schedule(self) -> Schedule:
        """The times at which the action runs."""
        return parse(self.schedule, self.timezone)

    @property
    def window(self) -> Window:
        """The time in which the schedule is in force."""
        return Window(created_s=self.put_s, start_s=self.start_time, end_s=self.end_time)


class ScheduledActionStatus(RecordPart, frozen=True, kw_only=True):
    """When a scheduled action ran."""

    ran_s: float = 0.0
    """The time of its schedule at which it ran last; seconds since 1970."""


SCHEDULED_ACTION: Final = Kind("scheduled-action", ScheduledActionSpec, ScheduledActionStatus)

ScheduledActionRecord = Record[ScheduledActionSpec, ScheduledActionStatus]


def scheduled_action_arn(aws_scope: AwsScope, record: ScheduledActionRecord) -> str:
    """Return the ARN of a scheduled action."""
    spec = record.spec
    return child_arn(
        aws_scope,
        record,
        spec.key,
        kind="scheduledAction",
        title="scheduledActionName",
        name=spec.scheduled_action_name,
    )
