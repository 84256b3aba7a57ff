"""
A simulated fleet: copies that start, serve and stop, and requests that wait for them.

A copy serves `concurrency` requests at once, each for `service_s`; others wait in one FIFO queue. A new copy serves
after `start_s`. Requests are a fluid in steps of 10 s; the wait that random arrivals add is estimated (Sakasegawa 1977,
M/M/c).

The CloudWatch metrics that follow from requests, queue and copies are published like the platform's: counts have one
value for each request, and 0 for ten seconds without requests to a serving copy; gauges have one value every ten
seconds. Only the metrics that an alarm watches are kept.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.platform.cloudwatch.alarms.rules import MINUTE_S, AlarmRule, Datapoint, read_datapoints
from headrace.platform.cloudwatch.math import queries as metric_math
from headrace.platform.cloudwatch.metrics.metric import Bucket, Metric, Point, resample, whole_period
from headrace.platform.cloudwatch.metrics.statistics import BASIC, is_statistic

STEP_S = 10

AtZero = Literal["wake", "fail", "wait"]
"""
The fate of a request that finds no copy: `wake` one and wait for it; `fail`, as on AWS; or only `wait`, as in the queue
of an asynchronous endpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    concurrency: int = 8
    """Requests that one copy serves at once."""
    service_s: float = 2.0
    """Seconds from the start of an answer to its end."""
    start_s: float = 30.0
    """Seconds from the decision until a new copy serves."""
    timeout_s: float = 60.0
    """Seconds after which a waiting request is lost."""
    at_zero: AtZero = "wake"


@dataclass(slots=True)
class Cohort:
    """Waiting requests that arrived together."""

    arrived_s: float
    count: float
    is_held: bool = False
    """True if they arrived while no copy served."""


@dataclass(slots=True)
class StepOutcome:
    """The events of one step of ten seconds."""

    serving: int
    """Copies at its beginning."""
    held: float = 0.0
    """Requests that found no copy and wait for one."""
    failed: float = 0.0
    """Requests that found no copy and failed."""
    expired: float = 0.0
    """Requests that reached their timeout."""
    queue: float = 0.0
    """Requests waiting at its end."""
    busy: float = 0.0
    """Average number of requests being served."""
    answered: list[tuple[float, float, float]] = field(default_factory=list)
    """(Latency in seconds, part of it on hold, count) of the answers begun."""

    @property
    def num_answered(self) -> float:
        return math.fsum(count for _, _, count in self.answered)

    @property
    def latency_s(self) -> float:
        """Mean seconds from arrival to the end of the answers begun; NaN if none was."""
        num = self.num_answered
        return math.fsum(latency_s * count for latency_s, _, count in self.answered) / num if num else math.nan


@dataclass(slots=True)
class SimulatedFleet:
    """Copies and the queue in front of them."""

    model: FleetModel
    serving: int
    starting: list[float] = field(default_factory=list)
    """The times from which new copies serve."""
    waiting: deque[Cohort] = field(default_factory=deque)
    """Oldest first."""

    def start_ready(self, now_s: float) -> None:
        """Move copies whose start is complete into service."""
        self.serving += sum(1 for ready_s in self.starting if ready_s <= now_s)
        self.starting = [ready_s for ready_s in self.starting if ready_s > now_s]

    def scale(self, desired: int, now_s: float) -> None:
        """Start or stop copies; those that do not serve yet are stopped first."""
        missing = desired - self.serving - len(self.starting)
        if missing > 0:
            self.starting += [now_s + self.model.start_s] * missing
        elif missing < 0:
            kept = max(0, len(self.starting) + missing)
            self.starting = self.starting[:kept]
            self.serving = min(self.serving, desired - kept)

    def step(self, arriving: float, now_s: float) -> StepOutcome:
        """Simulate ten seconds."""
        step = StepOutcome(serving=self.serving)
        offset_s = 0.0 if self.serving else min((ready_s - now_s for ready_s in self.starting), default=STEP_S)
        offset_s = min(offset_s, STEP_S)
        self._arrive(step, arriving, now_s, offset_s)
        while self.waiting and now_s - self.waiting[0].arrived_s >= self.model.timeout_s:
            step.expired += self.waiting.popleft().count
        self._serve(step, now_s, offset_s)
        step.queue = math.fsum(cohort.count for cohort in self.waiting)
        return step

    def _arrive(self, step: StepOutcome, arriving: float, now_s: float, offset_s: float) -> None:
        """Queue the arrivals; those before the first copy serves find none, at least one if it woke the copy."""
        early = max(arriving * offset_s / STEP_S, min(1.0, arriving)) if offset_s > 0 else 0.0
        if early and self.model.at_zero == "fail":
            step.failed = early
        elif early:
            step.held = early
            self.waiting.append(Cohort(arrived_s=now_s, count=early, is_held=True))
        if arriving > early:
            self.waiting.append(Cohort(arrived_s=now_s + offset_s, count=arriving - early))

    def _serve(self, step: StepOutcome, now_s: float, offset_s: float) -> None:
        """Begin the answers that fit into this step, oldest requests first."""
        until_s = now_s + STEP_S
        copy_s = self.serving * STEP_S + math.fsum(until_s - ready_s for ready_s in self.starting if ready_s < until_s)
        total = room = copy_s * self.model.concurrency / self.model.service_s
        if not total:
            return
        slots = max(1.0, copy_s / (STEP_S - offset_s)) * self.model.concurrency
        load = math.fsum(cohort.count for cohort in self.waiting) / total
        jitter_s = random_wait_s(load, slots, self.model.service_s)
        while room > 1e-9 and self.waiting:
            cohort = self.waiting[0]
            taken = min(cohort.count, room)
            # The start of its answers, if all waiting requests are begun one after the other.
            begun_s = now_s + offset_s + (STEP_S - offset_s) * (1 - (room - taken / 2) / total)
            if cohort.arrived_s == now_s + offset_s and not cohort.is_held:
                # Their arrivals are spread over the step: those wait that arrive before older ones are begun.
                busy_s = (STEP_S - offset_s) * (1 - room / total)
                begun_s = cohort.arrived_s + busy_s * busy_s / (2 * (STEP_S - offset_s))
            waited_s = begun_s - cohort.arrived_s
            held_s = waited_s if cohort.is_held else 0.0
            room -= taken
            step.answered.append((round(waited_s + jitter_s + self.model.service_s, 2), held_s, taken))
            cohort.count -= taken
            if cohort.count <= 1e-9:
                self.waiting.popleft()
        step.busy = (total - room) * self.model.service_s / STEP_S


def random_wait_s(load: float, slots: float, service_s: float) -> float:
    """Return the mean wait due to random arrivals below a load of 1; at most half a step, the queue does the rest."""
    if load <= 0 or slots == 0:
        return 0.0
    if load >= 1:
        return STEP_S / 2
    wait_s: float = service_s * load ** (math.sqrt(2 * (slots + 1)) - 1) / (slots * (1 - load))
    return min(STEP_S / 2, wait_s)


NAMESPACE = "simulated"
_MICROSECONDS = 1e6

METRICS: Mapping[str, str] = {
    "Invocations": "Invocations",
    "InvocationsPerInstance": "InvocationsPerCopy",
    "InvocationsPerCopy": "InvocationsPerCopy",
    "ConcurrentRequestsPerModel": "ConcurrentRequestsPerCopy",
    "ConcurrentRequestsPerCopy": "ConcurrentRequestsPerCopy",
    "ModelLatency": "ModelLatency",
    "NoCapacityInvocationFailures": "NoCapacityInvocationFailures",
    "HeldRequests": "HeldRequests",
    "HoldTime": "HoldTime",
    "QueueDepth": "QueueDepth",
    "ApproximateBacklogSize": "ApproximateBacklogSize",
    "ApproximateBacklogSizePerInstance": "ApproximateBacklogSizePerInstance",
    "HasBacklogWithoutCapacity": "HasBacklogWithoutCapacity",
    "CurrentInstanceCount": "CurrentCopyCount",
    "CurrentCopyCount": "CurrentCopyCount",
    "DesiredInstanceCount": "DesiredCopyCount",
    "DesiredCopyCount": "DesiredCopyCount",
}
"""CloudWatch name → simulated name, for any namespace, dimensions and statistic."""


def metric(name: str) -> Metric:
    """Return the simulated metric for a CloudWatch name. Raises `ValueError`: the metric is not simulated."""
    if name not in METRICS:
        raise ValueError(f"Metric {name!r} cannot be simulated; expected one of {', '.join(METRICS)}.")
    return Metric(namespace=NAMESPACE, name=METRICS[name])


def measured(step: StepOutcome, *, desired: int, is_async: bool = False) -> Iterator[tuple[str, float, float]]:
    """
    Yield (metric, value, count) of one step, as gateway, queue and reconciler publish them.

    Invocations of asynchronous endpoints are not counted, and wait in a queue of their own.
    """
    copies = max(1, step.serving)
    done = 0.0 if is_async else step.num_answered + step.expired
    yield "Invocations", 1.0, done
    yield "InvocationsPerCopy", 1.0 / copies, done
    if step.serving and not done and not is_async:
        yield "Invocations", 0.0, 1.0
        yield "InvocationsPerCopy", 0.0, 1.0
    if step.serving or step.queue:
        yield "ConcurrentRequestsPerCopy", (step.busy + (0.0 if is_async else step.queue)) / copies, 1.0
    for latency_s, held_s, count in step.answered:
        yield "ModelLatency", (latency_s - held_s) * _MICROSECONDS, count
        if held_s:
            yield "HeldRequests", 1.0, count
            yield "HoldTime", held_s * _MICROSECONDS, count
    yield "NoCapacityInvocationFailures", 1.0, step.failed
    if step.serving:
        yield "QueueDepth", 0.0 if is_async else step.queue / copies, float(step.serving)
        yield "ApproximateBacklogSizePerInstance", (step.queue + step.busy) / copies, 1.0
    yield "ApproximateBacklogSize", step.queue + step.busy, 1.0
    yield "HasBacklogWithoutCapacity", float(not step.serving and step.queue > 0), 1.0
    yield "CurrentCopyCount", float(step.serving), 1.0
    yield "DesiredCopyCount", float(desired), 1.0


@dataclass(slots=True)
class AlarmReader:
    """Reads the datapoints of one alarm, each period once."""

    rule: AlarmRule
    series: "SimulatedSeries"
    _found: deque[Datapoint] = field(default_factory=deque)

    def read(self, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
        """Return the datapoints of [start_s, end_s), oldest first."""
        if self.rule.metric is None or self.rule.period_s > MINUTE_S:
            return read_datapoints(self.rule, self.series.read, start_s=start_s, end_s=end_s)
        # Ended periods do not change, so only new ones are read: a day has ten thousand evaluations.
        while self._found and self._found[0].start_s < start_s:
            self._found.popleft()
        known_s = self._found[-1].start_s + self.rule.period_s if self._found else start_s
        self._found += read_datapoints(self.rule, self.series.read, start_s=max(start_s, known_s), end_s=end_s)
        return self._found


class SimulatedSeries:
    """The metrics that the alarms of a scenario watch, as far back as their evaluation ranges."""

    def __init__(self, rules: Sequence[AlarmRule], *, is_async: bool = False) -> None:
        self._is_async = is_async
        self._points: dict[Metric, deque[Point]] = {}
        for rule in rules:
            for watched_metric in watched(rule):
                length = rule.range_periods * max(1, rule.period_s // STEP_S) + 1
                old = self._points.get(watched_metric, deque(maxlen=0)).maxlen or 0
                self._points[watched_metric] = deque(maxlen=max(old, length))

    def measure(self, step: StepOutcome, now_s: float, *, desired: int) -> None:
        buckets: dict[Metric, Bucket] = {}
        for name, value, count in measured(step, desired=desired, is_async=self._is_async):
            simulated = Metric(namespace=NAMESPACE, name=name)
            if count > 0 and simulated in self._points:
                buckets.setdefault(simulated, Bucket()).add(value, count)
        for simulated, bucket in buckets.items():
            self._points[simulated].append(bucket.point(now_s, "None"))

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """Return the points of [start_s, end_s), oldest first; see `SeriesReader.read`."""
        found: list[Point] = []
        for point in reversed(self._points[metric]):  # from the newest back
            if point.start_s < start_s:
                break
            if point.start_s < end_s:
                found.append(point)
        found.reverse()
        return found if whole_period(period_s) == STEP_S else resample(found, period_s=period_s)


def watched(rule: AlarmRule) -> list[Metric]:
    if rule.metric is not None:
        return [rule.metric]
    queries = map(metric_math.query_from_json, rule.queries)
    return [query.metric for query in queries if query.metric is not None]


def check(rule: AlarmRule) -> None:
    """Check the statistics and expressions of a rule. Raises `ValueError`: one of them is not supported."""
    names = [rule.statistic] if rule.metric is not None else []
    names += [query["MetricStat"]["Stat"] for query in rule.queries if query.get("MetricStat")]
    for name in names:
        if not is_statistic(name):
            raise ValueError(f"Statistic is {name!r}; expected {', '.join(BASIC)}, p50, p99, tm90 and so on.")

    read_datapoints(rule, SimulatedSeries([rule]).read, start_s=0.0, end_s=float(rule.period_s))
