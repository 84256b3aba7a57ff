"""
Scaling activities: what was done, and what was not, in AWS's words. The records are bounded in number and age.

`spec` has the members of a ScalingActivity; `capacity` is what was asked for, `previous`
what there was before, `scaling` what the cooldown begins with.
Source of the texts: Application Auto Scaling user guide, "Scaling activities", and answers that users have published.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.control.autoscaling.planning.targets import NAMESPACE, TargetKey, identity_members, read_key
from headrace.control.model.kinds import SCALING_ACTIVITY
from headrace.state.records import Conflict, Json, RawRecord
from headrace.state.store import Store

MAX_OF_TARGET = 1000
MAX_AGE_S = 42 * 86_400
"""Six weeks. Source: API reference, DescribeScalingActivities."""
UNDER_WAY = ("Pending", "InProgress")
RETRY_S = 60.0
"""After a capacity could not be had, before it is asked for again."""
NOT_SCALED = "Attempting to scale due to alarm triggered"
OWN_MEMBERS = ("capacity", "previous", "scaling")


def alarm_cause(alarm: str, policy: str, state: str = "ALARM") -> str:
    """Why a policy acted."""
    return f"monitor alarm {alarm} in state {state} triggered policy {policy}"


def scheduled_cause(name: str) -> str:
    """Why a scheduled action acted."""
    return f"scheduled action name {name} was triggered"


def bound_cause(number: int, *, is_minimum: bool) -> str:
    """Why a capacity was brought within new bounds."""
    return f"{'minimum' if is_minimum else 'maximum'} capacity was set to {number}"


def begin(
    store: Store,
    key: TargetKey,
    number: int,
    *,
    cause: str,
    now_s: float,
    previous: int | None = None,
    scaling: Json | None = None,
) -> RawRecord:
    """Write down that a capacity will be asked for."""
    spec = {
        **_members(key, cause, now_s),
        "Description": f"Setting {key.words} to {number}.",
        "StatusCode": "Pending",
        "capacity": number,
        "previous": previous,
        "scaling": scaling,
    }
    return _create(store, spec)


def progressed(store: Store, record: RawRecord) -> RawRecord:
    """The capacity was asked for."""
    key, number = read_key(record.spec), record.spec["capacity"]
    text = f"Successfully set {key.words} to {number}. Waiting for change to be fulfilled by {NAMESPACE}."
    return store.update(record, spec={**record.spec, "StatusCode": "InProgress", "StatusMessage": text})


def fulfilled(store: Store, record: RawRecord, *, now_s: float, details: str = "") -> RawRecord:
    """The capacity is there."""
    key, number = read_key(record.spec), record.spec["capacity"]
    text = f"Successfully set {key.words} to {number}. Change successfully fulfilled by {NAMESPACE}."
    return _ended(store, record, "Successful", text, now_s, details)


def overridden(store: Store, record: RawRecord, *, now_s: float) -> RawRecord:
    """Another capacity was asked for before this one was there."""
    return _ended(store, record, "Overridden", "The desired capacity was updated by a newer scaling event.", now_s)


def unfulfilled(store: Store, record: RawRecord, *, now_s: float, details: str = "") -> RawRecord:
    """The capacity could not be had."""
    key, number = read_key(record.spec), record.spec["capacity"]
    text = f"Failed to set {key.words} to {number}: {NAMESPACE} could not fulfil the change and took it back."
    return _ended(store, record, "Unfulfilled", text, now_s, details)


def failed(store: Store, record: RawRecord, reason: str, *, now_s: float) -> RawRecord:
    """The capacity could not be asked for."""
    key, number = read_key(record.spec), record.spec["capacity"]
    text = f"Failed to set {key.words} to {number}. Reason: {reason}"
    return _ended(store, record, "Failed", text, now_s)


def note_bounds(store: Store, key: TargetKey, bounds: Json, *, cause: str, now_s: float) -> RawRecord:
    """Write down that a scheduled action has set bounds."""
    words = {"MinCapacity": "min capacity", "MaxCapacity": "max capacity"}
    told = " and ".join(f"{text} to {bounds[name]}" for name, text in words.items() if bounds.get(name) is not None)
    spec = {
        **_members(key, cause, now_s),
        "Description": f"Setting {told}",
        "StatusMessage": f"Successfully set {told}",
        "StatusCode": "Successful",
        "EndTime": now_s,
    }
    return _create(store, spec)


def note_not_scaled(store: Store, key: TargetKey, reason: Json, *, cause: str, now_s: float) -> RawRecord:
    """Write down that a policy was triggered, and why it changed nothing."""
    spec = {
        **_members(key, cause, now_s),
        "Description": NOT_SCALED,
        "StatusCode": "Failed",
        "NotScaledReasons": [reason],
    }
    return _create(store, spec)


def drop_old(store: Store, records: Sequence[RawRecord], *, now_s: float) -> None:
    """Forget activities of one target that are too old or too many, but none that is under way."""
    newest_first = sorted(records, key=lambda record: (record.created_s, record.name), reverse=True)
    for number, record in enumerate(newest_first):
        is_old = number >= MAX_OF_TARGET or record.spec["StartTime"] < now_s - MAX_AGE_S
        if is_old and record.spec["StatusCode"] not in UNDER_WAY:
            with suppress(Conflict):
                store.remove(record)


def of_target(store: Store, key: TargetKey) -> list[RawRecord]:
    """Activities of one target, oldest first."""
    return [
        record
        for record in store.list(SCALING_ACTIVITY)
        if record.spec["ResourceId"] == key.resource_id and record.spec["ScalableDimension"] == key.dimension
    ]


def refused(records: Sequence[RawRecord], *, now_s: float) -> int | None:
    """
    The capacity that could not be had within the last `RETRY_S`, by the newest activity that asked for one.

    Args:
        records: of one target, oldest first.
        now_s: seconds since 1970.
    """
    newest = next((record.spec for record in reversed(records) if "capacity" in record.spec), None)
    if newest is None or newest["StatusCode"] not in ("Failed", "Unfulfilled"):
        return None
    return int(newest["capacity"]) if now_s < newest["EndTime"] + RETRY_S else None


def _members(key: TargetKey, cause: str, now_s: float) -> dict[str, Any]:
    return {**identity_members(key), "Cause": cause, "StartTime": now_s}


def _create(store: Store, spec: Json) -> RawRecord:
    name = str(uuid.uuid4())
    return store.create(SCALING_ACTIVITY, name, spec={"ActivityId": name, **spec})


def _ended(store: Store, record: RawRecord, code: str, text: str, now_s: float, details: str = "") -> RawRecord:
    ended = {"StatusCode": code, "StatusMessage": text, "EndTime": now_s}
    return store.update(record, spec={**record.spec, **ended, **({"Details": details} if details else {})})
