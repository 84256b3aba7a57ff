"""
A trace of requests and a scaling policy in; copies, queue and latency over time out.

The deciding code is the platform's own: `alarms.judge`, `decide.decide`, `schedule`. What is played is the fleet
(`simulated_fleet`) and what it tells of itself (`simulated_metrics`). Nothing here reads a clock or a file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState, Judgement, judge
from headrace.control.autoscaling.planning import schedule
from headrace.control.autoscaling.planning.decision import (
    WOKEN,
    Scaling,
    Suspended,
    TargetState,
    Trigger,
    capacity_within_bounds,
    decide,
)
from headrace.control.autoscaling.planning.schedule import Schedule, Window
from headrace.control.autoscaling.planning.step_scaling import StepScaling
from headrace.control.autoscaling.planning.target_tracking import TargetTracking
from headrace.control.autoscaling.simulation.fleet import STEP_S, Fleet, FleetModel, Step
from headrace.control.autoscaling.simulation.metrics import Gauge, SimulatedSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAlarm:
    """An alarm on simulated metrics, and the policy that it triggers."""

    name: str
    rule: AlarmRule
    policy_name: str
    policy: TargetTracking | StepScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAction:
    """A scheduled action."""

    name: str
    schedule: Schedule
    window: Window
    min_capacity: int | None = None
    max_capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The policy to try."""

    min_capacity: int
    max_capacity: int
    initial: int
    alarms: tuple[SimulatedAlarm, ...] = ()
    actions: tuple[SimulatedAction, ...] = ()
    suspended: Suspended = field(default_factory=Suspended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One step of the day."""

    time_s: float
    requests: float
    desired: int
    serving: int
    queue: float
    """Requests waiting at its end."""
    latency_s: float
    """Mean, from arrival to the answer's end, of those begun in this step."""
    lost: float
    """Requests that found no copy and failed, or waited too long."""
    held: float
    """Requests that found no copy and waited for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The capacity changed."""

    time_s: float
    capacity: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it."""

    ticks: tuple[Tick, ...]
    activities: tuple[Activity, ...]
    latencies: tuple[tuple[float, float], ...]
    """(seconds, how many requests), ascending."""
    num_woken: int
    """How often a request woke a first copy."""
    longest_hold_s: float
    """Of the requests that found no copy and were answered."""

    @property
    def requests(self) -> float:
        """All that came."""
        return math.fsum(tick.requests for tick in self.ticks)

    @property
    def lost(self) -> float:
        """Requests that were not answered."""
        return math.fsum(tick.lost for tick in self.ticks)

    @property
    def held(self) -> float:
        """Requests that found no copy and waited for one."""
        return math.fsum(tick.held for tick in self.ticks)

    @property
    def copy_hours(self) -> float:
        """What was paid for: copies that served or started, by hours."""
        return sum(max(tick.desired, tick.serving) for tick in self.ticks) * STEP_S / 3600

    def latency_s(self, share: float) -> float:
        """The latency that `share` (0.95: p95) of the answered requests did not exceed; NaN: none was answered."""
        wanted, seen = share * sum(count for _, count in self.latencies), 0.0
        for latency_s, count in self.latencies:
            seen += count
            if seen >= wanted:
                return latency_s
        return math.nan


def simulate(requests: Sequence[float], plan: Plan, model: FleetModel, *, start_s: float = 0.0) -> Result:
    """
    Run a trace through a fleet under a policy.

    Args:
        requests: How many arrive in each step of 10 s.
        plan: The policy to try.
        model: What a copy can do.
        start_s: When the first step begins, seconds since 1970, a multiple of 10; schedules and alarms see it.
    """
    fleet = Fleet(model=model, serving=plan.initial)
    scaler = _Scaler(plan, start_s, is_async=model.at_zero == "wait")
    ticks: list[Tick] = []
    latencies: dict[float, float] = {}
    num_woken, longest_hold_s = 0, 0.0
    for index, arriving in enumerate(requests):
        now_s = start_s + index * STEP_S
        if arriving > 0 and model.at_zero == "wake" and scaler.wake(now_s):
            num_woken += 1
        fleet.scale(scaler.desired, now_s)
        fleet.start_ready(now_s)
        step = fleet.step(arriving, now_s)
        for latency_s, held_s, count in step.answered:
            latencies[latency_s] = latencies.get(latency_s, 0.0) + count
            longest_hold_s = max(longest_hold_s, held_s)
        ticks.append(_tick(step, arriving, now_s, scaler.desired))
        scaler.measure(step, now_s)
        fleet.start_ready(now_s + STEP_S)
        scaler.act(now_s + STEP_S, in_service=fleet.serving)
    return Result(
        ticks=tuple(ticks),
        activities=tuple(scaler.activities),
        latencies=tuple(sorted(latencies.items())),
        num_woken=num_woken,
        longest_hold_s=longest_hold_s,
    )


def _tick(step: Step, arriving: float, now_s: float, desired: int) -> Tick:
    return Tick(
        time_s=now_s,
        requests=arriving,
        desired=desired,
        serving=step.serving,
        queue=step.queue,
        latency_s=step.latency_s,
        lost=step.failed + step.expired,
        held=step.held,
    )


class _Scaler:
    """The autoscaler's part: alarms, schedules, decisions, one look every ten seconds."""

    def __init__(self, plan: Plan, start_s: float, *, is_async: bool) -> None:
        self.desired = plan.initial
        self.activities: list[Activity] = []
        self._plan = plan
        self._min, self._max = plan.min_capacity, plan.max_capacity
        self._series = SimulatedSeries([alarm.rule for alarm in plan.alarms], is_async=is_async)
        self._gauges = {alarm.name: Gauge(alarm.rule, self._series) for alarm in plan.alarms}
        self._judged: dict[str, Judgement] = {}
        self._last: Scaling | None = None
        self._is_settling = False
        self._since_s = self._checked_s = start_s
        """In service since; schedules were looked at until."""

    def wake(self, now_s: float) -> bool:
        """Bring a first copy, if there is none and may be one."""
        if self.desired > 0 or self._max == 0:
            return False
        self._set(max(1, self._min), now_s, cause="a request arrived while capacity was 0")
        self._last = WOKEN
        return True

    def measure(self, step: Step, now_s: float) -> None:
        """Publish what CloudWatch would have of this step."""
        self._series.measure(step, now_s, desired=self.desired)

    def act(self, now_s: float, *, in_service: int) -> None:
        """One pass. While copies start nothing is decided: the endpoint is updating."""
        if self._is_settling and in_service == self.desired:
            self._is_settling, self._since_s = False, now_s
            if self._last is not None and self._last.ended_s is None:
                self._last = replace(self._last, ended_s=now_s)
        is_bounded = self._run_schedules(now_s)
        triggers = [self._trigger(alarm, now_s) for alarm in self._plan.alarms]
        if self._is_settling:
            return
        state = self._state(in_service)
        if is_bounded and (capacity := capacity_within_bounds(state)) is not None:
            side, bound = ("minimum", self._min) if capacity > self.desired else ("maximum", self._max)
            self._set(capacity, now_s, cause=f"{side} capacity was set to {bound}")
            return
        decision = decide(state, triggers, now_s=now_s)
        if decision.capacity is not None and decision.trigger is not None and decision.scaling is not None:
            name, policy = decision.trigger.alarm_name, decision.trigger.policy_name
            self._last = decision.scaling
            self._set(decision.capacity, now_s, cause=f"monitor alarm {name} in state ALARM triggered policy {policy}")

    def _set(self, capacity: int, now_s: float, *, cause: str) -> None:
        self.desired = capacity
        self._is_settling = True
        self.activities.append(Activity(time_s=now_s, capacity=capacity, cause=cause))

    def _state(self, in_service: int) -> TargetState:
        return TargetState(
            desired=self.desired,
            in_service=in_service,
            min_capacity=self._min,
            max_capacity=self._max,
            suspended=self._plan.suspended,
            last=self._last,
            since_s=self._since_s,
        )

    def _run_schedules(self, now_s: float) -> bool:
        """Set the bounds of what is due; says whether the capacity has to be brought within them."""
        after_s, self._checked_s = self._checked_s, now_s
        if self._plan.suspended.is_scheduled:
            return False
        for action in self._plan.actions:
            if schedule.due_time(action.schedule, after_s=after_s, now_s=now_s, window=action.window) is not None:
                self._min = self._min if action.min_capacity is None else action.min_capacity
                self._max = self._max if action.max_capacity is None else action.max_capacity
        return not self._min <= self.desired <= self._max

    def _trigger(self, alarm: SimulatedAlarm, now_s: float) -> Trigger:
        rule = alarm.rule
        judged = self._judged.get(alarm.name)
        if judged is None or now_s % min(rule.period_s, 60) == 0:
            before: AlarmState = "INSUFFICIENT_DATA" if judged is None else judged.state
            start_s, end_s = rule.window(now_s)
            found = self._gauges[alarm.name].read(start_s=start_s, end_s=end_s)
            judged = self._judged[alarm.name] = judge(rule, found, state=before, end_s=end_s)
        values = judged.values
        return Trigger(
            policy_name=alarm.policy_name,
            alarm_name=alarm.name,
            policy=alarm.policy,
            state=judged.state,
            values=values,
            threshold=rule.threshold,
            comparison=rule.comparison,
            gap_s=rule.watched_s if judged.state == "ALARM" and rule.is_from_gaps("ALARM", values) else 0.0,
        )
