"""
One pass over one scalable target: end activities, run its schedule, keep it within its bounds, scale it.

Progress is written before and after each step, so that an interrupted pass is continued by the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.planning import schedule
from headrace.platform.autoscaling.planning.decision import (
    Decision,
    Scaling,
    TargetState,
    capacity_within_bounds,
    decide,
)
from headrace.platform.autoscaling.planning.policies import PolicyRecord, triggers_of
from headrace.platform.autoscaling.planning.targets import ScheduledActionRecord, TargetKey, TargetRecord
from headrace.platform.autoscaling.records.activities import ActivityLog, ActivityRecord, unavailable_capacity
from headrace.platform.autoscaling.records.capacity import (
    Capacity,
    Follower,
    is_unreadable,
    keep_copies,
    read_capacity,
    write_capacity,
)
from headrace.platform.autoscaling.records.policies import remove_target
from headrace.platform.cloudwatch.alarms.records import EvaluatedAlarm
from headrace.platform.state.records import Conflict
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope


@dataclass(slots=True, kw_only=True)
class TargetPass:
    """One pass over one target. Its methods block on the store."""

    store: Store
    aws_scope: AwsScope
    record: TargetRecord
    policies: Sequence[PolicyRecord]
    actions: Sequence[ScheduledActionRecord]
    activities: Sequence[ActivityRecord]
    """Oldest first."""
    alarms: Sequence[EvaluatedAlarm]
    """The alarms of the whole platform."""
    now_s: float
    awake_since_s: float
    """Time at which the platform started to measure, in seconds since 1970."""
    copies_follow: bool = True
    """True if components on a scaled variant get copies with its instances; AWS documents nothing like it."""
    _in_progress: Scaling | None = None
    """The scaling of the activity in progress."""
    _is_settling: bool = False
    """True while an activity is in progress: the requested capacity is not in service yet."""
    _followers: Sequence[Follower] = ()
    """Components whose copies follow the target's instances."""
    _unavailable: int | None = None
    """A capacity that was requested recently and not available."""

    @property
    def key(self) -> TargetKey:
        """The target."""
        return self.record.spec.key

    @property
    def log(self) -> ActivityLog:
        """Writes the target's activities."""
        return ActivityLog(self.store, self.key, self.now_s)

    def run(self) -> None:
        """Run the pass; after a `Conflict`, run another one."""
        capacity = read_capacity(self.store, self.key)
        if capacity is None and is_unreadable(self.store, self.key):
            return
        if capacity is None:
            remove_target(self.store, self.aws_scope, self.record, self.key)
            get_logger().info("autoscaler.deregistered", target=self.key.resource_id, reason="it was deleted")
            return
        if not self.key.component and self.copies_follow:
            # Components follow their variant, which cannot be scaled until they have.
            store, aws_scope = self.store, self.aws_scope
            self._followers = keep_copies(store, aws_scope, self.key, capacity.desired, now_s=self.now_s)
            is_settled = all(follower.is_settled for follower in self._followers)
            capacity = replace(capacity, is_scalable=capacity.is_scalable and is_settled)
        if not self._follow_up(capacity):
            return
        # A schedule sets bounds, which come before policies: the capacity is brought within new ones once.
        self._run_schedule()
        if self.record.status.observed_generation != self.record.spec.generation:
            self._keep_bounds(capacity)
        else:
            self._scale(capacity)

    def _follow_up(self, capacity: Capacity) -> bool:
        """Update activities, of which only the newest can be in progress; False if the capacity was set back."""
        self._unavailable = unavailable_capacity(self.activities, now_s=self.now_s)
        running = [activity for activity in self.activities if activity.spec.is_in_progress]
        for activity in running[:-1]:
            self.log.end(activity, "Overridden")
        if not running:
            return True
        newest = running[-1]
        self._in_progress = newest.spec.scaling
        requested = newest.spec.capacity
        if requested is not None and capacity.desired == requested:
            # A pass may have ended between the request and the note of it.
            if newest.spec.status_code == "Pending":
                newest = self.log.mark_requested(newest)
            self._is_settling = not capacity.is_scalable
            if capacity.is_scalable:
                return self._settle(newest, requested)
        elif capacity.is_scalable and capacity.failure:
            # The request was rolled back: it counts for the cooldown, so that it is not repeated at once.
            self._end_scaling()
            self._unavailable = requested
            self.log.end(newest, "Unfulfilled")
        else:
            self._in_progress = None
            self.log.end(newest, "Overridden")
        return True

    def _settle(self, activity: ActivityRecord, capacity: int) -> bool:
        """End an activity whose capacity is in service; set it back if copies on the instances did not start."""
        self._end_scaling()
        details = " ".join(follower.describe() for follower in self._followers)
        if not any(follower.has_failed for follower in self._followers):
            self.log.end(activity, "Successful", details=details)
            return True
        # Back to what there was before, within the bounds, and not to zero.
        kept = min(capacity, max(activity.spec.previous or 0, self.record.spec.min_capacity, 1))
        if kept < capacity:
            write_capacity(self.store, self.aws_scope, self.key, kept)
            details = f"{details} The desired instance count was set back to {kept}."
        self.log.end(activity, "Unfulfilled", details=details)
        return False

    def _end_scaling(self) -> None:
        """Begin the cooldown."""
        if self._in_progress is not None:
            self._write_status(last=replace(self._in_progress, ended_s=self.now_s))
            self._in_progress = None

    def _run_schedule(self) -> None:
        """Run the scheduled actions that are due, in the order of their times."""
        due = []
        for action in self.actions:
            spec = action.spec
            after_s = max(spec.put_s, action.status.ran_s)
            time_s = schedule.due_time(spec.parsed_schedule, after_s=after_s, now_s=self.now_s, window=spec.window)
            if time_s is not None:
                due.append((time_s, action.name, action))
        for time_s, _, action in sorted(due, key=lambda item: item[:2]):
            if not self.record.spec.suspended_state.is_scheduled:
                self._set_bounds(action)
            self.store.update(action, status=msgspec.structs.replace(action.status, ran_s=time_s))

    def _set_bounds(self, action: ScheduledActionRecord) -> None:
        bounds, spec = action.spec.scalable_target_action, self.record.spec
        minimum = spec.min_capacity if bounds.min_capacity is None else bounds.min_capacity
        maximum = spec.max_capacity if bounds.max_capacity is None else bounds.max_capacity
        if bounds.min_capacity is None:
            minimum = min(minimum, maximum)
        self.record = self.store.update(
            self.record,
            spec=msgspec.structs.replace(
                spec, min_capacity=minimum, max_capacity=max(minimum, maximum), generation=spec.generation + 1
            ),
        )
        self.log.note_bounds(action.spec.scheduled_action_name, bounds)

    def _keep_bounds(self, capacity: Capacity) -> None:
        """Bring the capacity within newly set bounds as soon as it can be changed."""
        if not capacity.is_scalable:
            return
        number = capacity_within_bounds(self._state(capacity))
        if number is not None:
            side = "minimum" if number > capacity.desired else "maximum"
            self._request(number, f"{side} capacity was set to {number}", capacity.desired, scaling=None)
        self._write_status(observed_generation=self.record.spec.generation)

    def _scale(self, capacity: Capacity) -> None:
        """Decide by the alarms, unless an activity is settling: the next write to the store starts another pass."""
        if self._is_settling:
            return
        triggers = triggers_of(self.aws_scope, self.policies, self.alarms)
        decision = decide(self._state(capacity), triggers, now_s=self.now_s)
        number, trigger = decision.capacity, decision.trigger
        # Not while this capacity, or a smaller change in its direction, was unavailable recently.
        known, desired = self._unavailable, capacity.desired
        is_unavailable = (
            known is not None and number is not None and (desired < known <= number or number <= known < desired)
        )
        if number is not None and trigger is not None and not is_unavailable:
            cause = self._cause(trigger.alarm_name, trigger.policy_name)
            self._request(number, cause, capacity.desired, scaling=decision.scaling)
        self._note_not_scaled(decision)

    def _state(self, capacity: Capacity) -> TargetState:
        spec = self.record.spec
        return TargetState(
            desired=capacity.desired,
            in_service=capacity.in_service,
            min_capacity=spec.min_capacity,
            max_capacity=spec.max_capacity,
            suspensions=spec.suspended_state,
            last=self._in_progress or self.record.status.last,
            since_s=max(self.record.created_s, capacity.since_s, self.awake_since_s),
            is_scalable=capacity.is_scalable,
        )

    def _request(self, number: int, cause: str, previous: int, *, scaling: Scaling | None) -> None:
        """Request another capacity, with an activity that records it."""
        activity = self.log.begin(number, cause=cause, previous=previous, scaling=scaling)
        try:
            write_capacity(self.store, self.aws_scope, self.key, number)
        except Conflict:
            self.store.remove(activity)
            raise
        except (AwsError, LookupError) as error:
            self.log.end(activity, "Failed", reason=str(error))
            return
        self.log.mark_requested(activity)
        get_logger().info("autoscaler.scaled", target=self.key.resource_id, capacity=number, cause=cause)

    def _note_not_scaled(self, decision: Decision) -> None:
        """Record why policies changed nothing, if that is new."""
        known = self.record.status.not_scaled
        codes = {reason.trigger.policy_name: reason.code for reason in decision.not_scaled}
        for reason in decision.not_scaled:
            if known.get(reason.trigger.policy_name) != reason.code:
                cause = self._cause(reason.trigger.alarm_name, reason.trigger.policy_name)
                members = {
                    "Code": reason.code,
                    "MaxCapacity": reason.max_capacity,
                    "MinCapacity": reason.min_capacity,
                    "CurrentCapacity": reason.current_capacity,
                }
                given = {name: value for name, value in members.items() if value is not None}
                self.log.note_not_scaled(given, cause=cause)
        if codes != known:
            self._write_status(not_scaled=codes)

    def _cause(self, alarm_name: str, policy: str) -> str:
        state = next((alarm.state for alarm in self.alarms if alarm.record.name == alarm_name), "ALARM")
        return f"monitor alarm {alarm_name} in state {state} triggered policy {policy}"

    def _write_status(self, **changed: Any) -> None:
        self.record = self.store.update(self.record, status=msgspec.structs.replace(self.record.status, **changed))
