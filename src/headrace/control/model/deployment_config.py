"""Rules of `DeploymentConfig` that botocore's model does not have. Pure."""

from typing import Any

from headrace.wire.aws.errors import validation_error

_WHERE = "DeploymentConfig"


def check_deployment_config(config: dict[str, Any]) -> None:
    """
    Refuse a deployment that contradicts itself. Source: SageMaker developer guide, "Deployment guardrails".

    Raises:
        AwsError: ValidationException; says which part.
    """
    policy, rolling = config.get("BlueGreenUpdatePolicy"), config.get("RollingUpdatePolicy")
    if policy and rolling:
        raise validation_error(f"{_WHERE} has a BlueGreenUpdatePolicy and a RollingUpdatePolicy. Give one of them.")
    if rolling:
        _check_size(rolling["MaximumBatchSize"], "RollingUpdatePolicy.MaximumBatchSize", least=5, most=50)
        if rollback := rolling.get("RollbackMaximumBatchSize"):
            _check_size(rollback, "RollingUpdatePolicy.RollbackMaximumBatchSize", least=5, most=100)
    if policy:
        _check_routing(policy["TrafficRoutingConfiguration"])


def _check_routing(routing: dict[str, Any]) -> None:
    sizes = {"CANARY": ("CanarySize", 1), "LINEAR": ("LinearStepSize", 10)}
    kind = routing["Type"]
    for one, (member, least) in sizes.items():
        where = f"TrafficRoutingConfiguration.{member}"
        if kind == one and member not in routing:
            raise validation_error(f"{where} is missing; traffic routing of Type {kind} needs it.")
        if kind != one and member in routing:
            raise validation_error(f"{where} does not go with traffic routing of Type {kind}. Leave it out.")
        if kind == one:
            _check_size(routing[member], where, least=least, most=50)


def _check_size(size: dict[str, Any], where: str, *, least: int, most: int) -> None:
    if size["Type"] == "CAPACITY_PERCENT" and not least <= size["Value"] <= most:
        raise validation_error(f"{where} is {size['Value']} %; wanted: {least} to {most} %.")
