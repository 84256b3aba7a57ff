"""CreateEndpointConfig, DescribeEndpointConfig, ListEndpointConfigs, DeleteEndpointConfig."""

from typing import Any

from headrace.control.api.context import CallContext, without
from headrace.control.api.definition_calls import DefinitionCalls
from headrace.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.control.model.endpoint import model_name_of
from headrace.wire.aws.errors import validation_error

_NOT_YET = ("ShadowProductionVariants", "ExplainerConfig")


ENDPOINT_CONFIGS = DefinitionCalls(kind=ENDPOINT_CONFIG, word="EndpointConfig")


def create_endpoint_config(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """CreateEndpointConfig."""
    name = params["EndpointConfigName"]
    _check_config(context, params)
    context.refuse_existing(ENDPOINT_CONFIG, name)
    spec = without(params, "Tags")
    spec["ProductionVariants"] = [_completed(variant) for variant in params["ProductionVariants"]]
    return ENDPOINT_CONFIGS.create(context, name, members=spec, params=params)


def _completed(variant: dict[str, Any]) -> dict[str, Any]:
    """A variant with the defaults that AWS fills in."""
    completed = {"InitialVariantWeight": 1.0, **variant}
    if "ServerlessConfig" not in variant:
        completed.setdefault("InitialInstanceCount", 1)
    return completed


def _check_config(context: CallContext, params: dict[str, Any]) -> None:
    """
    Refuse what cannot be deployed.

    Raises:
        AwsError: as AWS words it where AWS refuses too.
    """
    for member in _NOT_YET:
        if params.get(member):
            raise validation_error(f"{member} is not supported by Headrace yet. Leave it out.")
    names = [variant["VariantName"] for variant in params["ProductionVariants"]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise validation_error(f"Two production variants have the name {twice}. Variant names are unique.")
    for variant in params["ProductionVariants"]:
        _check_variant(context, variant, has_role=bool(params.get("ExecutionRoleArn")))
    hosts = [model_name_of(variant) is None for variant in params["ProductionVariants"]]
    if any(hosts) and not all(hosts):
        raise validation_error("Either all production variants name a model, or none does (inference components).")


def _check_variant(context: CallContext, variant: dict[str, Any], *, has_role: bool) -> None:
    name = variant["VariantName"]
    is_serverless = "ServerlessConfig" in variant
    if variant.get("InstanceType") and variant.get("InstancePools"):
        raise validation_error(f"Variant {name} has both InstanceType and InstancePools. Give one of them.")
    has_type = bool(variant.get("InstanceType") or variant.get("InstancePools"))
    if is_serverless and (has_type or "InitialInstanceCount" in variant):
        raise validation_error(f"Variant {name} has a ServerlessConfig, and instances too. Give one of them.")
    if not is_serverless and not has_type:
        raise validation_error(f"Variant {name} has no InstanceType, and no ServerlessConfig. Give one of them.")
    if context.is_strict and not is_serverless and "InitialInstanceCount" not in variant:
        raise validation_error(f"Variant {name} has no InitialInstanceCount.")
    model = model_name_of(variant)
    if model is not None:
        context.get(MODEL, model)
    elif not has_role:
        raise validation_error(
            f"Variant {name} names no model. Name one, or give ExecutionRoleArn: the endpoint then hosts "
            "inference components."
        )
