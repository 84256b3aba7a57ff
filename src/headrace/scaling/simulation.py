"""
A trace of requests and a scaling policy in; copies, queue and latency over time out.

The deciding code is the platform's own: `alarms.judge`, `decide.decide`, `schedule`. What is modelled is the fleet: a
copy answers `concurrency` requests at once, each takes `service_s`, others wait in one queue, first come first served;
a new copy serves after `start_s`. Requests flow like water in steps of 10 s; what random arrivals add to the wait is
estimated (Sakasegawa 1977, M/M/c). Nothing here reads a clock or a file.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.scaling import schedule
from headrace.scaling.alarms import AlarmRule, AlarmState, Datapoint, Judgement, judge
from headrace.scaling.decide import Scaling, Suspended, TargetState, Trigger, capacity_within_bounds, decide
from headrace.scaling.schedule import Schedule, Window
from headrace.scaling.step import StepScaling
from headrace.scaling.target_tracking import TargetTracking

STEP_S = 10

Signal = Literal[
    "invocations", "invocations_per_copy", "concurrency_per_copy", "queue", "no_capacity", "backlog_at_zero"
]
"""What a simulated alarm can watch. Per minute: invocations and no_capacity; every 10 s: the others."""

PER_MINUTE: tuple[Signal, ...] = ("invocations", "invocations_per_copy", "no_capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """What a copy can do."""

    concurrency: int = 8
    """Requests that one copy answers at once."""
    service_s: float = 2.0
    """How long an answer takes once it is begun."""
    start_s: float = 30.0
    """From the decision until a new copy serves."""
    timeout_s: float = 60.0
    """A request that has waited so long is lost."""
    wakes: bool = True
    """A request that finds no copy is held, and wakes one; else it fails at once, as on AWS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAlarm:
    """An alarm, the signal that it watches, and the policy that it triggers."""

    name: str
    rule: AlarmRule
    signal: Signal
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
    copy_hours: float
    requests: float
    lost: float

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
    fleet = _Fleet(model=model, serving=plan.initial)
    scaler = _Scaler(plan=plan, desired=plan.initial, min_capacity=plan.min_capacity, max_capacity=plan.max_capacity)
    ticks = []
    for index, arriving in enumerate(requests):
        now_s = start_s + index * STEP_S
        fleet.start_ready(now_s)
        if arriving > 0 and scaler.desired == 0 and model.wakes and plan.max_capacity > 0:
            scaler.set(max(1, scaler.min_capacity), now_s, cause="a request woke it")
        fleet.scale(scaler.desired, now_s)
        tick = fleet.step(arriving, now_s, desired=scaler.desired)
        ticks.append(tick)
        scaler.measure(tick, fleet)
        scaler.act(now_s + STEP_S, in_service=fleet.serving)
    return Result(
        ticks=tuple(ticks),
        activities=tuple(scaler.activities),
        latencies=tuple(sorted(fleet.latencies.items())),
        copy_hours=sum(max(tick.desired, tick.serving) for tick in ticks) * STEP_S / 3600,
        requests=math.fsum(requests),
        lost=math.fsum(tick.lost for tick in ticks),
    )


@dataclass(slots=True)
class _Fleet:
    model: FleetModel
    serving: int
    starting: list[float] = field(default_factory=list)
    """When each new copy will serve."""
    waiting: deque[list[float]] = field(default_factory=deque)
    """[arrived at, how many], oldest first."""
    latencies: dict[float, float] = field(default_factory=dict)
    busy: float = 0.0
    """Requests being answered, on average over the last step."""

    def start_ready(self, now_s: float) -> None:
        self.serving += sum(1 for ready_s in self.starting if ready_s <= now_s)
        self.starting = [ready_s for ready_s in self.starting if ready_s > now_s]

    def scale(self, desired: int, now_s: float) -> None:
        missing = desired - self.serving - len(self.starting)
        if missing > 0:
            self.starting += [now_s + self.model.start_s] * missing
        elif missing < 0:
            # Those that do not serve yet go first.
            kept = max(0, len(self.starting) + missing)
            self.starting = self.starting[:kept]
            self.serving = min(self.serving, desired - kept)

    def step(self, arriving: float, now_s: float, *, desired: int) -> Tick:
        lost = 0.0
        if arriving > 0 and self.serving == 0 and not self.model.wakes:
            lost, kept = arriving, 0.0
        else:
            kept = arriving
        if kept:
            self.waiting.append([now_s, kept])
        while self.waiting and now_s - self.waiting[0][0] >= self.model.timeout_s:
            lost += self.waiting.popleft()[1]
        begun, latency_sum = self._serve(now_s)
        return Tick(
            time_s=now_s,
            requests=arriving,
            desired=desired,
            serving=self.serving,
            queue=sum(count for _, count in self.waiting),
            latency_s=latency_sum / begun if begun else math.nan,
            lost=lost,
        )

    def _serve(self, now_s: float) -> tuple[float, float]:
        """Begin what fits into this step, oldest first: how many, and the sum of their latencies."""
        slots = self.serving * self.model.concurrency
        room = total = slots * STEP_S / self.model.service_s
        latency_sum = 0.0
        jitter_s = _random_wait_s(
            sum(c for _, c in self.waiting) / total if total else 0.0, slots, self.model.service_s
        )
        while room > 1e-9 and self.waiting:
            cohort = self.waiting[0]
            taken = min(cohort[1], room)
            room -= taken
            # This step's requests come spread over it; older ones have waited since theirs.
            waited_s = now_s - cohort[0] + (STEP_S * (1 - room / total) / 2 if cohort[0] < now_s else 0.0)
            latency_s = round(waited_s + jitter_s + self.model.service_s, 2)
            self.latencies[latency_s] = self.latencies.get(latency_s, 0.0) + taken
            latency_sum += latency_s * taken
            cohort[1] -= taken
            if cohort[1] <= 1e-9:
                self.waiting.popleft()
        self.busy = (total - room) * self.model.service_s / STEP_S
        return total - room, latency_sum


def _random_wait_s(load: float, slots: int, service_s: float) -> float:
    """The mean wait that random arrivals cause at a load below 1; at most a step, where the queue takes over."""
    if load <= 0 or slots == 0:
        return 0.0
    if load >= 1:
        return float(STEP_S) / 2
    wait_s: float = service_s * load ** (math.sqrt(2 * (slots + 1)) - 1) / (slots * (1 - load))
    return min(STEP_S / 2, wait_s)


@dataclass(slots=True)
class _Scaler:
    plan: Plan
    desired: int
    min_capacity: int
    max_capacity: int
    last: Scaling | None = None
    series: dict[Signal, deque[Datapoint]] = field(default_factory=dict)
    minute: dict[Signal, float] = field(default_factory=dict)
    states: dict[str, Judgement] = field(default_factory=dict)
    activities: list[Activity] = field(default_factory=list)
    checked_s: float | None = None

    def set(self, capacity: int, now_s: float, *, cause: str) -> None:
        self.desired = capacity
        self.activities.append(Activity(time_s=now_s, capacity=capacity, cause=cause))

    def measure(self, tick: Tick, fleet: _Fleet) -> None:
        """Publish what CloudWatch would have of this step; nothing per copy while there is none."""
        gauges: dict[Signal, float] = {
            "queue": tick.queue,
            "backlog_at_zero": float(not tick.serving and tick.queue > 0),
        }
        counts: dict[Signal, float] = {"invocations": tick.requests}
        if tick.serving:
            gauges["concurrency_per_copy"] = (fleet.busy + tick.queue) / tick.serving
            counts["invocations_per_copy"] = tick.requests / tick.serving
        elif tick.requests:
            counts["no_capacity"] = tick.requests
        for signal, value in gauges.items():
            self._append(signal, tick.time_s, value)
        for signal, value in counts.items():
            self.minute[signal] = self.minute.get(signal, 0.0) + value
        if (tick.time_s + STEP_S) % 60 == 0:
            for signal, value in self.minute.items():
                self._append(signal, tick.time_s + STEP_S - 60, value)
            self.minute.clear()

    def _append(self, signal: Signal, start_s: float, value: float) -> None:
        if any(alarm.signal == signal for alarm in self.plan.alarms):
            self.series.setdefault(signal, deque(maxlen=self._length(signal))).append(
                Datapoint(start_s=start_s, value=value)
            )

    def _length(self, signal: Signal) -> int:
        resolution_s = _resolution_s(signal)
        rules = [alarm.rule for alarm in self.plan.alarms if alarm.signal == signal]
        return max(rule.range_periods * rule.period_s // resolution_s for rule in rules)

    def act(self, now_s: float, *, in_service: int) -> None:
        """One pass of the autoscaler: schedules, alarms, decision."""
        self._run_schedules(now_s)
        state = TargetState(
            desired=self.desired,
            in_service=in_service,
            min_capacity=self.min_capacity,
            max_capacity=self.max_capacity,
            suspended=self.plan.suspended,
            last=self.last,
        )
        decision = decide(state, [self._trigger(alarm, now_s) for alarm in self.plan.alarms], now_s=now_s)
        if decision.capacity is None or decision.trigger is None or decision.scaling is None:
            return
        trigger = decision.trigger
        self.last = replace(decision.scaling, ended_s=now_s)
        cause = f"monitor alarm {trigger.alarm_name} in state ALARM triggered policy {trigger.policy_name}"
        self.set(decision.capacity, now_s, cause=cause)

    def _run_schedules(self, now_s: float) -> None:
        before_s = now_s - STEP_S if self.checked_s is None else self.checked_s
        self.checked_s = now_s
        if self.plan.suspended.is_scheduled:
            return
        for action in self.plan.actions:
            due = schedule.due_time(action.schedule, after_s=before_s, now_s=now_s, window=action.window)
            if due is None:
                continue
            self.min_capacity = self.min_capacity if action.min_capacity is None else action.min_capacity
            self.max_capacity = self.max_capacity if action.max_capacity is None else action.max_capacity
            bounds = TargetState(
                desired=self.desired, in_service=0, min_capacity=self.min_capacity, max_capacity=self.max_capacity
            )
            if (capacity := capacity_within_bounds(bounds)) is not None:
                kind, value = ("minimum", self.min_capacity)
                if capacity < self.desired:
                    kind, value = ("maximum", self.max_capacity)
                self.set(capacity, now_s, cause=f"{kind} capacity was set to {value}")

    def _trigger(self, alarm: SimulatedAlarm, now_s: float) -> Trigger:
        rule = alarm.rule
        judged = self.states.get(alarm.name)
        if judged is None or now_s % min(rule.period_s, 60) == 0:
            before: AlarmState = "INSUFFICIENT_DATA" if judged is None else judged.state
            start_s, end_s = rule.window(now_s)
            measured = self.series.get(alarm.signal, ())
            is_native = rule.period_s == _resolution_s(alarm.signal)
            points = list(measured) if is_native else _merged(measured, rule, start_s)
            judged = self.states[alarm.name] = judge(rule, points, state=before, end_s=end_s)
        return Trigger(
            policy_name=alarm.policy_name,
            alarm_name=alarm.name,
            policy=alarm.policy,
            state=judged.state,
            values=judged.values,
            threshold=rule.threshold,
            comparison=rule.comparison,
        )


def _resolution_s(signal: Signal) -> int:
    return 60 if signal in PER_MINUTE else STEP_S


AGGREGATES: Mapping[str, str] = {"Average": "mean", "Sum": "sum", "Maximum": "max", "Minimum": "min"}
"""The statistics that a simulated alarm can have."""


def _merged(points: Sequence[Datapoint] | deque[Datapoint], rule: AlarmRule, start_s: float) -> list[Datapoint]:
    """The measurements of each period, as the alarm's statistic has them."""
    groups: dict[int, list[float]] = {}
    for point in points:
        if point.start_s >= start_s:
            groups.setdefault(int((point.start_s - start_s) // rule.period_s), []).append(point.value)
    return [
        Datapoint(start_s=start_s + index * rule.period_s, value=_aggregate(rule.statistic, values), count=len(values))
        for index, values in sorted(groups.items())
    ]


def _aggregate(statistic: str, values: Sequence[float]) -> float:
    match AGGREGATES[statistic]:
        case "sum":
            return math.fsum(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
    return math.fsum(values) / len(values)
