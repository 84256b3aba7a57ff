"""UpdateEndpoint as Application Auto Scaling restricts it: what is scaled stays until its target is deregistered."""

from headrace.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey
from headrace.control.api.context import CallContext
from headrace.control.api.endpoints import update_endpoint
from headrace.control.model.definitions import ENDPOINT_CONFIG
from headrace.control.model.endpoint import ENDPOINT
from headrace.control.model.workload import serving_revision
from headrace.state.records import Json, Record
from headrace.wire.aws.errors import validation_error


def update_scaled_endpoint(context: CallContext, params: Json) -> Json:
    """Answer UpdateEndpoint, or refuse it for variants with a scalable target that would be removed."""
    endpoint = context.store.find(ENDPOINT, params["EndpointName"])
    config = context.store.find(ENDPOINT_CONFIG, params["EndpointConfigName"])
    if isinstance(endpoint, Record) and isinstance(config, Record):
        _refuse_changes(context, endpoint.name, serving_revision(endpoint).config, config.spec.members)
    return update_endpoint(context, params)


def _refuse_changes(context: CallContext, endpoint: str, old: Json, new: Json) -> None:
    """
    Refuse to remove a variant that is scaled; in strict mode, also to change its instance type, as AWS does.

    Raises:
        AwsError: ValidationException, in AWS's words.
    """
    types = {variant["VariantName"]: variant.get("InstanceType") for variant in new["ProductionVariants"]}
    changed = [
        variant["VariantName"]
        for variant in old["ProductionVariants"]
        if variant["VariantName"] not in types
        or (context.is_strict and types[variant["VariantName"]] != variant.get("InstanceType"))
    ]
    scaled = [name for name in changed if _is_scaled(context, endpoint, name)]
    if scaled:
        raise validation_error(
            f'The variant(s) "[{", ".join(scaled)}]" must be deregistered as scalable targets with AWS Auto Scaling '
            "before they can be removed or have their instance type changed."
        )


def _is_scaled(context: CallContext, endpoint: str, variant: str) -> bool:
    return context.store.find(SCALABLE_TARGET, TargetKey.of_variant(endpoint, variant).name) is not None
