"""
CreateEndpoint, UpdateEndpoint, UpdateEndpointWeightsAndCapacities, ListEndpoints, DeleteEndpoint.

They write down what is asked, nothing more; the reconciler finds it there. `spec` of an endpoint: `asked` counts the
requests, `version` is what was asked last (see `version`).
"""

from typing import Any

from headrace.control.api.context import CallContext, already_exists, tags_of
from headrace.control.api.listing import Listed, list_page
from headrace.control.model.component_reading import variant_of
from headrace.control.model.deployment_config import check_deployment_config
from headrace.control.model.kinds import ENDPOINT, ENDPOINT_CONFIG, INFERENCE_COMPONENT, MODEL
from headrace.control.model.names import TITLES
from headrace.control.model.progress import EndpointView, State, visible_state
from headrace.control.model.reading import UnreadableRecord, read_endpoint, unreadable_status
from headrace.control.model.version import Desired, Version, asked_capacity, model_name_of, version_json
from headrace.state.records import AlreadyExists, Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

MAX_WORKERS = 100
"""Of one endpoint. A mistyped count shall not fill the machine with processes."""
_HAS_COMPONENTS = (
    "Cannot delete endpoint with inference component associated. Please delete inference component and try it again."
)
_UPDATABLE = frozenset({State.IN_SERVICE, State.UPDATE_ROLLBACK_FAILED})


def create_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """CreateEndpoint; DescribeEndpoint knows the endpoint when this returns."""
    name, deployment = params["EndpointName"], params.get("DeploymentConfig") or {}
    check_deployment_config(deployment)
    context.refuse_existing(ENDPOINT, name)
    config, models = _snapshot(context, params["EndpointConfigName"])
    desired = _asked(config)
    _check_number(desired)
    version = version_json(generation=1, config=config, models=models, desired=desired, deployment=deployment)
    try:
        context.store.create(ENDPOINT, name, spec={"asked": 1, "version": version}, tags=tags_of(params))
    except AlreadyExists:
        raise already_exists(TITLES[ENDPOINT], context.arn(ENDPOINT, name)) from None
    return {"EndpointArn": context.arn(ENDPOINT, name)}


def update_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateEndpoint: another configuration; the old one serves until the new one does."""
    record = context.get(ENDPOINT, params["EndpointName"])
    view, current = updatable(record, context.arn(ENDPOINT, record.name))
    deployment = params.get("DeploymentConfig") or {}
    if params.get("RetainDeploymentConfig") and not deployment:
        deployment = current.raw.get("deployment") or {}
    check_deployment_config(deployment)
    config, models = _snapshot(context, params["EndpointConfigName"])
    _refuse_homeless(context, record, config)
    desired = _asked(config)
    if params.get("RetainAllVariantProperties"):
        excluded = {one["VariantPropertyType"] for one in params.get("ExcludeRetainedVariantProperties") or []}
        desired = {name: _retained(one, current.desired.get(name), excluded) for name, one in desired.items()}
    _check_number(desired)
    asked = view.asked + 1
    version = version_json(generation=asked, config=config, models=models, desired=desired, deployment=deployment)
    context.store.update(record, spec={"asked": asked, "version": version})
    return {"EndpointArn": context.arn(ENDPOINT, record.name)}


def update_weights(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateEndpointWeightsAndCapacities."""
    record = context.get(ENDPOINT, params["EndpointName"])
    arn = context.arn(ENDPOINT, record.name)
    desired = dict(updatable(record, arn)[1].desired)
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
        desired[name] = Desired(
            weight=float(change.get("DesiredWeight", desired[name].weight)),
            count=int(change.get("DesiredInstanceCount", desired[name].count)),
        )
    context.store.update(record, spec=with_capacities(record, desired, arn=arn))
    return {"EndpointArn": arn}


def with_capacities(record: RawRecord, desired: dict[str, Desired], *, arn: str) -> Json:
    """
    An endpoint's spec with other weights and counts of the version that serves; `store.update` writes it.

    Args:
        record: of the endpoint.
        desired: of all variants.
        arn: of the endpoint, for the error's text.

    Raises:
        AwsError: the endpoint is being changed, has failed, or would have too many workers.
    """
    view, current = updatable(record, arn)
    _check_number(desired)
    raw = current.raw
    version = version_json(
        generation=current.generation,
        config=raw["config"],
        models=raw["models"],
        desired=desired,
        deployment=raw.get("deployment"),
    )
    return {"asked": view.asked + 1, "version": version}


def list_endpoints(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """ListEndpoints."""
    return list_page([_listed(context, record) for record in context.store.list(ENDPOINT)], params, member="Endpoints")


def delete_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteEndpoint, in every state, but not before its inference components; asking again does no harm."""
    record = context.get(ENDPOINT, params["EndpointName"])
    hosted = [one.name for one in _hosted(context, record)]
    if hosted:
        named = "" if context.is_strict else f" It has: {', '.join(hosted)}."
        raise validation_error(f"{_HAS_COMPONENTS}{named}")
    context.store.update(record, is_deleting=True)
    return {}


def modified_s(record: RawRecord, view: EndpointView) -> float:
    """When the endpoint's state changed last, or a change was asked for."""
    if view.deleting_s is not None:
        return view.deleting_s
    if view.progress is None or view.progress.observed != view.asked:
        return record.modified_s
    return max(view.created_s, view.progress.since_s)


def _listed(context: CallContext, record: RawRecord) -> Listed:
    try:
        view = read_endpoint(record)
        status, changed_s = visible_state(view).value, modified_s(record, view)
    except UnreadableRecord:
        status, changed_s = unreadable_status(record), record.modified_s
    return Listed(
        name=record.name,
        created_s=record.created_s,
        modified_s=changed_s,
        status=status,
        summary={
            "EndpointName": record.name,
            "EndpointArn": context.arn(ENDPOINT, record.name),
            "CreationTime": record.created_s,
            "LastModifiedTime": changed_s,
            "EndpointStatus": status,
        },
    )


def _snapshot(context: CallContext, config_name: str) -> tuple[Json, dict[str, Json]]:
    """The configuration and its models as they are now; the endpoint outlives both."""
    config = context.get(ENDPOINT_CONFIG, config_name).spec
    names = {model_name_of(variant) for variant in config["ProductionVariants"]} - {None}
    return config, {name: context.get(MODEL, name).spec for name in sorted(filter(None, names))}


def _hosted(context: CallContext, record: RawRecord) -> list[RawRecord]:
    """The inference components on an endpoint."""
    components = context.store.list(INFERENCE_COMPONENT)
    return [one for one in components if one.spec.get("endpoint_uid") == record.uid]


def _refuse_homeless(context: CallContext, record: RawRecord, config: Json) -> None:
    """
    Refuse a configuration without a variant that inference components stand on.

    Raises:
        AwsError: ValidationException; names the components.
    """
    hosts = {one["VariantName"] for one in config["ProductionVariants"] if model_name_of(one) is None}
    for component in _hosted(context, record):
        variant = variant_of(component)
        if component.deleting_s is None and variant and variant not in hosts:
            raise validation_error(
                f'Inference component "{component.name}" is on variant "{variant}", which EndpointConfig '
                f'"{config["EndpointConfigName"]}" does not have, or has with a model of its own. Delete the component '
                "first, or keep the variant."
            )


def _asked(config: Json) -> dict[str, Desired]:
    return {variant["VariantName"]: asked_capacity(variant) for variant in config["ProductionVariants"]}


def _check_number(desired: dict[str, Desired]) -> None:
    """
    Refuse more workers than an endpoint may have.

    Raises:
        AwsError: ResourceLimitExceeded.
    """
    number = sum(one.count for one in desired.values())
    if number > MAX_WORKERS:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit 'Number of instances for an endpoint' is {MAX_WORKERS} Instances, "
            f"and {number} were asked for. Ask for fewer.",
        )


def _retained(asked: Desired, current: Desired | None, excluded: set[str]) -> Desired:
    if current is None:
        return asked
    return Desired(
        weight=asked.weight if "DesiredWeight" in excluded else current.weight,
        count=asked.count if "DesiredInstanceCount" in excluded else current.count,
    )


def updatable(record: RawRecord, arn: str) -> tuple[EndpointView, Version]:
    """
    The endpoint and the version that serves, if it may be updated now.

    Raises:
        AwsError: it has failed, or is being changed.
    """
    try:
        view = read_endpoint(record)
    except UnreadableRecord as error:
        raise validation_error(str(error)) from error
    state = visible_state(view)
    if state in _UPDATABLE and view.progress is not None and view.progress.stable is not None:
        return view, view.versions[view.progress.stable]
    if state is State.FAILED:
        raise validation_error(f'Cannot update failed endpoint "{arn}". Delete it, and create it again.')
    raise validation_error(f'Cannot update in-progress endpoint "{arn}".')
