"""
The decision: given a scalable target, its policies and their alarms, what its capacity should be now.

Target tracking and step policies together, cooldowns, bounds, what is suspended, and why nothing was done. The caller
acts, and keeps what it did (`Scaling`) for the next decision.
Source: Application Auto Scaling user guide: "Multiple scaling policies", "Define cooldown period", "Suspending and
resuming", "Understanding not scaled reason codes".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.cloudwatch.alarms.rules import AlarmState, Comparison
from headrace.control.autoscaling.planning import step_scaling as step
from headrace.control.autoscaling.planning import target_tracking
from headrace.control.autoscaling.planning.step_scaling import StepScaling
from headrace.control.autoscaling.planning.target_tracking import TargetTracking

Direction = Literal["out", "in"]
Code = Literal[
    "AutoScalingAnticipatedFlapping",
    "TargetServicePutResourceAsUnscalable",
    "AlreadyAtMaxCapacity",
    "AlreadyAtMinCapacity",
    "AlreadyAtDesiredCapacity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """What a scalable target's owner has switched off."""

    is_in: bool = False
    is_out: bool = False
    is_scheduled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The last time that a policy (no schedule, no change of bounds) scaled the target."""

    direction: Direction
    from_capacity: int
    """
    What the capacity was before; in a chain of scale-outs within one another's cooldown, before the first. For target
    tracking the chain begins after zero was left: what a metric was by instance says nothing of none.
    """
    cooldown_s: float
    """Of the policy that scaled."""
    ended_s: float | None
    """When it was done, seconds since 1970: the cooldown counts from there. None: still under way."""

    def is_cooling(self, now_s: float) -> bool:
        """Whether its cooldown is in force."""
        return self.ended_s is None or now_s < self.ended_s + self.cooldown_s


WOKEN = Scaling(direction="in", from_capacity=0, cooldown_s=60.0, ended_s=None)
"""
What counts as the last scaling after a request woke a first copy: for a minute nothing scales it in again, as an alarm
that saw it idle has to see that it is not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A scalable target."""

    desired: int
    """The capacity that was asked for last."""
    in_service: int
    """The capacity that serves, and over which metrics per unit of capacity are measured."""
    min_capacity: int
    max_capacity: int
    suspended: Suspended = field(default_factory=Suspended)
    last: Scaling | None = None
    since_s: float = -math.inf
    """Since when it can have been asked: it has been a target, its thing in service, and the platform awake."""
    is_scalable: bool = True
    """False: what would be scaled cannot be now (its endpoint is updating, say)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """An alarm and the policy that it triggers. All of a target's are wanted, in whatever state they are."""

    policy_name: str
    alarm_name: str
    policy: TargetTracking | StepScaling
    state: AlarmState
    values: tuple[float, ...]
    """Those that the alarm looked at, oldest first: `Verdict.values`."""
    threshold: float
    comparison: Comparison
    gap_s: float = 0.0
    """Where the alarm is in its state as data are missing: for how long a time they are. 0: the values lead to it."""

    @property
    def is_alarm_below(self) -> bool:
        """Whether the alarm waits for small values; of a target-tracking policy, that is the one that scales in."""
        return self.comparison in ("LessThanThreshold", "LessThanOrEqualToThreshold")

    @property
    def is_ready(self) -> bool:
        """Whether the policy is to act. Without a value target tracking cannot say how far."""
        return self.state == "ALARM" and (bool(self.values) or isinstance(self.policy, StepScaling))

    def counts(self, target: TargetState, now_s: float) -> bool:
        """Whether it is ready, and that data are missing does not only say that the target is new."""
        return self.is_ready and not (self.gap_s and now_s < target.since_s + self.gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotScaled:
    """Why a policy that was triggered changed nothing: an entry of `NotScaledReasons`."""

    trigger: Trigger
    code: Code
    max_capacity: int | None = None
    min_capacity: int | None = None
    current_capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now."""

    capacity: int | None = None
    """The new desired capacity; None: leave it."""
    trigger: Trigger | None = None
    """Which alarm and policy did it, if `capacity` is set."""
    scaling: Scaling | None = None
    """What to keep as `TargetState.last` if it is done, with `ended_s` to be filled in."""
    not_scaled: tuple[NotScaled, ...] = ()
    """Empty also when a cooldown or a suspension was the reason: AWS has no codes for those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    trigger: Trigger
    capacity: int


def decide(target: TargetState, triggers: Sequence[Trigger], *, now_s: float) -> Decision:
    """
    What the target's capacity should be now: out if any policy wants to, else in if all agree; the largest wins.

    Args:
        target: What is scaled, as it is now.
        triggers: Those of all its policies.
        now_s: Seconds since 1970.
    """
    ready = [trigger for trigger in triggers if trigger.counts(target, now_s)]
    if not ready:
        return Decision()
    if not target.is_scalable:
        code: Code = "TargetServicePutResourceAsUnscalable"
        return Decision(not_scaled=tuple(NotScaled(trigger=trigger, code=code) for trigger in ready))
    proposals = [_Proposal(trigger=t, capacity=c) for t in ready if (c := _proposed(t, target, now_s)) is not None]
    out = [proposal for proposal in proposals if _is_out(proposal, target)]
    if out:
        return _scale_out(target, out, now_s)
    return _scale_in(target, proposals, triggers, now_s)


def capacity_within_bounds(target: TargetState) -> int | None:
    """
    The capacity that new bounds want at once, whatever cools down: None if the present one is within them.

    For scheduled actions and RegisterScalableTarget.
    """
    bounded = min(max(target.desired, target.min_capacity), target.max_capacity)
    return None if bounded == target.desired else bounded


def _proposed(trigger: Trigger, target: TargetState, now_s: float) -> int | None:
    """The capacity that a policy wants, without bounds; None: nothing."""
    policy = trigger.policy
    cooling = _cooling(target, "out", now_s)
    if isinstance(policy, StepScaling):
        return _stepped(policy, trigger, target.desired if cooling is None else cooling.from_capacity, target.desired)
    if target.desired == 0:
        return None  # Nothing times anything is nothing: target tracking never leaves zero.
    if trigger.is_alarm_below:
        if policy.is_scale_in_disabled:
            return None
        return target_tracking.wanted_in(policy, trigger.values, capacity=target.desired)
    base = target.in_service or target.desired
    # What the last scale-out added counts as there already, though the metric may not show it yet.
    base = base if cooling is None else min(base, cooling.from_capacity or base)
    wanted = target_tracking.wanted_out(policy, trigger.values, capacity=base)
    return max(wanted, target.desired)


def _stepped(policy: StepScaling, trigger: Trigger, base: int, desired: int) -> int | None:
    # Without values (missing data that breach, a state that was set by hand) it is the first step.
    value = step.aggregate(policy, trigger.values) if trigger.values else trigger.threshold
    found = step.step_for(policy, value=value, threshold=trigger.threshold, is_alarm_below=trigger.is_alarm_below)
    if found is None:
        return None
    if policy.adjustment_type == "ExactCapacity":
        return found.adjustment
    if found.adjustment > 0:
        return max(desired, step.adjusted(policy, found, capacity=base))
    return step.adjusted(policy, found, capacity=desired)


def _is_out(proposal: _Proposal, target: TargetState) -> bool:
    """Whether it is about more capacity, even if it got none: a target-tracking policy's High alarm always is."""
    if proposal.capacity != target.desired:
        return proposal.capacity > target.desired
    return not proposal.trigger.is_alarm_below


def _cooling(target: TargetState, direction: Direction, now_s: float) -> Scaling | None:
    last = target.last
    return last if last is not None and last.direction == direction and last.is_cooling(now_s) else None


def _scale_out(target: TargetState, proposals: Sequence[_Proposal], now_s: float) -> Decision:
    if target.suspended.is_out:
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
    if not _all_agree(triggers):
        proposals = [p for p in proposals if isinstance(p.trigger.policy, StepScaling)]
    if not proposals or target.suspended.is_in or _cooling(target, "in", now_s):
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


def _all_agree(triggers: Sequence[Trigger]) -> bool:
    """Whether every target-tracking policy that may scale in is ready to."""
    return all(
        trigger.is_ready
        for trigger in triggers
        if isinstance(trigger.policy, TargetTracking)
        and trigger.is_alarm_below
        and not trigger.policy.is_scale_in_disabled
    )


def _at_desired(target: TargetState, proposals: Sequence[_Proposal]) -> tuple[NotScaled, ...]:
    """The revised capacity is the present one; on the way in because one less would be scaled out again."""
    reasons = []
    for proposal in proposals:
        is_flapping = isinstance(proposal.trigger.policy, TargetTracking) and proposal.trigger.is_alarm_below
        code: Code = "AutoScalingAnticipatedFlapping" if is_flapping else "AlreadyAtDesiredCapacity"
        reasons.append(NotScaled(trigger=proposal.trigger, code=code, current_capacity=target.desired))
    return tuple(reasons)
