"""
Inference recommendations: the tests of a job, its levels of load, and what is recommended. Pure.

Source: SageMaker developer guide, "Recommendation results"; API reference, RecommendationMetrics: latencies are
microseconds, invocations those of a minute.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.platform.cluster.instance_prices import price_per_hour
from headrace.platform.state.records import Json

DEFAULT_TYPES: Final = ("ml.c5.xlarge", "ml.m5.xlarge", "ml.g5.xlarge")
MAX_TESTS: Final = 10
_LEVEL_S: Final = 5.0
_MAX_USERS: Final = 64
_COOLDOWN_S: Final = 300
"""Application Auto Scaling's default for endpoints."""
_FLAT: Final = 1.05
"""More users must raise the throughput by this factor, else it is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """So many users, each of whom sends a request when the previous one has been answered."""

    users: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a level of load."""

    users: int
    duration_s: float
    latencies_s: Sequence[float] = field(repr=False)

    @property
    def per_minute(self) -> float:
        return 60 * len(self.latencies_s) / self.duration_s if self.duration_s else 0.0

    @property
    def mean_s(self) -> float:
        return sum(self.latencies_s) / len(self.latencies_s)

    def percentile_s(self, percent: float) -> float:
        """Return a latency by the nearest rank."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered), max(1, math.ceil(percent / 100 * len(ordered)))) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a test has seen enough. Source: API reference, RecommendationJobStoppingConditions."""

    max_per_minute: int | None = None
    percent: float = 95.0
    latency_s: float | None = None
    stops_when_flat: bool = True

    @classmethod
    def of(cls, members: Json) -> "Limits":
        """Read the members of CreateInferenceRecommendationsJob. Raises `ValueError`: a percentile is not like P95."""
        conditions: Json = members.get("StoppingConditions") or {}
        threshold: Json = next(iter(conditions.get("ModelLatencyThresholds") or []), {})
        text = str(threshold.get("Percentile", "P95"))
        percent = float(text.upper().removeprefix("P"))
        if not 0 < percent <= 100:
            raise ValueError(text)
        limit_ms = threshold.get("ValueInMilliseconds")
        return cls(
            max_per_minute=conditions.get("MaxInvocations"),
            percent=percent,
            latency_s=None if limit_ms is None else limit_ms / 1000,
            stops_when_flat=conditions.get("FlatInvocations", "Stop") == "Stop",
        )

    def is_kept(self, level: Measured) -> bool:
        """Return whether a level is within the latency that is asked for."""
        return self.latency_s is None or level.percentile_s(self.percent) <= self.latency_s

    def has_seen_enough(self, levels: Sequence[Measured]) -> bool:
        last = levels[-1]
        if not self.is_kept(last) or (self.max_per_minute is not None and last.per_minute >= self.max_per_minute):
            return True
        return self.stops_when_flat and len(levels) > 1 and last.per_minute < _FLAT * levels[-2].per_minute

    def best(self, levels: Sequence[Measured]) -> Measured:
        """Return the level with most invocations among those within the limit; if there is none, the first."""
        kept = [level for level in levels if self.is_kept(level)]
        return max(kept, key=lambda level: level.per_minute) if kept else levels[0]


def levels_of(members: Json) -> Iterator[Level]:
    """Yield the levels of load of each test: those of the traffic pattern, else ever more users."""
    traffic: Json = members["InputConfig"].get("TrafficPattern") or {}
    stairs: Json = traffic.get("Stairs") or {}
    if traffic.get("TrafficType", "STAIRS" if stairs else "PHASES") == "STAIRS":
        for step in range(1, stairs.get("NumberOfSteps", 1) + 1):
            users = step * stairs.get("UsersPerStep", 1)
            yield Level(users=users, duration_s=float(stairs.get("DurationInSeconds", _LEVEL_S)))
        return
    users = 0
    for phase in traffic.get("Phases") or []:
        users += phase.get("InitialNumberOfUsers", 1)
        rest_s = float(phase.get("DurationInSeconds", _LEVEL_S))
        while rest_s > 0:  # `SpawnRate` users come each minute
            yield Level(users=users, duration_s=min(60.0, rest_s))
            rest_s -= 60.0
            users += phase.get("SpawnRate", 0) if rest_s > 0 else 0
    if not users:
        yield from (Level(users=1 << power, duration_s=_LEVEL_S) for power in range(_MAX_USERS.bit_length()))


def tests_of(input_config: Json, instance_types: Sequence[str]) -> list[Json]:
    """Return the tests of a job: each configuration with each combination of its values."""
    configs = input_config.get("EndpointConfigurations") or [{"InstanceType": name} for name in instance_types]
    found: list[Json] = []
    for config in configs:
        ranges = (config.get("EnvironmentParameterRanges") or {}).get("CategoricalParameterRanges") or []
        names = [each["Name"] for each in ranges]
        found.extend(
            {"instance_type": config["InstanceType"], "environment": dict(zip(names, values, strict=True))}
            for values in itertools.product(*(each["Value"] for each in ranges))
        )
    return found


def metrics_of(instance_type: str, best: Measured, factor: float, facts: Mapping[str, Any]) -> Json:
    """Return the metrics of a test whose throughput is `factor` times that on this machine."""
    per_minute = best.per_minute * factor
    metrics: Json = {
        "MaxInvocations": round(per_minute),
        "ModelLatency": round(best.mean_s * 1e6 / factor),
        **facts,
    }
    price = price_per_hour(instance_type)
    if price is not None:
        metrics |= {"CostPerHour": price, "CostPerInference": price / 60 / per_minute if per_minute else price}
    return metrics


def step_members(job: str, step: Json) -> Json:
    """Return the members of a recommendation and of a step's benchmark."""
    variables = [{"Key": key, "ValueType": "String", "Value": value} for key, value in step["environment"].items()]
    digest = hashlib.sha256(repr((job, step["number"])).encode()).hexdigest()
    shown = {
        "Metrics": step["metrics"],
        "EndpointConfiguration": {
            "EndpointName": f"sm-epc-{digest[:8]}",
            "VariantName": step["basis"],
            "InstanceType": step["instance_type"],
            "InitialInstanceCount": 1,
        },
        "ModelConfiguration": {"EnvironmentParameters": variables} if variables else {},
        "InvocationStartTime": step["start_s"],
        "InvocationEndTime": step["end_s"],
        "FailureReason": step["reason"] or None,
    }
    return {name: value for name, value in shown.items() if value is not None}


def recommendations(job: str, steps: Sequence[Json]) -> list[Json]:
    """Return the recommendations of a job, the cheapest inference first, then the fastest."""
    found = [step for step in steps if step["metrics"]]
    found.sort(key=lambda step: (step["metrics"].get("CostPerInference", math.inf), step["metrics"]["ModelLatency"]))
    return [
        {
            "RecommendationId": f"{job}/{hashlib.sha256(repr((job, step['number'])).encode()).hexdigest()[:8]}",
            **{name: value for name, value in step_members(job, step).items() if name != "FailureReason"},
        }
        for step in found
    ]


def scaling_policy(metrics: Json, *, target_percent: int, min_per_minute: int, max_per_minute: int) -> Json:
    """
    Return Metric and DynamicScalingConfiguration of GetScalingConfigurationRecommendation.

    An instance takes the target's share of the invocations that saturate it; capacities follow from the objective.
    """
    per_instance = max(1, metrics["MaxInvocations"] * target_percent // 100)
    lowest, highest = (max(1, math.ceil(wanted / per_instance)) for wanted in (min_per_minute, max_per_minute))
    predefined = {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}
    policy = {"MetricSpecification": {"Predefined": predefined}, "TargetValue": float(per_instance)}
    return {
        "Metric": {"InvocationsPerInstance": per_instance, "ModelLatency": metrics["ModelLatency"]},
        "DynamicScalingConfiguration": {
            "MinCapacity": lowest,
            "MaxCapacity": max(lowest, highest),
            "ScaleInCooldown": _COOLDOWN_S,
            "ScaleOutCooldown": _COOLDOWN_S,
            "ScalingPolicies": [{"TargetTracking": policy}],
        },
    }
