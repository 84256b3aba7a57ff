"""
One pass over one scalable target: end activities, run its schedule, keep it within its bounds, scale it.

Progress is written before and after each step, so that an interrupted pass is continued by the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.autoscaling.planning import schedule
from headrace.autoscaling.planning.decision import (
    Decision,
    NotScaled,
    Scaling,
    TargetState,
    capacity_within_bounds,
    decide,
)
from headrace.autoscaling.planning.policies import PolicyRecord, triggers_of
from headrace.autoscaling.planning.targets import ScheduledActionRecord, TargetRecord
from headrace.autoscaling.records import activities
from headrace.autoscaling.records.activities import ActivityRecord
from headrace.autoscaling.records.capacity import Capacity, is_unreadable, read_capacity, write_capacity
from headrace.autoscaling.records.copies import Follower, keep_copies
from headrace.autoscaling.records.policies import remove_target
from headrace.cloudwatch.alarms.records import EvaluatedAlarm
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Json
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.scope import AwsScope


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContext:
    """The records that belong to a target, and the settings that apply to it."""

    policies: Sequence[PolicyRecord]
    actions: Sequence[ScheduledActionRecord]
    activities: Sequence[ActivityRecord]
    """Oldest first."""
    alarms: Sequence[EvaluatedAlarm]
    """The alarms of the whole platform."""
    awake_since_s: float
    """Time at which the platform started to measure, in seconds since 1970."""
    copies_follow: bool = True
    """True if components on a scaled variant get copies with its instances; AWS documents nothing like it."""


class TargetPass:
    """One pass over one target. Its methods block on the store."""

    def __init__(
        self, store: Store, aws_scope: AwsScope, record: TargetRecord, context: TargetContext, *, now_s: float
    ) -> None:
        self._store = store
        self._aws_scope = aws_scope
        self._record = record
        self._context = context
        self._now_s = now_s
        self._key = record.spec.key
        self._in_progress: Scaling | None = None
        """The scaling of the activity in progress."""
        self._is_settling = False
        """True while an activity is in progress: the requested capacity is not in service yet."""
        self._followers: Sequence[Follower] = ()
        """Components whose copies follow the target's instances."""
        self._unavailable: int | None = None
        """A capacity that was requested recently and not available."""
        self._log = get_logger()

    def run(self) -> None:
        """
        Run the pass.

        Raises:
            Conflict: A record was written concurrently; run another pass.
        """
        capacity = read_capacity(self._store, self._key)
        if capacity is None and is_unreadable(self._store, self._key):
            return
        if capacity is None:
            remove_target(self._store, self._aws_scope, self._record, self._key)
            self._log.info("autoscaler.deregistered", target=self._key.resource_id, reason="it was deleted")
            return
        capacity = self._keep_copies(capacity)
        if not self._follow_up(capacity):
            return
        self._run_schedule()
        if self._record.status.observed_generation != self._record.spec.generation:
            self._keep_bounds(capacity)
        else:
            self._scale(capacity)

    def _keep_copies(self, capacity: Capacity) -> Capacity:
        """Let components follow their variant, which cannot be scaled until they have."""
        if self._key.component or not self._context.copies_follow:
            return capacity
        self._followers = keep_copies(self._store, self._aws_scope, self._key, capacity.desired, now_s=self._now_s)
        is_settled = all(follower.is_settled for follower in self._followers)
        return replace(capacity, is_scalable=capacity.is_scalable and is_settled)

    def _follow_up(self, capacity: Capacity) -> bool:
        """Update activities, of which only the newest can be in progress; False if the capacity was set back."""
        self._unavailable = activities.unavailable_capacity(self._context.activities, now_s=self._now_s)
        running = [activity for activity in self._context.activities if activity.spec.is_in_progress]
        for activity in running[:-1]:
            activities.mark_overridden(self._store, activity, now_s=self._now_s)
        if not running:
            return True
        newest = running[-1]
        self._in_progress = newest.spec.scaling
        requested = newest.spec.capacity
        if requested is not None and capacity.desired == requested:
            if newest.spec.status_code == "Pending":
                newest = activities.mark_requested(self._store, newest)
            self._is_settling = not capacity.is_scalable
            if capacity.is_scalable:
                return self._settle(newest, requested)
        elif capacity.is_scalable and capacity.failure:
            self._end_scaling()
            self._unavailable = requested
            activities.mark_unfulfilled(self._store, newest, now_s=self._now_s)
        else:
            self._in_progress = None
            activities.mark_overridden(self._store, newest, now_s=self._now_s)
        return True

    def _settle(self, activity: ActivityRecord, capacity: int) -> bool:
        """End an activity whose capacity is in service; set it back if copies on the instances did not start."""
        self._end_scaling()
        details = " ".join(follower.describe() for follower in self._followers)
        if not any(follower.has_failed for follower in self._followers):
            activities.mark_fulfilled(self._store, activity, now_s=self._now_s, details=details)
            return True
        kept = min(capacity, max(activity.spec.previous or 0, self._record.spec.min_capacity, 1))
        if kept < capacity:
            write_capacity(self._store, self._aws_scope, self._key, kept)
            details = f"{details} The desired instance count was set back to {kept}."
        activities.mark_unfulfilled(self._store, activity, now_s=self._now_s, details=details)
        return False

    def _end_scaling(self) -> None:
        """Begin the cooldown."""
        if self._in_progress is not None:
            self._write_status(last=replace(self._in_progress, ended_s=self._now_s))
            self._in_progress = None

    def _run_schedule(self) -> None:
        """Run the scheduled actions that are due, in the order of their times."""
        due = []
        for action in self._context.actions:
            spec = action.spec
            after_s = max(spec.put_s, action.status.ran_s)
            time_s = schedule.due_time(spec.parsed_schedule, after_s=after_s, now_s=self._now_s, window=spec.window)
            if time_s is not None:
                due.append((time_s, action.name, action))
        for time_s, _, action in sorted(due, key=lambda item: item[:2]):
            if not self._record.spec.suspensions.is_scheduled:
                self._set_bounds(action)
            self._store.update(action, status=msgspec.structs.replace(action.status, ran_s=time_s))

    def _set_bounds(self, action: ScheduledActionRecord) -> None:
        bounds, spec = action.spec.scalable_target_action, self._record.spec
        minimum = spec.min_capacity if bounds.min_capacity is None else bounds.min_capacity
        maximum = spec.max_capacity if bounds.max_capacity is None else bounds.max_capacity
        if bounds.min_capacity is None:
            minimum = min(minimum, maximum)
        self._record = self._store.update(
            self._record,
            spec=msgspec.structs.replace(
                spec, min_capacity=minimum, max_capacity=max(minimum, maximum), generation=spec.generation + 1
            ),
        )
        cause = activities.scheduled_cause(action.spec.scheduled_action_name)
        activities.note_bounds(self._store, self._key, bounds, cause=cause, now_s=self._now_s)

    def _keep_bounds(self, capacity: Capacity) -> None:
        """Bring the capacity within newly set bounds as soon as it can be changed."""
        if not capacity.is_scalable:
            return
        number = capacity_within_bounds(self._state(capacity))
        if number is not None:
            cause = activities.bound_cause(number, is_minimum=number > capacity.desired)
            self._request(number, cause, capacity.desired, scaling=None)
        self._write_status(observed_generation=self._record.spec.generation)

    def _scale(self, capacity: Capacity) -> None:
        """Decide by the alarms, unless an activity is settling: the next write to the store starts another pass."""
        if self._is_settling:
            return
        triggers = triggers_of(self._aws_scope, self._context.policies, self._context.alarms)
        decision = decide(self._state(capacity), triggers, now_s=self._now_s)
        number, trigger = decision.capacity, decision.trigger
        if number is not None and trigger is not None and not self._is_unavailable(number, capacity.desired):
            cause = self._cause(trigger.alarm_name, trigger.policy_name)
            self._request(number, cause, capacity.desired, scaling=decision.scaling)
        self._note_not_scaled(decision)

    def _is_unavailable(self, number: int, desired: int) -> bool:
        """Return whether this capacity, or a smaller change in its direction, was unavailable recently."""
        known = self._unavailable
        return known is not None and (desired < known <= number or number <= known < desired)

    def _state(self, capacity: Capacity) -> TargetState:
        spec = self._record.spec
        return TargetState(
            desired=capacity.desired,
            in_service=capacity.in_service,
            min_capacity=spec.min_capacity,
            max_capacity=spec.max_capacity,
            suspensions=spec.suspensions,
            last=self._in_progress or self._record.status.last,
            since_s=max(self._record.created_s, capacity.since_s, self._context.awake_since_s),
            is_scalable=capacity.is_scalable,
        )

    def _request(self, number: int, cause: str, previous: int, *, scaling: Scaling | None) -> None:
        """Request another capacity, with an activity that records it."""
        activity = activities.begin(
            self._store, self._key, number, cause=cause, now_s=self._now_s, previous=previous, scaling=scaling
        )
        try:
            write_capacity(self._store, self._aws_scope, self._key, number)
        except Conflict:
            self._store.remove(activity)
            raise
        except (AwsError, LookupError) as error:
            activities.mark_failed(self._store, activity, str(error), now_s=self._now_s)
            return
        activities.mark_requested(self._store, activity)
        self._log.info("autoscaler.scaled", target=self._key.resource_id, capacity=number, cause=cause)

    def _note_not_scaled(self, decision: Decision) -> None:
        """Record why policies changed nothing, if that is new."""
        known = self._record.status.not_scaled
        codes = {reason.trigger.policy_name: reason.code for reason in decision.not_scaled}
        for reason in decision.not_scaled:
            if known.get(reason.trigger.policy_name) != reason.code:
                cause = self._cause(reason.trigger.alarm_name, reason.trigger.policy_name)
                activities.note_not_scaled(self._store, self._key, _reason_json(reason), cause=cause, now_s=self._now_s)
        if codes != known:
            self._write_status(not_scaled=codes)

    def _cause(self, alarm_name: str, policy: str) -> str:
        state = next((alarm.state for alarm in self._context.alarms if alarm.record.name == alarm_name), "ALARM")
        return activities.alarm_cause(alarm_name, policy, state)

    def _write_status(self, **changed: Any) -> None:
        self._record = self._store.update(self._record, status=msgspec.structs.replace(self._record.status, **changed))


def _reason_json(reason: NotScaled) -> Json:
    members = {
        "Code": reason.code,
        "MaxCapacity": reason.max_capacity,
        "MinCapacity": reason.min_capacity,
        "CurrentCapacity": reason.current_capacity,
    }
    return {name: value for name, value in members.items() if value is not None}
