"""
CreateEndpoint, UpdateEndpoint, UpdateEndpointWeightsAndCapacities, DescribeEndpoint, ListEndpoints, DeleteEndpoint.

They only write the desired state; the reconciler reads it from the store. DescribeEndpoint reads only the endpoint's
own record: its configuration and models may be deleted.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headrace.platform.control.api.context import CallContext, list_page
from headrace.platform.control.api.definitions import check_serverless
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRecord, owner_of
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL, containers_of
from headrace.platform.control.model.endpoint import (
    ENDPOINT,
    PRODUCTION,
    SHADOWS,
    EndpointRecord,
    EndpointRevision,
    EndpointSpec,
    check_num_workers,
    desired_workload,
    has_capacity,
    initial_capacity,
    model_name_of,
    updatable_revision,
    variant_configs,
    variant_counts,
    with_capacities,
)
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.rollout_config import check_deployment_config
from headrace.platform.control.model.workload import (
    DesiredCapacity,
    Stage,
    State,
    Workload,
    changed_s,
    failure_reason,
    is_observed,
    last_deployment,
    serving_revision,
    visible_state,
)
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.rollout import traffic_fraction
from headrace.platform.state.records import Json, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import validation_error

_MAX_MESSAGE_CHARACTERS = 1024
"""Maximum length of a StatusMessage."""
_HAS_COMPONENTS = (
    "Cannot delete endpoint with inference component associated. Please delete inference component and try it again."
)


def create_endpoint(context: CallContext, params: Json) -> Json:
    """Answer CreateEndpoint; DescribeEndpoint finds the endpoint as soon as this returns."""
    name, deployment = params["EndpointName"], params.get("DeploymentConfig") or {}
    check_deployment_config(deployment)
    context.refuse_existing(ENDPOINT, name)
    config, models = _snapshot(context, params["EndpointConfigName"])
    desired = _initial_capacities(config)
    check_num_workers(desired)
    revision = EndpointRevision(number=1, config=config, models=models, capacities=desired, deployment=deployment)
    arn = context.create(ENDPOINT, name, spec=EndpointSpec(generation=1, revision=revision), params=params)
    return {"EndpointArn": arn}


def update_endpoint(context: CallContext, params: Json) -> Json:
    """Answer UpdateEndpoint: deploy another configuration; the old one serves until the new one is ready."""
    record = context.get(ENDPOINT, params["EndpointName"])
    current = updatable_revision(record, context.arn(ENDPOINT, record.name))
    deployment = params.get("DeploymentConfig") or {}
    if params.get("RetainDeploymentConfig") and not deployment:
        deployment = record.spec.revision.deployment
    check_deployment_config(deployment)
    config, models = _snapshot(context, params["EndpointConfigName"])
    refuse_other_kind(record.name, current.config, config)
    _check_component_hosts(context, record, config)
    desired = _initial_capacities(config)
    if params.get("RetainAllVariantProperties"):
        excluded = {kept["VariantPropertyType"] for kept in params.get("ExcludeRetainedVariantProperties") or []}
        for name, kept in current.desired.items():
            if name in desired:
                desired[name] = DesiredCapacity(
                    weight=(desired[name] if "DesiredWeight" in excluded else kept).weight,
                    count=(desired[name] if "DesiredInstanceCount" in excluded else kept).count,
                )
    check_num_workers(desired)
    generation = record.spec.generation + 1
    revision = EndpointRevision(
        number=generation, config=config, models=models, capacities=desired, deployment=deployment
    )
    context.store.update(record, spec=EndpointSpec(generation=generation, revision=revision))
    return {"EndpointArn": context.arn(ENDPOINT, record.name)}


def update_weights(context: CallContext, params: Json) -> Json:
    record = context.get(ENDPOINT, params["EndpointName"])
    arn = context.arn(ENDPOINT, record.name)
    current = updatable_revision(record, arn)
    desired = dict(current.desired)
    names = [change["VariantName"] for change in params["DesiredWeightsAndCapacities"]]
    for change in params["DesiredWeightsAndCapacities"]:
        name = change["VariantName"]
        if names.count(name) > 1:
            raise validation_error(f'The variant name "{name}" was non-unique within the request.')
        if name not in desired:
            raise validation_error(
                f'Variant "{name}" does not exist in endpoint "{arn}". It has: {", ".join(desired)}.'
            )
        if "DesiredInstanceCount" in change and "ServerlessConfig" in current.variant_config(name):
            raise validation_error(
                f'Variant "{name}" is serverless and has no instances. Leave out DesiredInstanceCount.'
            )
        desired[name] = DesiredCapacity(
            weight=float(change.get("DesiredWeight", desired[name].weight)),
            count=int(change.get("DesiredInstanceCount", desired[name].count)),
        )
    config = _with_concurrency(current.config, params["DesiredWeightsAndCapacities"])
    spec = with_capacities(record, desired, arn=arn)
    if config != current.config:
        spec = replace(spec, revision=replace(spec.revision, number=spec.generation, config=config))
    context.store.update(record, spec=spec)
    return {"EndpointArn": arn}


def _with_concurrency(config: Json, changes: Sequence[Json]) -> Json:
    """Return a configuration with the concurrency that changes of its serverless variants name."""
    given = {change["VariantName"]: change.get("ServerlessUpdateConfig") for change in changes}

    def changed(variant: Json) -> Json:
        name = variant["VariantName"]
        if not (update := given.get(name)):
            return variant
        if not _is_serverless(variant):
            raise validation_error(f'Variant "{name}" has instances. Leave out ServerlessUpdateConfig.')
        serverless = {**variant["ServerlessConfig"], **update}
        check_serverless(name, serverless)
        return {**variant, "ServerlessConfig": serverless}

    return {**config, "ProductionVariants": [changed(variant) for variant in config["ProductionVariants"]]}


def describe_endpoint(context: CallContext, params: Json) -> Json:
    record = context.find(ENDPOINT, params["EndpointName"])
    if isinstance(record, Unreadable):
        return {**_summary(context, record), "FailureReason": unreadable_message(record)}
    return {**_summary(context, record), **_details(record)}


def list_endpoints(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        return (_summary(context, record) for record in context.store.each(ENDPOINT, selection))

    return list_page(read, params, word="Endpoint")


def delete_endpoint(context: CallContext, params: Json) -> Json:
    """Answer DeleteEndpoint, in every state and idempotently; refuse while the endpoint has inference components."""
    record = context.find(ENDPOINT, params["EndpointName"])
    hosted = [component.name for component in _components_on(context, record)]
    if hosted:
        named = "" if context.is_strict else f" It has: {', '.join(hosted)}."
        raise validation_error(f"{_HAS_COMPONENTS}{named}")
    context.store.update(record, is_deleting=True)
    return {}


def _summary(context: CallContext, record: EndpointRecord | Unreadable) -> Json:
    """Return the members that Describe and List share."""
    return {
        "EndpointName": record.name,
        "EndpointArn": context.arn(ENDPOINT, record.name),
        "CreationTime": record.created_s,
        "LastModifiedTime": changed_s(record),
        "EndpointStatus": visible_state(record).value,
    }


def _snapshot(context: CallContext, config_name: str) -> tuple[Json, dict[str, Json]]:
    """Return a copy of the configuration and of its models; the endpoint outlives both."""
    config = context.get(ENDPOINT_CONFIG, config_name).spec.members
    names = {model_name_of(variant) for variant in variant_configs(config)} - {None}
    return config, {name: context.get(MODEL, name).spec.deployed() for name in sorted(filter(None, names))}


def _components_on(context: CallContext, record: EndpointRecord | Unreadable) -> Iterator[ComponentRecord | Unreadable]:
    for component in context.store.each(INFERENCE_COMPONENT):
        if (owner := owner_of(component)) is not None and owner.endpoint_uid == record.uid:
            yield component


def _check_component_hosts(context: CallContext, record: EndpointRecord, config: Json) -> None:
    """Refuse a configuration without a variant on which inference components are placed."""
    hosts = {variant["VariantName"] for variant in config["ProductionVariants"] if model_name_of(variant) is None}
    for component in _components_on(context, record):
        if isinstance(component, Unreadable):
            continue
        variant = component.spec.revision.variant
        if component.deleting_s is None and variant not in hosts:
            raise validation_error(
                f'Inference component "{component.name}" is on variant "{variant}", which EndpointConfig '
                f'"{config["EndpointConfigName"]}" does not have, or has with a model of its own. Delete the component '
                "first, or keep the variant."
            )


def _initial_capacities(config: Json) -> dict[str, DesiredCapacity]:
    return {variant["VariantName"]: initial_capacity(variant) for variant in variant_configs(config)}


def _details(record: EndpointRecord) -> Json:
    current = serving_revision(record)
    answer: Json = {
        "EndpointConfigName": current.config_name,
        **_by_group(current, [_variant_summary(workload, current, record) for workload in current.workloads]),
        **_repeated_members(current),
    }
    if reason := failure_reason(record):
        answer["FailureReason"] = reason
    if deployment := last_deployment(record):
        answer["LastDeploymentConfig"] = deployment
    pending = _pending_revision(record)
    if pending is not None:
        answer["PendingDeploymentSummary"] = _pending_deployment(pending, record)
    return answer


def _by_group(revision: EndpointRevision, summaries: Sequence[Json]) -> Json:
    """Return the summaries of a revision's variants as members of an answer."""
    groups: Json = {PRODUCTION: []}
    for workload, summary in zip(revision.workloads, summaries, strict=True):
        groups.setdefault(SHADOWS if workload.is_shadow else PRODUCTION, []).append(summary)
    return groups


def _pending_revision(record: EndpointRecord) -> EndpointRevision | None:
    """Return the revision that is replacing the current one."""
    progress, requested = record.status.progress, record.spec.revision
    if visible_state(record) is not State.UPDATING:
        return None
    if progress is None or not is_observed(record):
        return requested if requested.number != serving_revision(record).number else None
    return record.status.revisions[progress.target] if progress.target is not None else None


def _variant_summary(workload: Workload, revision: EndpointRevision, record: EndpointRecord) -> Json:
    config, state = revision.variant_config(workload.variant), visible_state(record)
    current, desired = variant_counts(record, revision, workload)
    summary: Json = {
        "VariantName": workload.variant,
        "CurrentWeight": workload.weight if has_capacity(state) else 0.0,
        "DesiredWeight": desired_workload(record, revision, workload).weight,
        "CurrentInstanceCount": current,
        "DesiredInstanceCount": desired,
    }
    if workload.model is not None:
        summary["DeployedImages"] = [
            {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": record.created_s}
            for image in (container["Image"] for container in containers_of(workload.model))
        ]
    if "ServerlessConfig" in config:
        summary |= dict.fromkeys(("CurrentServerlessConfig", "DesiredServerlessConfig"), config["ServerlessConfig"])
        del summary["CurrentInstanceCount"], summary["DesiredInstanceCount"]
    summary |= {name: config[name] for name in ("ManagedInstanceScaling", "RoutingConfig") if name in config}
    if "InstancePools" in config:
        summary["InstancePools"] = [
            {
                "InstanceType": pool["InstanceType"],
                "CurrentInstanceCount": current if pool["InstanceType"] == workload.instance_type else 0,
            }
            for pool in config["InstancePools"]
        ]
    if status := _variant_status(workload, record):
        summary["VariantStatus"] = [status]
    return summary


def _variant_status(workload: Workload, record: EndpointRecord) -> Json | None:
    """
    Return the status of a variant, with the GPUs of its workers and its notices.

    SageMaker has no field for them on a variant in service: they become the StatusMessage of the status
    ActivatingTraffic, on which no client acts.
    """
    state = visible_state(record)
    notices = dict.fromkeys([*record.status.notices.get(workload.variant, ()), *workload.notices])
    message = status_message(record.status.placements.get(workload.variant, ()), tuple(notices))
    statuses = {
        State.CREATING: "Creating",
        State.UPDATING: _updating_status(record),
        State.ROLLING_BACK: "Updating",
        State.DELETING: "Deleting",
    }
    found = statuses.get(state, "ActivatingTraffic" if message and state is not State.FAILED else None)
    if found is None:
        return None
    status: Json = {"Status": found, "StartTime": changed_s(record)}
    if message:
        status["StatusMessage"] = message[:_MAX_MESSAGE_CHARACTERS]
    return status


def status_message(placements: Sequence[str], notices: Sequence[str]) -> str:
    """Return the message about a variant: a line for each worker's GPUs or wait, then one for each notice."""
    return "\n".join([*placements, *(f"Note: {notice}" for notice in notices)])


def _updating_status(record: EndpointRecord) -> str:
    progress = record.status.progress
    if progress is None or progress.target is None or not is_observed(record):
        return "Updating"
    stages = {Stage.PROVISIONING: "Updating", Stage.BAKING: "Baking", Stage.TERMINATING: "ActivatingTraffic"}
    return stages[progress.stage]


def _pending_deployment(revision: EndpointRevision, record: EndpointRecord) -> Json:
    variants = []
    progress, fraction = record.status.progress, 0.0
    if progress is not None and is_observed(record):
        fraction = traffic_fraction(Deployment(progress=progress, revisions=record.status.revisions))
    for workload in revision.workloads:
        summary = _variant_summary(workload, revision, record)
        summary |= {"CurrentWeight": workload.weight * fraction, "InstanceType": workload.instance_type}
        variants.append({name: value for name, value in summary.items() if value != ""})
    return {
        "EndpointConfigName": revision.config_name,
        **_by_group(revision, variants),
        "StartTime": changed_s(record),
    }


def _repeated_members(revision: EndpointRevision) -> Json:
    """Return the members of the configuration that DescribeEndpoint repeats."""
    config = revision.config
    repeated: Json = {name: config[name] for name in ("AsyncInferenceConfig", "MetricsConfig") if name in config}
    if capture := config.get("DataCaptureConfig"):
        repeated["DataCaptureConfig"] = {
            "EnableCapture": capture.get("EnableCapture", True),
            "CaptureStatus": "Stopped" if revision.capture is None else "Started",
            "CurrentSamplingPercentage": capture["InitialSamplingPercentage"],
            "DestinationS3Uri": capture["DestinationS3Uri"],
            "KmsKeyId": capture.get("KmsKeyId", ""),
        }
    return repeated


def refuse_other_kind(endpoint: str, old: Json, new: Json) -> None:
    """
    Refuse a configuration by which an endpoint would become another kind of endpoint.

    Clients of an asynchronous endpoint wait for objects, and those of another one for responses. A serverless variant
    may get instances, but not the other way round. Sources: aws/sagemaker-python-sdk pull request 3124; SageMaker
    developer guide, "Update a serverless endpoint".
    """
    was_async, is_async = (bool(config.get("AsyncInferenceConfig")) for config in (old, new))
    if was_async != is_async:
        change = "removed from" if was_async else "added to"
        raise validation_error(
            f"The AsyncInferenceConfig parameter cannot be {change} this endpoint {endpoint}. "
            "To change the endpoint type, create another endpoint."
        )
    with_instances = {variant["VariantName"] for variant in old["ProductionVariants"] if not _is_serverless(variant)}
    changed = [
        variant["VariantName"]
        for variant in new["ProductionVariants"]
        if _is_serverless(variant) and variant["VariantName"] in with_instances
    ]
    if changed:
        raise validation_error(
            f"Variant {', '.join(changed)} of endpoint {endpoint} has instances and cannot be updated to a serverless "
            "variant. Create another endpoint with the serverless configuration."
        )


def _is_serverless(variant: Json) -> bool:
    return "ServerlessConfig" in variant
