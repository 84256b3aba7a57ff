"""
Scaling activities: what was done, and what was not, in AWS's words. The records are bounded in number and age.

Source of the texts: Application Auto Scaling user guide, "Scaling activities", and answers that users have published.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from headrace.platform.autoscaling.planning.decision import Scaling
from headrace.platform.autoscaling.planning.targets import NAMESPACE, CapacityBounds, TargetKey, TargetMembers
from headrace.platform.state.records import Conflict, Json, Kind, NoStatus, Record
from headrace.platform.state.store import Store

StatusCode = Literal["Pending", "InProgress", "Successful", "Overridden", "Unfulfilled", "Failed"]

MAX_PER_TARGET = 1000
MAX_AGE_S = 42 * 86_400
"""Six weeks. Source: API reference, DescribeScalingActivities."""
RETRY_S = 60.0
"""Seconds before a capacity that was not available is requested again."""
NOT_SCALED = "Attempting to scale due to alarm triggered"


class ActivitySpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    """A scaling activity, under the names of AWS's `ScalingActivity`."""

    activity_id: str
    description: str
    cause: str
    start_time: float
    """Seconds since 1970, like `end_time`."""
    end_time: float | None = None
    status_code: StatusCode
    status_message: str | None = None
    details: str | None = None
    not_scaled_reasons: list[Json] | None = None
    capacity: int | None = msgspec.field(default=None, name="capacity")
    """The capacity that was requested; None if none was."""
    previous: int | None = msgspec.field(default=None, name="previous")
    """The desired capacity before."""
    scaling: Scaling | None = msgspec.field(default=None, name="scaling")
    """Becomes the target's last scaling when the activity ends."""

    @property
    def is_in_progress(self) -> bool:
        return self.status_code in ("Pending", "InProgress")


SCALING_ACTIVITY: Final = Kind("scaling-activity", ActivitySpec, NoStatus)

ActivityRecord = Record[ActivitySpec, NoStatus]


_ENDS: Final[dict[StatusCode, str]] = {
    "Successful": "Successfully set {subject}. Change successfully fulfilled by {service}.",
    "Overridden": "The desired capacity was updated by a newer scaling event.",
    "Unfulfilled": "Failed to set {subject}: {service} could not fulfil the change and took it back.",
    "Failed": "Failed to set {subject}. Reason: {reason}",
}
"""The messages of activities that have ended: in service, superseded, not available, not even requested."""


@dataclass(frozen=True, slots=True)
class ActivityLog:
    """Writes the activities of one target at one time."""

    store: Store
    key: TargetKey
    now_s: float

    def begin(
        self, capacity: int, *, cause: str, previous: int | None = None, scaling: Scaling | None = None
    ) -> ActivityRecord:
        """Record that a capacity is about to be requested."""
        return self._create(
            cause=cause,
            description=f"Setting {self.key.quantity} to {capacity}.",
            status_code="Pending",
            capacity=capacity,
            previous=previous,
            scaling=scaling,
        )

    def mark_requested(self, record: ActivityRecord) -> ActivityRecord:
        text = f"Successfully set {_subject(record)}. Waiting for change to be fulfilled by {NAMESPACE}."
        spec = msgspec.structs.replace(record.spec, status_code="InProgress", status_message=text)
        return self.store.update(record, spec=spec)

    def end(self, record: ActivityRecord, code: StatusCode, *, details: str = "", reason: str = "") -> None:
        text = _ENDS[code].format(subject=_subject(record), service=NAMESPACE, reason=reason)
        spec = msgspec.structs.replace(
            record.spec, status_code=code, status_message=text, end_time=self.now_s, details=details or None
        )
        self.store.update(record, spec=spec)

    def note_bounds(self, name: str, bounds: CapacityBounds) -> None:
        """Record that the scheduled action of this name has set bounds."""
        changes = (("min capacity", bounds.min_capacity), ("max capacity", bounds.max_capacity))
        text = " and ".join(f"{bound} to {value}" for bound, value in changes if value is not None)
        self._create(
            cause=f"scheduled action name {name} was triggered",
            end_time=self.now_s,
            description=f"Setting {text}",
            status_message=f"Successfully set {text}",
            status_code="Successful",
        )

    def note_not_scaled(self, reason: Json, *, cause: str) -> None:
        self._create(cause=cause, description=NOT_SCALED, status_code="Failed", not_scaled_reasons=[reason])

    def _create(self, **members: Any) -> ActivityRecord:
        name, key = str(uuid.uuid4()), self.key
        spec = ActivitySpec(
            activity_id=name,
            resource_id=key.resource_id,
            scalable_dimension=key.dimension,
            start_time=self.now_s,
            **members,
        )
        return self.store.create(SCALING_ACTIVITY, name, spec=spec)


def _subject(record: ActivityRecord) -> str:
    return f"{record.spec.key.quantity} to {record.spec.capacity}"


def drop_old(store: Store, records: Sequence[ActivityRecord], *, now_s: float) -> None:
    """Remove the ended activities of one target that are too old or too many."""
    newest_first = sorted(records, key=lambda record: (record.created_s, record.name), reverse=True)
    for number, record in enumerate(newest_first):
        is_old = number >= MAX_PER_TARGET or record.spec.start_time < now_s - MAX_AGE_S
        if is_old and not record.spec.is_in_progress:
            with suppress(Conflict):
                store.remove(record)


def unavailable_capacity(records: Sequence[ActivityRecord], *, now_s: float) -> int | None:
    """Return the capacity that the newest request of a target did not get within the last `RETRY_S`."""
    newest = next((record.spec for record in reversed(records) if record.spec.capacity is not None), None)
    if newest is None or newest.status_code not in ("Failed", "Unfulfilled") or newest.end_time is None:
        return None
    return newest.capacity if now_s < newest.end_time + RETRY_S else None
