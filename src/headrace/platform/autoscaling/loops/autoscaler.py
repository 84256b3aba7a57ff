"""
The autoscaler: evaluates alarms and scales targets every ten seconds, and at once after a write to the store.

Level-triggered like the reconciler: a pass decides by the store and the metrics alone, and may be interrupted anywhere:
progress is written before and after each step. Without alarms and targets it sleeps until the next write.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.loops.serverless import scale_idle_to_zero
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
from headrace.platform.autoscaling.records.activities import (
    SCALING_ACTIVITY,
    ActivityLog,
    ActivityRecord,
    drop_old,
    unavailable_capacity,
)
from headrace.platform.autoscaling.records.capacity import (
    Capacity,
    Follower,
    is_unreadable,
    keep_copies,
    read_capacity,
    write_capacity,
)
from headrace.platform.autoscaling.records.policies import (
    AutoscalingRecords,
    ensure_alarms,
    read_records,
    remove_orphans,
    remove_target,
)
from headrace.platform.cloudwatch.alarms.records import EvaluatedAlarm
from headrace.platform.cloudwatch.evaluator import AlarmEvaluator, OnChange
from headrace.platform.cloudwatch.metrics.metric import SeriesReader
from headrace.platform.control.loops.store_access import changes, grouped
from headrace.platform.state.records import Conflict, Unreadable, readable
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
        return self.record.spec.key

    @property
    def log(self) -> ActivityLog:
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
            write_capacity(self.store, self.aws_scope, self.key, number, before=previous)
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


PERIOD_S = 10.0
"""Seconds between two passes."""
_OFFSET_S = 1.0
"""Seconds after each multiple of the period since 1970 at which a pass starts: the latest measurements have arrived."""
_BURST_S = 0.1
"""Writes within this time are handled by one pass."""
_RETRY_S = 0.2
"""Seconds before the next pass after a write conflict."""


@dataclass(slots=True, kw_only=True)
class Autoscaler:
    """A task that scales all targets; `run` until cancelled."""

    store: Store
    series: SeriesReader
    aws_scope: AwsScope
    is_strict: bool = False
    serverless_idle_s: float = 0.0
    clock: Callable[[], float] = time.time
    on_alarm: OnChange = lambda *_: None
    _awake_since_s: float = field(init=False)
    """There are no earlier measurements, because the platform was down."""
    _alarms: AlarmEvaluator = field(init=False)
    _faults: dict[str, str] = field(default_factory=dict)
    """The fault of the last pass by the uid of a target or policy; "" for the pass itself."""

    def __post_init__(self) -> None:
        self._awake_since_s, self._alarms = self.clock(), AlarmEvaluator(self.store, self.series, self.on_alarm)

    async def run(self) -> None:
        with changes(self.store) as changed:
            while True:
                changed.clear()
                try:
                    pause_s = await self.pass_once()
                    self._faults.pop("", None)
                except Conflict:
                    pause_s = _RETRY_S
                except Exception as error:  # noqa: BLE001 -- an edge: logged and retried
                    self._note_fault("", error)
                    pause_s = PERIOD_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await changed.wait()
                await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float | None:
        """Run one pass; return the seconds until the next one, or None to wait for a write."""
        return await asyncio.to_thread(self.run_pass)

    def run_pass(self) -> float | None:
        """Run one pass in this thread; blocks on the store."""
        now_s = self.clock()
        records = read_records(self.store)
        if remove_orphans(self.store, self.aws_scope, records):
            return _RETRY_S  # what was read is out of date
        for record in (*records.policies, *records.actions, *records.targets):
            if isinstance(record, Unreadable):
                self._note_fault(record.uid, ValueError(f"{record.name} cannot be read: {record.reason}"))
        alarms_by_name = {alarm.name: alarm for alarm in records.alarms}
        for policy in readable(records.policies):
            ensure = partial(ensure_alarms, self.store, self.aws_scope, policy, find=alarms_by_name.get, now_s=now_s)
            self._guarded(policy.uid, ensure)
        # Policies first: an alarm that a new policy needs is evaluated in the same pass.
        alarms = self._alarms.evaluate_all(now_s=now_s)
        if not self._scale_all(records, alarms, now_s):
            return _RETRY_S
        are_serverless = scale_idle_to_zero(
            self.store,
            self.series,
            self.aws_scope,
            self.serverless_idle_s,
            now_s=now_s,
            awake_since_s=self._awake_since_s,
        )
        if not records.targets and not alarms and not are_serverless:
            return None
        return PERIOD_S - (now_s - _OFFSET_S) % PERIOD_S

    def _scale_all(self, records: AutoscalingRecords, alarms: Sequence[EvaluatedAlarm], now_s: float) -> bool:
        """Run a pass over each target; False if one met a write conflict."""
        if not records.targets:
            return True
        policies_of = grouped(readable(records.policies), lambda record: record.spec.key.name)
        actions_of = grouped(readable(records.actions), lambda record: record.spec.key.name)
        activities_of = grouped(readable(self.store.list(SCALING_ACTIVITY)), lambda record: record.spec.key.name)
        is_done = True
        for target in readable(records.targets):
            target_pass = TargetPass(
                store=self.store,
                aws_scope=self.aws_scope,
                record=target,
                policies=policies_of[target.name],
                actions=actions_of[target.name],
                activities=activities_of[target.name],
                alarms=alarms,
                now_s=now_s,
                awake_since_s=self._awake_since_s,
                copies_follow=not self.is_strict,
            )
            is_done = self._guarded(target.uid, target_pass.run) and is_done
        for activities in activities_of.values():
            drop_old(self.store, activities, now_s=now_s)
        return is_done

    def _guarded(self, uid: str, step: Callable[[], None]) -> bool:
        """Run a step for one policy or target, whose faults do not affect others; False on a write conflict."""
        try:
            step()
        except Conflict:
            return False
        except Exception as error:  # noqa: BLE001 -- an edge: logged and retried
            self._note_fault(uid, error)
            return True
        self._faults.pop(uid, None)
        return True

    def _note_fault(self, uid: str, error: Exception) -> None:
        """Log a fault once until it changes."""
        if self._faults.get(uid) != repr(error):
            self._faults[uid] = repr(error)
            get_logger().error("autoscaler.failed", target=uid, exc_info=error)
