"""
CreateEndpoint, UpdateEndpoint, UpdateEndpointWeightsAndCapacities, ListEndpoints, DeleteEndpoint.

They write the desired state, nothing more; the reconciler reads it from the store.
"""

from typing import Any

from headrace.control.api.context import CallContext, already_exists, tags_of
from headrace.control.api.listing import Listed, list_page
from headrace.control.model.component import INFERENCE_COMPONENT, ComponentRecord, owner_of
from headrace.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.control.model.endpoint import (
    ENDPOINT,
    EndpointRecord,
    EndpointRevision,
    EndpointSpec,
    asked_capacity,
    check_number,
    model_name_of,
    updatable_revision,
    with_capacities,
)
from headrace.control.model.names import TITLES
from headrace.control.model.rollout_config import check_deployment_config
from headrace.control.model.workload import DesiredCapacity, changed_s, unreadable_state, visible_state
from headrace.state.records import AlreadyExists, Json, Unreadable
from headrace.wire.aws.errors import validation_error

_HAS_COMPONENTS = (
    "Cannot delete endpoint with inference component associated. Please delete inference component and try it again."
)


def create_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """CreateEndpoint; DescribeEndpoint knows the endpoint when this returns."""
    name, deployment = params["EndpointName"], params.get("DeploymentConfig") or {}
    check_deployment_config(deployment)
    context.refuse_existing(ENDPOINT, name)
    config, models = _snapshot(context, params["EndpointConfigName"])
    desired = _asked(config)
    check_number(desired)
    revision = EndpointRevision(number=1, config=config, models=models, capacities=desired, deployment=deployment)
    try:
        context.store.create(ENDPOINT, name, spec=EndpointSpec(generation=1, revision=revision), tags=tags_of(params))
    except AlreadyExists:
        raise already_exists(TITLES[ENDPOINT], context.arn(ENDPOINT, name)) from None
    return {"EndpointArn": context.arn(ENDPOINT, name)}


def update_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateEndpoint: another configuration; the old one serves until the new one does."""
    record = context.get(ENDPOINT, params["EndpointName"])
    current = updatable_revision(record, context.arn(ENDPOINT, record.name))
    deployment = params.get("DeploymentConfig") or {}
    if params.get("RetainDeploymentConfig") and not deployment:
        deployment = current.deployment
    check_deployment_config(deployment)
    config, models = _snapshot(context, params["EndpointConfigName"])
    _refuse_homeless(context, record, config)
    desired = _asked(config)
    if params.get("RetainAllVariantProperties"):
        excluded = {kept["VariantPropertyType"] for kept in params.get("ExcludeRetainedVariantProperties") or []}
        desired = {name: _retained(asked, current.desired.get(name), excluded) for name, asked in desired.items()}
    check_number(desired)
    generation = record.spec.generation + 1
    revision = EndpointRevision(
        number=generation, config=config, models=models, capacities=desired, deployment=deployment
    )
    context.store.update(record, spec=EndpointSpec(generation=generation, revision=revision))
    return {"EndpointArn": context.arn(ENDPOINT, record.name)}


def update_weights(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateEndpointWeightsAndCapacities."""
    record = context.get(ENDPOINT, params["EndpointName"])
    arn = context.arn(ENDPOINT, record.name)
    desired = dict(updatable_revision(record, arn).desired)
    names = [change["VariantName"] for change in params["DesiredWeightsAndCapacities"]]
    for change in params["DesiredWeightsAndCapacities"]:
        name = change["VariantName"]
        if names.count(name) > 1:
            raise validation_error(f'The variant name "{name}" was non-unique within the request.')
        if name not in desired:
            raise validation_error(
                f'Variant "{name}" does not exist in endpoint "{arn}". It has: {", ".join(desired)}.'
            )
        if "ServerlessUpdateConfig" in change:
            raise validation_error("ServerlessUpdateConfig is not supported by Headrace yet.")
        desired[name] = DesiredCapacity(
            weight=float(change.get("DesiredWeight", desired[name].weight)),
            count=int(change.get("DesiredInstanceCount", desired[name].count)),
        )
    context.store.update(record, spec=with_capacities(record, desired, arn=arn))
    return {"EndpointArn": arn}


def list_endpoints(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """ListEndpoints."""
    return list_page([_listed(context, record) for record in context.store.list(ENDPOINT)], params, member="Endpoints")


def delete_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteEndpoint, in every state, but not before its inference components; asking again does no harm."""
    record = context.find(ENDPOINT, params["EndpointName"])
    hosted = [component.name for component in _hosted(context, record)]
    if hosted:
        named = "" if context.is_strict else f" It has: {', '.join(hosted)}."
        raise validation_error(f"{_HAS_COMPONENTS}{named}")
    context.store.update(record, is_deleting=True)
    return {}


def _listed(context: CallContext, record: EndpointRecord | Unreadable) -> Listed:
    if isinstance(record, Unreadable):
        status, modified_s = unreadable_state(record).value, record.modified_s
    else:
        status, modified_s = visible_state(record).value, changed_s(record)
    return Listed(
        name=record.name,
        created_s=record.created_s,
        modified_s=modified_s,
        status=status,
        summary={
            "EndpointName": record.name,
            "EndpointArn": context.arn(ENDPOINT, record.name),
            "CreationTime": record.created_s,
            "LastModifiedTime": modified_s,
            "EndpointStatus": status,
        },
    )


def _snapshot(context: CallContext, config_name: str) -> tuple[Json, dict[str, Json]]:
    """Return the configuration and its models as they are now; the endpoint outlives both."""
    config = context.get(ENDPOINT_CONFIG, config_name).spec.members
    names = {model_name_of(variant) for variant in config["ProductionVariants"]} - {None}
    return config, {name: context.get(MODEL, name).spec.members for name in sorted(filter(None, names))}


def _hosted(context: CallContext, record: EndpointRecord | Unreadable) -> list[ComponentRecord | Unreadable]:
    """Return the inference components on an endpoint."""
    components = context.store.list(INFERENCE_COMPONENT)
    return [
        component
        for component in components
        if (owner := owner_of(component)) is not None and owner.endpoint_uid == record.uid
    ]


def _refuse_homeless(context: CallContext, record: EndpointRecord, config: Json) -> None:
    """
    Refuse a configuration without a variant that inference components stand on.

    Raises:
        AwsError: ValidationException; names the components.
    """
    hosts = {variant["VariantName"] for variant in config["ProductionVariants"] if model_name_of(variant) is None}
    for component in _hosted(context, record):
        if isinstance(component, Unreadable):
            continue
        variant = component.spec.revision.variant
        if component.deleting_s is None and variant not in hosts:
            raise validation_error(
                f'Inference component "{component.name}" is on variant "{variant}", which EndpointConfig '
                f'"{config["EndpointConfigName"]}" does not have, or has with a model of its own. Delete the component '
                "first, or keep the variant."
            )


def _asked(config: Json) -> dict[str, DesiredCapacity]:
    return {variant["VariantName"]: asked_capacity(variant) for variant in config["ProductionVariants"]}


def _retained(asked: DesiredCapacity, current: DesiredCapacity | None, excluded: set[str]) -> DesiredCapacity:
    if current is None:
        return asked
    return DesiredCapacity(
        weight=asked.weight if "DesiredWeight" in excluded else current.weight,
        count=asked.count if "DesiredInstanceCount" in excluded else current.count,
    )
