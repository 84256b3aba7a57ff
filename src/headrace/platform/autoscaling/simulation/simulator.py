"""
Simulates a scaling policy on a trace of requests: copies, queue and latency over time. Pure.

The decisions are the platform's own code (`alarms.evaluation`, `planning.decision`, `planning.schedule`); the fleet and
its metrics are simulated (`simulation.fleet`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.platform.autoscaling.planning import schedule
from headrace.platform.autoscaling.planning.decision import (
    WOKEN,
    Scaling,
    SuspendedState,
    TargetState,
    Trigger,
    capacity_within_bounds,
    decide,
)
from headrace.platform.autoscaling.planning.schedule import Schedule, Window
from headrace.platform.autoscaling.planning.step_scaling import StepScaling
from headrace.platform.autoscaling.planning.target_tracking import TargetTracking
from headrace.platform.autoscaling.simulation.fleet import (
    STEP_S,
    AlarmReader,
    FleetModel,
    SimulatedFleet,
    SimulatedSeries,
    StepOutcome,
)
from headrace.platform.cloudwatch.alarms.rules import AlarmRule, AlarmState, Evaluation, evaluate_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAlarm:
    """An alarm on simulated metrics and the policy that it triggers."""

    name: str
    rule: AlarmRule
    policy_name: str
    policy: TargetTracking | StepScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAction:
    name: str
    schedule: Schedule
    window: Window
    min_capacity: int | None = None
    max_capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    min_capacity: int
    max_capacity: int
    initial: int
    alarms: tuple[SimulatedAlarm, ...] = ()
    actions: tuple[SimulatedAction, ...] = ()
    suspensions: SuspendedState = field(default_factory=SuspendedState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The state of the simulation after one step."""

    time_s: float
    requests: float
    desired: int
    serving: int
    queue: float
    """Requests waiting at the end of the step."""
    latency_s: float
    """Mean seconds from arrival to the end of the answers begun in this step."""
    lost: float
    """Requests that found no copy and failed, or reached their timeout."""
    held: float
    """Requests that found no copy and waited for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChange:
    time_s: float
    capacity: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    ticks: tuple[Tick, ...]
    activities: tuple[CapacityChange, ...]
    latencies: tuple[tuple[float, float], ...]
    """(Seconds, number of requests), ascending."""
    num_woken: int
    """Number of times that a request woke a first copy."""
    longest_hold_s: float
    """Longest hold of a request that found no copy and was answered."""

    @property
    def requests(self) -> float:
        return math.fsum(tick.requests for tick in self.ticks)

    @property
    def lost(self) -> float:
        return math.fsum(tick.lost for tick in self.ticks)

    @property
    def held(self) -> float:
        """Requests that found no copy and waited for one."""
        return math.fsum(tick.held for tick in self.ticks)

    @property
    def copy_hours(self) -> float:
        """The cost: hours of copies that served or started."""
        return sum(max(tick.desired, tick.serving) for tick in self.ticks) * STEP_S / 3600

    def latency_s(self, share: float) -> float:
        """Return the latency that `share` (0.95 for p95) of the answers did not exceed; NaN without answers."""
        rank, seen = share * sum(count for _, count in self.latencies), 0.0
        for latency_s, count in self.latencies:
            seen += count
            if seen >= rank:
                return latency_s
        return math.nan


def simulate(
    requests: Sequence[float], scenario: Scenario, model: FleetModel, *, start_s: float = 0.0
) -> SimulationResult:
    """
    Run a trace of requests, the number of arrivals in each step of 10 s, through a fleet under a scenario's policies.

    The first step starts at `start_s`, a multiple of 10, which schedules and alarms see.
    """
    fleet = SimulatedFleet(model=model, serving=scenario.initial)
    scaler = _Scaler(scenario, start_s, is_async=model.at_zero == "wait")
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
        ticks.append(
            Tick(
                time_s=now_s,
                requests=arriving,
                desired=scaler.desired,
                serving=step.serving,
                queue=step.queue,
                latency_s=step.latency_s,
                lost=step.failed + step.expired,
                held=step.held,
            )
        )
        scaler.measure(step, now_s)
        fleet.start_ready(now_s + STEP_S)
        scaler.act(now_s + STEP_S, in_service=fleet.serving)
    return SimulationResult(
        ticks=tuple(ticks),
        activities=tuple(scaler.activities),
        latencies=tuple(sorted(latencies.items())),
        num_woken=num_woken,
        longest_hold_s=longest_hold_s,
    )


class _Scaler:
    """The autoscaler's part: alarms, schedules and decisions, in a pass every ten seconds."""

    def __init__(self, scenario: Scenario, start_s: float, *, is_async: bool) -> None:
        self.desired = scenario.initial
        self.activities: list[CapacityChange] = []
        self._scenario = scenario
        self._min, self._max = scenario.min_capacity, scenario.max_capacity
        self._series = SimulatedSeries([alarm.rule for alarm in scenario.alarms], is_async=is_async)
        self._readers = {alarm.name: AlarmReader(alarm.rule, self._series) for alarm in scenario.alarms}
        self._evaluations: dict[str, Evaluation] = {}
        self._last: Scaling | None = None
        self._is_settling = False
        self._since_s = self._checked_s = start_s
        """Start of service; the time up to which schedules have run."""

    def wake(self, now_s: float) -> bool:
        """Request a first copy if there is none and may be one."""
        if self.desired > 0 or self._max == 0:
            return False
        self._set(max(1, self._min), now_s, cause="a request arrived while capacity was 0")
        self._last = WOKEN
        return True

    def measure(self, step: StepOutcome, now_s: float) -> None:
        self._series.measure(step, now_s, desired=self.desired)

    def act(self, now_s: float, *, in_service: int) -> None:
        """Run one pass; nothing is decided while copies start, because the endpoint is updating."""
        if self._is_settling and in_service == self.desired:
            self._is_settling, self._since_s = False, now_s
            if self._last is not None and self._last.ended_s is None:
                self._last = replace(self._last, ended_s=now_s)
        is_bounded = self._run_schedules(now_s)
        triggers = [self._trigger(alarm, now_s) for alarm in self._scenario.alarms]
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
        self.activities.append(CapacityChange(time_s=now_s, capacity=capacity, cause=cause))

    def _state(self, in_service: int) -> TargetState:
        return TargetState(
            desired=self.desired,
            in_service=in_service,
            min_capacity=self._min,
            max_capacity=self._max,
            suspensions=self._scenario.suspensions,
            last=self._last,
            since_s=self._since_s,
        )

    def _run_schedules(self, now_s: float) -> bool:
        """Set the bounds of due actions; return whether the capacity lies outside."""
        after_s, self._checked_s = self._checked_s, now_s
        if self._scenario.suspensions.is_scheduled:
            return False
        for action in self._scenario.actions:
            if schedule.due_time(action.schedule, after_s=after_s, now_s=now_s, window=action.window) is not None:
                self._min = self._min if action.min_capacity is None else action.min_capacity
                self._max = self._max if action.max_capacity is None else action.max_capacity
        return not self._min <= self.desired <= self._max

    def _trigger(self, alarm: SimulatedAlarm, now_s: float) -> Trigger:
        rule = alarm.rule
        evaluation = self._evaluations.get(alarm.name)
        if evaluation is None or now_s % min(rule.period_s, 60) == 0:
            before: AlarmState = "INSUFFICIENT_DATA" if evaluation is None else evaluation.state
            start_s, end_s = rule.window(now_s)
            found = self._readers[alarm.name].read(start_s=start_s, end_s=end_s)
            evaluation = self._evaluations[alarm.name] = evaluate_rule(rule, found, state=before, end_s=end_s)
        values = evaluation.values
        return Trigger(
            policy_name=alarm.policy_name,
            alarm_name=alarm.name,
            policy=alarm.policy,
            state=evaluation.state,
            values=values,
            threshold=rule.threshold,
            comparison=rule.comparison,
            gap_s=rule.watched_s if evaluation.state == "ALARM" and rule.is_from_gaps("ALARM", values) else 0.0,
        )
