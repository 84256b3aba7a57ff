"""
One look at one scalable target: follow what was asked for, run its schedule, keep it within its bounds, scale it.

What was done is written before and after, so that a look may be cut off anywhere and the next one goes on from there.
`status` of a target: `observed` (the newest `asked` that was seen to), `last` (the last scaling by a policy, for
cooldowns) and `not_scaled` (policy → why it changed nothing, so that this is told once and not every ten seconds).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.cloudwatch.alarms.records import Watched
from headrace.control.autoscaling.planning import schedule
from headrace.control.autoscaling.planning.decision import (
    Decision,
    NotScaled,
    Scaling,
    Suspended,
    TargetState,
    capacity_within_bounds,
    decide,
)
from headrace.control.autoscaling.planning.targets import read_bounds, read_key
from headrace.control.autoscaling.planning.triggers import triggers_of
from headrace.control.autoscaling.records import activities
from headrace.control.autoscaling.records.activities import UNDER_WAY
from headrace.control.autoscaling.records.capacity import Capacity, read_capacity, write_capacity
from headrace.control.autoscaling.records.followers import Follower, keep_copies
from headrace.control.autoscaling.records.removal import remove_target
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Json, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.scope import AwsScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What belongs to a target, and what it stands in."""

    policies: Sequence[RawRecord]
    actions: Sequence[RawRecord]
    """Scheduled ones."""
    activities: Sequence[RawRecord]
    """Oldest first."""
    alarms: Sequence[Watched]
    """All there are."""
    awake_since_s: float
    """When the platform began to measure; seconds since 1970."""
    copies_follow: bool = True
    """Whether the components on a scaled variant get copies as it gets instances; AWS documents nothing like it."""


class TargetPass:
    """One target, once. Its methods block for a moment (the store)."""

    def __init__(self, store: Store, aws_scope: AwsScope, record: RawRecord, around: Around, *, now_s: float) -> None:
        self._store = store
        self._aws_scope = aws_scope
        self._record = record
        self._around = around
        self._now_s = now_s
        self._key = read_key(record.spec)
        self._under_way: Json | None = None
        """Scaling of the activity that is under way."""
        self._is_settling = False
        """An activity is under way: what was asked for is not there yet."""
        self._followers: Sequence[Follower] = ()
        """Components whose copies follow the target's instances."""
        self._refused: int | None = None
        """A capacity that could not be had a moment ago."""
        self._log = get_logger()

    def run(self) -> None:
        """
        Do what is to be done now.

        Raises:
            Conflict: somebody else wrote at the same moment; look again.
        """
        capacity = read_capacity(self._store, self._key)
        if capacity is None:
            remove_target(self._store, self._aws_scope, self._record)
            self._log.info("autoscaler.deregistered", target=self._key.resource_id, reason="it is gone")
            return
        capacity = self._keep_copies(capacity)
        if not self._follow(capacity):
            return
        self._run_schedule()
        if self._record.status.get("observed") != self._record.spec.get("asked"):
            self._keep_bounds(capacity)
        else:
            self._scale(capacity)

    def _keep_copies(self, capacity: Capacity) -> Capacity:
        """Let components follow the variant that they are on; it cannot be scaled until they have."""
        if self._key.component or not self._around.copies_follow:
            return capacity
        self._followers = keep_copies(self._store, self._aws_scope, self._key, capacity.desired, now_s=self._now_s)
        is_settled = all(one.is_settled for one in self._followers)
        return replace(capacity, is_scalable=capacity.is_scalable and is_settled)

    def _follow(self, capacity: Capacity) -> bool:
        """Bring activities up to date; only the newest can be under way. False: the capacity was taken back."""
        self._refused = activities.refused(self._around.activities, now_s=self._now_s)
        running = [one for one in self._around.activities if one.spec["StatusCode"] in UNDER_WAY]
        for activity in running[:-1]:
            activities.overridden(self._store, activity, now_s=self._now_s)
        if not running:
            return True
        newest = running[-1]
        self._under_way = newest.spec.get("scaling")
        if capacity.desired == newest.spec["capacity"]:
            if newest.spec["StatusCode"] == "Pending":
                newest = activities.progressed(self._store, newest)
            self._is_settling = not capacity.is_scalable
            if capacity.is_scalable:
                return self._settle(newest)
        elif capacity.is_scalable and capacity.failure:
            self._end_scaling()
            self._refused = newest.spec["capacity"]
            activities.unfulfilled(self._store, newest, now_s=self._now_s)
        else:
            self._under_way = None
            activities.overridden(self._store, newest, now_s=self._now_s)
        return True

    def _settle(self, activity: RawRecord) -> bool:
        """End an activity whose instances are there; they are given back if the copies on them did not start."""
        self._end_scaling()
        told = " ".join(one.told() for one in self._followers)
        if not any(one.has_failed for one in self._followers):
            activities.fulfilled(self._store, activity, now_s=self._now_s, details=told)
            return True
        bounds, number = read_bounds(self._record.spec), activity.spec["capacity"]
        kept = min(number, max(activity.spec.get("previous") or 0, bounds.minimum, 1))
        if kept < number:
            write_capacity(self._store, self._aws_scope, self._key, kept)
            told = f"{told} The desired instance count was set back to {kept}."
        activities.unfulfilled(self._store, activity, now_s=self._now_s, details=told)
        return False

    def _end_scaling(self) -> None:
        """The cooldown begins."""
        if self._under_way is not None:
            self._write_status(last={**self._under_way, "ended_s": self._now_s})
            self._under_way = None

    def _run_schedule(self) -> None:
        due = []
        for action in self._around.actions:
            spec, window = action.spec, schedule.window_of(action.spec)
            after_s = max(window.created_s, float(action.status.get("ran_s", 0.0)))
            plan = schedule.parse(spec["Schedule"], spec.get("Timezone"))
            time_s = schedule.due_time(plan, after_s=after_s, now_s=self._now_s, window=window)
            if time_s is not None:
                due.append((time_s, action.name, action))
        for time_s, _, action in sorted(due, key=lambda one: one[:2]):
            if not read_bounds(self._record.spec).is_schedule_suspended:
                self._set_bounds(action)
            self._store.update(action, status={**action.status, "ran_s": time_s})

    def _set_bounds(self, action: RawRecord) -> None:
        bounds: Json = action.spec["ScalableTargetAction"]
        minimum, maximum = bounds.get("MinCapacity"), bounds.get("MaxCapacity")
        spec = dict(self._record.spec)
        spec["MinCapacity"] = spec["MinCapacity"] if minimum is None else minimum
        spec["MaxCapacity"] = spec["MaxCapacity"] if maximum is None else maximum
        if minimum is None:
            spec["MinCapacity"] = min(spec["MinCapacity"], spec["MaxCapacity"])
        spec["MaxCapacity"] = max(spec["MinCapacity"], spec["MaxCapacity"])
        spec["asked"] = spec.get("asked", 0) + 1
        self._record = self._store.update(self._record, spec=spec)
        cause = activities.scheduled_cause(action.spec["ScheduledActionName"])
        activities.note_bounds(self._store, self._key, bounds, cause=cause, now_s=self._now_s)

    def _keep_bounds(self, capacity: Capacity) -> None:
        """After bounds were set: bring the capacity within them, as soon as it can be changed."""
        if not capacity.is_scalable:
            return
        number = capacity_within_bounds(self._state(capacity))
        if number is not None:
            cause = activities.bound_cause(number, is_minimum=number > capacity.desired)
            self._ask(number, cause, capacity.desired, scaling=None)
        self._write_status(observed=self._record.spec.get("asked"))

    def _scale(self, capacity: Capacity) -> None:
        if self._is_settling:
            return  # The store tells when it has settled; then is decided.
        triggers = triggers_of(self._aws_scope, self._around.policies, self._around.alarms)
        decision = decide(self._state(capacity), triggers, now_s=self._now_s)
        number, trigger = decision.capacity, decision.trigger
        if number is not None and trigger is not None and not self._is_vain(number, capacity.desired):
            scaling = None if decision.scaling is None else msgspec.to_builtins(decision.scaling)
            cause = self._cause(trigger.alarm_name, trigger.policy_name)
            self._ask(number, cause, capacity.desired, scaling=scaling)
        self._note_not_scaled(decision)

    def _is_vain(self, number: int, desired: int) -> bool:
        """Whether as much, or less of the same direction, could not be had a moment ago."""
        refused = self._refused
        return refused is not None and (desired < refused <= number or number <= refused < desired)

    def _state(self, capacity: Capacity) -> TargetState:
        bounds = read_bounds(self._record.spec)
        last = self._under_way or self._record.status.get("last")
        return TargetState(
            desired=capacity.desired,
            in_service=capacity.in_service,
            min_capacity=bounds.minimum,
            max_capacity=bounds.maximum,
            suspended=Suspended(is_in=bounds.is_in_suspended, is_out=bounds.is_out_suspended),
            last=None if last is None else msgspec.convert(last, Scaling),
            since_s=max(self._record.created_s, capacity.since_s, self._around.awake_since_s),
            is_scalable=capacity.is_scalable,
        )

    def _ask(self, number: int, cause: str, previous: int, *, scaling: Json | None) -> None:
        """Ask for another capacity, with an activity that says so."""
        activity = activities.begin(
            self._store, self._key, number, cause=cause, now_s=self._now_s, previous=previous, scaling=scaling
        )
        try:
            write_capacity(self._store, self._aws_scope, self._key, number)
        except Conflict:
            self._store.remove(activity)
            raise
        except (AwsError, LookupError) as error:
            activities.failed(self._store, activity, str(error), now_s=self._now_s)
            return
        activities.progressed(self._store, activity)
        self._log.info("autoscaler.scaled", target=self._key.resource_id, capacity=number, cause=cause)

    def _note_not_scaled(self, decision: Decision) -> None:
        """Why policies changed nothing, where that is news."""
        told: Json = self._record.status.get("not_scaled", {})
        now = {reason.trigger.policy_name: reason.code for reason in decision.not_scaled}
        for reason in decision.not_scaled:
            if told.get(reason.trigger.policy_name) != reason.code:
                cause = self._cause(reason.trigger.alarm_name, reason.trigger.policy_name)
                activities.note_not_scaled(self._store, self._key, _reason_json(reason), cause=cause, now_s=self._now_s)
        if now != told:
            self._write_status(not_scaled=now)

    def _cause(self, alarm: str, policy: str) -> str:
        state = next((one.state for one in self._around.alarms if one.record.name == alarm), "ALARM")
        return activities.alarm_cause(alarm, policy, state)

    def _write_status(self, **changed: Any) -> None:
        self._record = self._store.update(self._record, status={**self._record.status, **changed})


def _reason_json(reason: NotScaled) -> Json:
    members = {
        "Code": reason.code,
        "MaxCapacity": reason.max_capacity,
        "MinCapacity": reason.min_capacity,
        "CurrentCapacity": reason.current_capacity,
    }
    return {name: value for name, value in members.items() if value is not None}
