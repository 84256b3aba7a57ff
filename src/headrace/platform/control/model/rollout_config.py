"""`DeploymentConfig`: validation beyond botocore's model, and the rollout that it describes."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import validation_error

_WHERE = "DeploymentConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The steps by which traffic and workers move from one revision to the next."""

    kind: Literal["blue-green", "rolling"] = "blue-green"
    """blue-green: the whole new fleet is started first. rolling: workers are replaced as the traffic shifts."""
    steps: tuple[float, ...] = (1.0,)
    """The new revision's share of the traffic at each step; the last is 1."""
    wait_s: float = 0.0
    """Pause between two steps."""
    termination_wait_s: float = 0.0
    """Pause after the last step, before the old workers are stopped."""
    max_s: float | None = None
    """Time limit of the rollout, after which it is rolled back."""
    rollback_part: float = 1.0
    """rolling: share of the workers that a rollback replaces at a time, above 0 and at most 1."""


def check_deployment_config(config: Json) -> None:
    """Refuse a contradictory configuration. Source: SageMaker developer guide, "Deployment guardrails"."""
    policy, rolling = config.get("BlueGreenUpdatePolicy"), config.get("RollingUpdatePolicy")
    if policy and rolling:
        raise validation_error(f"{_WHERE} has a BlueGreenUpdatePolicy and a RollingUpdatePolicy. Give one of them.")
    if rolling:
        _check_size(rolling["MaximumBatchSize"], "RollingUpdatePolicy.MaximumBatchSize", least=5, most=50)
        if rollback := rolling.get("RollbackMaximumBatchSize"):
            _check_size(rollback, "RollingUpdatePolicy.RollbackMaximumBatchSize", least=5, most=100)
    if policy:
        _check_routing(policy["TrafficRoutingConfiguration"])


def _check_routing(routing: Json) -> None:
    sizes = {"CANARY": ("CanarySize", 1), "LINEAR": ("LinearStepSize", 10)}
    kind = routing["Type"]
    for size, (member, least) in sizes.items():
        where = f"TrafficRoutingConfiguration.{member}"
        if kind == size and member not in routing:
            raise validation_error(f"{where} is missing; traffic routing of Type {kind} needs it.")
        if kind != size and member in routing:
            raise validation_error(f"{where} does not go with traffic routing of Type {kind}. Leave it out.")
        if kind == size:
            _check_size(routing[member], where, least=least, most=50)


def _check_size(size: Json, where: str, *, least: int, most: int) -> None:
    if size["Type"] == "CAPACITY_PERCENT" and not least <= size["Value"] <= most:
        raise validation_error(f"{where} is {size['Value']} %; expected {least} to {most} %.")


def read_rollout(deployment: Json, *, num_workers: int) -> Rollout:
    """Read a `DeploymentConfig`; an INSTANCE_COUNT refers to the workers of the new revision."""
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
    """Return a `CapacitySize` as a share, above 0 and at most 1."""
    value = float(size["Value"])
    part = value / 100 if size["Type"] == "CAPACITY_PERCENT" else value / max(1, num_workers)
    return min(1.0, max(0.01, part))


def _even_steps(part: float) -> tuple[float, ...]:
    number = math.ceil(1 / part - 1e-9)
    return (*(round(part * step, 9) for step in range(1, number)), 1.0)


def _optional_s(value: Any) -> float | None:
    return None if value is None else float(value)
