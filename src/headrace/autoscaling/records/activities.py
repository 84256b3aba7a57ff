"""
Scaling activities: what was done, and what was not, in AWS's words. The records are bounded in number and age.

Source of the texts: Application Auto Scaling user guide, "Scaling activities", and answers that users have published.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from headrace.autoscaling.planning.decision import Scaling
from headrace.autoscaling.planning.targets import NAMESPACE, CapacityBounds, TargetKey, TargetMembers
from headrace.state.records import Conflict, Json, Kind, NoStatus, Record
from headrace.state.store import Store

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
        """True until the activity ends."""
        return self.status_code in ("Pending", "InProgress")


SCALING_ACTIVITY: Final = Kind("scaling-activity", ActivitySpec, NoStatus)

ActivityRecord = Record[ActivitySpec, NoStatus]


def alarm_cause(alarm: str, policy: str, state: str = "ALARM") -> str:
    """Return the cause of a scaling by a policy."""
    return f"monitor alarm {alarm} in state {state} triggered policy {policy}"


def scheduled_cause(name: str) -> str:
    """Return the cause of a change by a scheduled action."""
    return f"scheduled action name {name} was triggered"


def bound_cause(capacity: int, *, is_minimum: bool) -> str:
    """Return the cause of a scaling into new bounds."""
    return f"{'minimum' if is_minimum else 'maximum'} capacity was set to {capacity}"


def begin(
    store: Store,
    key: TargetKey,
    capacity: int,
    *,
    cause: str,
    now_s: float,
    previous: int | None = None,
    scaling: Scaling | None = None,
) -> ActivityRecord:
    """Record that a capacity is about to be requested."""
    return _create(
        store,
        key,
        cause=cause,
        start_time=now_s,
        description=f"Setting {key.quantity} to {capacity}.",
        status_code="Pending",
        capacity=capacity,
        previous=previous,
        scaling=scaling,
    )


def mark_requested(store: Store, record: ActivityRecord) -> ActivityRecord:
    """Record that the capacity was requested."""
    text = f"Successfully set {_subject(record)}. Waiting for change to be fulfilled by {NAMESPACE}."
    spec = msgspec.structs.replace(record.spec, status_code="InProgress", status_message=text)
    return store.update(record, spec=spec)


def mark_fulfilled(store: Store, record: ActivityRecord, *, now_s: float, details: str = "") -> ActivityRecord:
    """Record that the capacity is in service."""
    text = f"Successfully set {_subject(record)}. Change successfully fulfilled by {NAMESPACE}."
    return _end(store, record, "Successful", text, now_s, details)


def mark_overridden(store: Store, record: ActivityRecord, *, now_s: float) -> ActivityRecord:
    """Record that another capacity was requested before this one was in service."""
    return _end(store, record, "Overridden", "The desired capacity was updated by a newer scaling event.", now_s)


def mark_unfulfilled(store: Store, record: ActivityRecord, *, now_s: float, details: str = "") -> ActivityRecord:
    """Record that the capacity was not available."""
    text = f"Failed to set {_subject(record)}: {NAMESPACE} could not fulfil the change and took it back."
    return _end(store, record, "Unfulfilled", text, now_s, details)


def mark_failed(store: Store, record: ActivityRecord, reason: str, *, now_s: float) -> ActivityRecord:
    """Record that the capacity could not be requested."""
    return _end(store, record, "Failed", f"Failed to set {_subject(record)}. Reason: {reason}", now_s)


def note_bounds(store: Store, key: TargetKey, bounds: CapacityBounds, *, cause: str, now_s: float) -> ActivityRecord:
    """Record that a scheduled action has set bounds."""
    changes = (("min capacity", bounds.min_capacity), ("max capacity", bounds.max_capacity))
    text = " and ".join(f"{name} to {value}" for name, value in changes if value is not None)
    return _create(
        store,
        key,
        cause=cause,
        start_time=now_s,
        end_time=now_s,
        description=f"Setting {text}",
        status_message=f"Successfully set {text}",
        status_code="Successful",
    )


def note_not_scaled(store: Store, key: TargetKey, reason: Json, *, cause: str, now_s: float) -> ActivityRecord:
    """Record that a triggered policy changed nothing, and why."""
    return _create(
        store,
        key,
        cause=cause,
        start_time=now_s,
        description=NOT_SCALED,
        status_code="Failed",
        not_scaled_reasons=[reason],
    )


def drop_old(store: Store, records: Sequence[ActivityRecord], *, now_s: float) -> None:
    """Remove the ended activities of one target that are too old or too many."""
    newest_first = sorted(records, key=lambda record: (record.created_s, record.name), reverse=True)
    for number, record in enumerate(newest_first):
        is_old = number >= MAX_PER_TARGET or record.spec.start_time < now_s - MAX_AGE_S
        if is_old and not record.spec.is_in_progress:
            with suppress(Conflict):
                store.remove(record)


def unavailable_capacity(records: Sequence[ActivityRecord], *, now_s: float) -> int | None:
    """
    Return the capacity that the newest request did not get within the last `RETRY_S`.

    Args:
        records: The activities of one target, oldest first.
        now_s: Seconds since 1970.
    """
    newest = next((record.spec for record in reversed(records) if record.spec.capacity is not None), None)
    if newest is None or newest.status_code not in ("Failed", "Unfulfilled") or newest.end_time is None:
        return None
    return newest.capacity if now_s < newest.end_time + RETRY_S else None


def _subject(record: ActivityRecord) -> str:
    return f"{record.spec.key.quantity} to {record.spec.capacity}"


def _create(store: Store, key: TargetKey, **members: Any) -> ActivityRecord:
    name = str(uuid.uuid4())
    spec = ActivitySpec(activity_id=name, resource_id=key.resource_id, scalable_dimension=key.dimension, **members)
    return store.create(SCALING_ACTIVITY, name, spec=spec)


def _end(
    store: Store, record: ActivityRecord, code: StatusCode, text: str, now_s: float, details: str = ""
) -> ActivityRecord:
    spec = msgspec.structs.replace(
        record.spec, status_code=code, status_message=text, end_time=now_s, details=details or None
    )
    return store.update(record, spec=spec)
