"""
The CloudWatch metrics of a simulated fleet that follow from requests, queue and copies. Pure.

They are published like the platform's: counts have one value for each request, and 0 for ten seconds without requests
to a serving copy; gauges have one value every ten seconds. Only the metrics that an alarm watches are kept.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.platform.autoscaling.simulation.fleet import STEP_S, StepOutcome
from headrace.platform.cloudwatch.alarms.rules import MINUTE_S, AlarmRule, Datapoint, read_datapoints
from headrace.platform.cloudwatch.math import queries as metric_math
from headrace.platform.cloudwatch.metrics.metric import Bucket, Metric, Point, resample, whole_period
from headrace.platform.cloudwatch.metrics.statistics import BASIC, is_statistic

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
        """Keep the watched metrics of a step that began at `now_s`."""
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
