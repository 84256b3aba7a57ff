"""
One version of an endpoint, as it was asked for. Pure values, read from the JSON that the store keeps.

It has the configuration and the models as they were then, and what deploying it shall be like.

The JSON (`spec.version` of an endpoint, `status.versions[generation]` of those that have workers):
`generation`, `config` (CreateEndpointConfig's members), `models` (CreateModel's members, by name), `desired` (weight
and count by variant: UpdateEndpointWeightsAndCapacities changes it) and `deployment` (DeploymentConfig).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from headrace.state.records import Json
from headrace.state.routes import RoutingStrategy

DOWNLOAD_TIMEOUT_S = 1200.0
"""`ModelDataDownloadTimeoutInSeconds` where nothing is said."""
HEALTH_TIMEOUT_S = 240.0
"""`ContainerStartupHealthCheckTimeoutInSeconds` where nothing is said."""

_STRATEGIES = {"LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """How much of a variant is wanted."""

    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One production variant of a version."""

    name: str
    weight: float
    count: int
    """Workers that are wanted; 0 for a host of inference components."""
    instances: int = 0
    """Of a host of inference components: how many it was asked to have."""
    model: str | None
    """None: a host of inference components."""
    instance_type: str
    strategy: RoutingStrategy
    download_timeout_s: float
    health_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How traffic and workers pass from one version to the next."""

    kind: Literal["blue-green", "rolling"] = "blue-green"
    """blue-green: the whole new fleet first. rolling: workers come and go with the traffic."""
    steps: tuple[float, ...] = (1.0,)
    """The new version's part of the traffic, step by step; the last is 1."""
    wait_s: float = 0.0
    """After each step, before the next."""
    termination_wait_s: float = 0.0
    """After the last step, before the old workers go."""
    max_s: float | None = None
    """Longest time for all of it; then it is rolled back."""
    rollback_part: float = 1.0
    """rolling: this part of the workers comes back at a time, above 0 and at most 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of an endpoint."""

    generation: int
    config_name: str
    variants: tuple[Variant, ...]
    rollout: Rollout
    raw: Json = field(compare=False, repr=False)
    """The JSON it was read from; has secrets in it."""

    def variant(self, name: str) -> Variant | None:
        """The variant of that name."""
        return next((variant for variant in self.variants if variant.name == name), None)

    @property
    def desired(self) -> dict[str, Desired]:
        """Weights and counts by variant."""
        return {one.name: Desired(weight=one.weight, count=one.count or one.instances) for one in self.variants}

    @property
    def startup_bound_s(self) -> float:
        """The longest that a worker of it may take from its start until it serves."""
        return max((one.download_timeout_s + one.health_timeout_s for one in self.variants), default=0.0)


def read_version(raw: Json) -> Version:
    """Read the JSON of the store."""
    config: Json = raw["config"]
    desired: Json = raw.get("desired", {})
    variants = tuple(_read_variant(one, desired.get(one["VariantName"], {})) for one in config["ProductionVariants"])
    return Version(
        generation=raw["generation"],
        config_name=config["EndpointConfigName"],
        variants=variants,
        rollout=read_rollout(raw.get("deployment") or {}, num_workers=sum(one.count for one in variants)),
        raw=raw,
    )


def version_json(
    *,
    generation: int,
    config: Json,
    models: Mapping[str, Json],
    desired: Mapping[str, Desired],
    deployment: Json | None,
) -> Json:
    """What the store keeps of a version."""
    return {
        "generation": generation,
        "config": config,
        "models": dict(models),
        "desired": {name: {"weight": one.weight, "count": one.count} for name, one in desired.items()},
        "deployment": deployment or {},
    }


def with_desired(version: Version, desired: Mapping[str, Desired]) -> Version:
    """The same version with other weights and counts."""
    counts = {name: {"weight": one.weight, "count": one.count} for name, one in desired.items()}
    return read_version({**version.raw, "desired": counts})


def asked_capacity(variant: Json) -> Desired:
    """Weight and count as CreateEndpointConfig has them; serverless variants have one worker."""
    count = variant.get("InitialInstanceCount", 1)
    return Desired(weight=float(variant.get("InitialVariantWeight", 1.0)), count=int(count))


def chosen_pool(variant: Json) -> Json:
    """The first choice of a variant's `InstancePools`; empty if it has none."""
    pools: list[Json] = variant.get("InstancePools") or []
    return min(pools, key=lambda pool: pool["Priority"], default={})


def model_name_of(variant: Json) -> str | None:
    """The model of a variant; None for a host of inference components."""
    return chosen_pool(variant).get("ModelNameOverride") or variant.get("ModelName")


def _read_variant(config: Json, desired: Json) -> Variant:
    asked = asked_capacity(config)
    model = model_name_of(config)
    count = int(desired.get("count", asked.count))
    strategy = (config.get("RoutingConfig") or {}).get("RoutingStrategy", "RANDOM")
    return Variant(
        name=config["VariantName"],
        weight=float(desired.get("weight", asked.weight)),
        count=count if model is not None else 0,
        instances=count if model is None else 0,
        model=model,
        instance_type=config.get("InstanceType") or chosen_pool(config).get("InstanceType", ""),
        strategy=cast("RoutingStrategy", strategy if strategy in _STRATEGIES else "PREFIX_AWARE"),
        download_timeout_s=float(config.get("ModelDataDownloadTimeoutInSeconds", DOWNLOAD_TIMEOUT_S)),
        health_timeout_s=float(config.get("ContainerStartupHealthCheckTimeoutInSeconds", HEALTH_TIMEOUT_S)),
    )


def read_rollout(deployment: Json, *, num_workers: int) -> Rollout:
    """
    Read a `DeploymentConfig`.

    Args:
        deployment: as it came; empty is blue/green, all at once.
        num_workers: of the new version, of which an INSTANCE_COUNT is a part.
    """
    if rolling := deployment.get("RollingUpdatePolicy"):
        part, back = _part(rolling["MaximumBatchSize"], num_workers), rolling.get("RollbackMaximumBatchSize")
        return Rollout(
            kind="rolling",
            steps=_even_steps(part),
            wait_s=float(rolling.get("WaitIntervalInSeconds", 0)),
            max_s=_optional_s(rolling.get("MaximumExecutionTimeoutInSeconds")),
            rollback_part=_part(back, num_workers) if back else 1.0,
        )
    policy: Json = deployment.get("BlueGreenUpdatePolicy") or {}
    routing: Json = policy.get("TrafficRoutingConfiguration") or {}
    return Rollout(
        steps=_traffic_steps(routing, num_workers),
        wait_s=float(routing.get("WaitIntervalInSeconds", 0)),
        termination_wait_s=float(policy.get("TerminationWaitInSeconds", 0)),
        max_s=_optional_s(policy.get("MaximumExecutionTimeoutInSeconds")),
    )


def _traffic_steps(routing: Json, num_workers: int) -> tuple[float, ...]:
    kind = routing.get("Type", "ALL_AT_ONCE")
    if kind == "CANARY" and "CanarySize" in routing:
        first = _part(routing["CanarySize"], num_workers)
        return (first, 1.0) if first < 1 else (1.0,)
    if kind == "LINEAR" and "LinearStepSize" in routing:
        return _even_steps(_part(routing["LinearStepSize"], num_workers))
    return (1.0,)


def _part(size: Json, num_workers: int) -> float:
    """A `CapacitySize` as a part of the whole, above 0 and at most 1."""
    value = float(size["Value"])
    part = value / 100 if size["Type"] == "CAPACITY_PERCENT" else value / max(1, num_workers)
    return min(1.0, max(0.01, part))


def _even_steps(part: float) -> tuple[float, ...]:
    number = math.ceil(1 / part - 1e-9)
    return (*(round(part * step, 9) for step in range(1, number)), 1.0)


def _optional_s(value: Any) -> float | None:
    return None if value is None else float(value)
