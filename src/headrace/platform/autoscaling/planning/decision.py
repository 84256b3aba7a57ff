"""
Decides the capacity of a scalable target from its policies and their alarms. Pure.

It combines target tracking and step policies, cooldowns, bounds and suspensions, and reports why nothing changed. The
caller acts, and keeps what it did (`Scaling`) for the next decision.
Source: Application Auto Scaling user guide: "Multiple scaling policies", "Define cooldown period", "Suspending and
resuming", "Understanding not scaled reason codes".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.platform.autoscaling.planning import step_scaling, target_tracking
from headrace.platform.autoscaling.planning.step_scaling import StepScaling
from headrace.platform.autoscaling.planning.target_tracking import TargetTracking
from headrace.platform.cloudwatch.alarms.rules import AlarmState, Comparison
from headrace.platform.state.records import RecordPart

Direction = Literal["out", "in"]
Code = Literal[
    "AutoScalingAnticipatedFlapping",
    "TargetServicePutResourceAsUnscalable",
    "AlreadyAtMaxCapacity",
    "AlreadyAtMinCapacity",
    "AlreadyAtDesiredCapacity",
]


class SuspendedState(RecordPart, frozen=True, kw_only=True):
    """The kinds of scaling that a target's owner has suspended: `SuspendedState` of RegisterScalableTarget."""

    is_in: bool = msgspec.field(default=False, name="DynamicScalingInSuspended")
    is_out: bool = msgspec.field(default=False, name="DynamicScalingOutSuspended")
    is_scheduled: bool = msgspec.field(default=False, name="ScheduledScalingSuspended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A scaling by a policy (not by a schedule or a change of bounds)."""

    direction: Direction
    from_capacity: int
    """
    The capacity before; in a chain of scale-outs within each other's cooldown, before the first. For target tracking
    the chain begins above zero: a metric per instance says nothing about zero instances.
    """
    cooldown_s: float
    """The cooldown of the policy."""
    ended_s: float | None
    """Time of its completion, at which the cooldown began, in seconds since 1970; None while in progress."""

    def is_cooling(self, now_s: float) -> bool:
        return self.ended_s is None or now_s < self.ended_s + self.cooldown_s


WOKEN = Scaling(direction="in", from_capacity=0, cooldown_s=60.0, ended_s=None)
"""
The last scaling after a request woke a target from zero: nothing scales it in for a minute, so that an alarm that saw
it idle can see the request.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    desired: int
    """The desired capacity."""
    in_service: int
    """The capacity in service, by which metrics per unit of capacity are divided."""
    min_capacity: int
    max_capacity: int
    suspensions: SuspendedState = field(default_factory=SuspendedState)
    last: Scaling | None = None
    since_s: float = -math.inf
    """Time from which requests could reach it: registered, in service, and the platform up."""
    is_scalable: bool = True
    """False while it cannot be scaled, for example because its endpoint is updating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """An alarm and the policy that it triggers, in any state."""

    policy_name: str
    alarm_name: str
    policy: TargetTracking | StepScaling
    state: AlarmState
    values: tuple[float, ...]
    """The values that the alarm evaluated, oldest first."""
    threshold: float
    comparison: Comparison
    gap_s: float = 0.0
    """If the alarm's state follows from missing data: the length of the gap. 0 if it follows from values."""

    @property
    def is_alarm_below(self) -> bool:
        """True if the alarm fires on small values; target tracking scales in by such an alarm."""
        return self.comparison in ("LessThanThreshold", "LessThanOrEqualToThreshold")

    @property
    def is_ready(self) -> bool:
        """True if the policy should act; target tracking needs a value to decide how far."""
        return self.state == "ALARM" and (bool(self.values) or isinstance(self.policy, StepScaling))

    def counts(self, target: TargetState, now_s: float) -> bool:
        """Return whether it is ready, and not merely because a new target has no data yet."""
        return self.is_ready and not (self.gap_s and now_s < target.since_s + self.gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotScaled:
    """The reason why a triggered policy changed nothing: an entry of `NotScaledReasons`."""

    trigger: Trigger
    code: Code
    max_capacity: int | None = None
    min_capacity: int | None = None
    current_capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a decision: a new capacity, or the reasons against one."""

    capacity: int | None = None
    """The new desired capacity; None to leave it."""
    trigger: Trigger | None = None
    """The alarm and policy that led to `capacity`."""
    scaling: Scaling | None = None
    """The caller keeps it as `TargetState.last` once it is done, with `ended_s` filled in."""
    not_scaled: tuple[NotScaled, ...] = ()
    """Empty as well if a cooldown or a suspension was the reason: AWS has no codes for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    trigger: Trigger
    capacity: int


def decide(target: TargetState, triggers: Sequence[Trigger], *, now_s: float) -> Decision:
    """Decide the capacity: out if any policy proposes it, else in if all agree; the largest capacity wins."""
    ready = [trigger for trigger in triggers if trigger.counts(target, now_s)]
    if not ready:
        return Decision()
    if not target.is_scalable:  # as on AWS, where the service reports itself unscalable during an update
        code: Code = "TargetServicePutResourceAsUnscalable"
        return Decision(not_scaled=tuple(NotScaled(trigger=trigger, code=code) for trigger in ready))
    proposals = [_Proposal(trigger=t, capacity=c) for t in ready if (c := _proposed(t, target, now_s)) is not None]
    # A proposal of a High alarm is always for more capacity, even if it adds none.
    out = [
        proposal
        for proposal in proposals
        if proposal.capacity > target.desired
        or (proposal.capacity == target.desired and not proposal.trigger.is_alarm_below)
    ]
    if out:
        return _scale_out(target, out, now_s)
    return _scale_in(target, proposals, triggers, now_s)


def capacity_within_bounds(target: TargetState) -> int | None:
    """
    Return the nearest capacity within the bounds, regardless of cooldowns; None if the desired one is within them.

    Used after scheduled actions and RegisterScalableTarget.
    """
    bounded = min(max(target.desired, target.min_capacity), target.max_capacity)
    return None if bounded == target.desired else bounded


def _proposed(trigger: Trigger, target: TargetState, now_s: float) -> int | None:
    """Return the capacity that a policy proposes, before bounds; None for no change."""
    policy = trigger.policy
    cooling = _cooling(target, "out", now_s)
    if isinstance(policy, StepScaling):
        return _stepped(policy, trigger, target.desired if cooling is None else cooling.from_capacity, target.desired)
    if target.desired == 0:
        return None  # a multiple of zero is zero: target tracking never leaves it
    if trigger.is_alarm_below:
        if policy.is_scale_in_disabled:
            return None
        return target_tracking.capacity_in(policy, trigger.values, capacity=target.desired)
    base = target.in_service or target.desired
    # What the last scale-out added counts as present, although the metric may not show it yet.
    base = base if cooling is None else min(base, cooling.from_capacity or base)
    proposed = target_tracking.capacity_out(policy, trigger.values, capacity=base)
    return max(proposed, target.desired)


def _stepped(policy: StepScaling, trigger: Trigger, base: int, desired: int) -> int | None:
    # Without values (missing data that breach, a state set by SetAlarmState) the first step applies.
    value = step_scaling.aggregate(policy, trigger.values) if trigger.values else trigger.threshold
    found = step_scaling.step_for(
        policy, value=value, threshold=trigger.threshold, is_alarm_below=trigger.is_alarm_below
    )
    if found is None:
        return None
    if policy.adjustment_type == "ExactCapacity":
        return found.adjustment
    if found.adjustment > 0:
        return max(desired, step_scaling.adjusted(policy, found, capacity=base))
    return step_scaling.adjusted(policy, found, capacity=desired)


def _cooling(target: TargetState, direction: Direction, now_s: float) -> Scaling | None:
    last = target.last
    return last if last is not None and last.direction == direction and last.is_cooling(now_s) else None


def _scale_out(target: TargetState, proposals: Sequence[_Proposal], now_s: float) -> Decision:
    if target.suspensions.is_out:
        return Decision()
    best = max(proposals, key=lambda proposal: proposal.capacity)
    capacity = min(max(best.capacity, target.min_capacity), target.max_capacity)
    cooling = _cooling(target, "out", now_s)
    if capacity > target.desired:
        policy = best.trigger.policy
        is_chain = cooling is not None and (cooling.from_capacity > 0 or isinstance(policy, StepScaling))
        scaling = Scaling(
            direction="out",
            from_capacity=cooling.from_capacity if cooling is not None and is_chain else target.desired,
            cooldown_s=policy.cooldown_s if isinstance(policy, StepScaling) else policy.scale_out_cooldown_s,
            ended_s=None,
        )
        return Decision(capacity=capacity, trigger=best.trigger, scaling=scaling)
    if target.desired >= target.max_capacity:
        codes = [
            NotScaled(trigger=p.trigger, code="AlreadyAtMaxCapacity", max_capacity=target.max_capacity)
            for p in proposals
        ]
        return Decision(not_scaled=tuple(codes))
    return Decision(not_scaled=() if cooling else _at_desired(target, proposals))


def _scale_in(
    target: TargetState, proposals: Sequence[_Proposal], triggers: Sequence[Trigger], now_s: float
) -> Decision:
    # Target tracking scales in only if each of its policies that may do so agrees; step policies do not ask.
    trackers = (
        trigger
        for trigger in triggers
        if isinstance(trigger.policy, TargetTracking)
        and trigger.is_alarm_below
        and not trigger.policy.is_scale_in_disabled
    )
    if not all(trigger.is_ready for trigger in trackers):
        proposals = [p for p in proposals if isinstance(p.trigger.policy, StepScaling)]
    if not proposals or target.suspensions.is_in or _cooling(target, "in", now_s):
        return Decision()
    if target.desired <= target.min_capacity:
        code: Code = "AlreadyAtMinCapacity"
        reasons = [NotScaled(trigger=p.trigger, code=code, min_capacity=target.min_capacity) for p in proposals]
        return Decision(not_scaled=tuple(reasons))
    best = max(proposals, key=lambda proposal: proposal.capacity)
    capacity = min(max(best.capacity, target.min_capacity), target.max_capacity)
    if capacity >= target.desired:
        return Decision(not_scaled=_at_desired(target, [p for p in proposals if p.capacity >= target.desired]))
    policy = best.trigger.policy
    scaling = Scaling(
        direction="in",
        from_capacity=target.desired,
        cooldown_s=policy.cooldown_s if isinstance(policy, StepScaling) else policy.scale_in_cooldown_s,
        ended_s=None,
    )
    return Decision(capacity=capacity, trigger=best.trigger, scaling=scaling)


def _at_desired(target: TargetState, proposals: Sequence[_Proposal]) -> tuple[NotScaled, ...]:
    """Return why the capacity stays: on the way in because one less would be scaled out again."""
    reasons = []
    for proposal in proposals:
        is_flapping = isinstance(proposal.trigger.policy, TargetTracking) and proposal.trigger.is_alarm_below
        code: Code = "AutoScalingAnticipatedFlapping" if is_flapping else "AlreadyAtDesiredCapacity"
        reasons.append(NotScaled(trigger=proposal.trigger, code=code, current_capacity=target.desired))
    return tuple(reasons)
