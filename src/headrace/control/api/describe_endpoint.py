"""DescribeEndpoint. Reads only the endpoint's own record: its configuration and models may be gone."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.model.containers import container_of
from headrace.control.model.endpoint import (
    ENDPOINT,
    EndpointRecord,
    EndpointRevision,
    desired_workload,
    has_capacity,
    variant_counts,
)
from headrace.control.model.names import unreadable_message
from headrace.control.model.workload import (
    Stage,
    State,
    Workload,
    changed_s,
    failure_reason,
    is_observed,
    serving_revision,
    unreadable_state,
    visible_state,
)
from headrace.control.planning.deployment import Deployment
from headrace.control.planning.rollout import traffic_fraction
from headrace.state.records import Json, Unreadable

_MAX_MESSAGE_CHARACTERS = 1024


def describe_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeEndpoint."""
    record = context.find(ENDPOINT, params["EndpointName"])
    identity = {
        "EndpointName": record.name,
        "EndpointArn": context.arn(ENDPOINT, record.name),
        "CreationTime": record.created_s,
    }
    if isinstance(record, Unreadable):
        return {
            **identity,
            "EndpointStatus": unreadable_state(record).value,
            "FailureReason": unreadable_message(record),
            "LastModifiedTime": record.modified_s,
        }
    return {**identity, **_details(record)}


def _details(record: EndpointRecord) -> dict[str, Any]:
    current = serving_revision(record)
    answer: dict[str, Any] = {
        "EndpointConfigName": current.config_name,
        "ProductionVariants": [_summary(workload, current, record) for workload in current.workloads],
        "EndpointStatus": visible_state(record).value,
        "LastModifiedTime": changed_s(record),
        **_repeated_members(current),
    }
    if reason := failure_reason(record):
        answer["FailureReason"] = reason
    if current.deployment:
        answer["LastDeploymentConfig"] = current.deployment
    pending = _pending_revision(record)
    if pending is not None:
        answer["PendingDeploymentSummary"] = _pending_summary(pending, record)
    return answer


def _pending_revision(record: EndpointRecord) -> EndpointRevision | None:
    """Return the revision that takes the place of the current one."""
    progress, asked = record.status.progress, record.spec.revision
    if visible_state(record) is not State.UPDATING:
        return None
    if progress is None or not is_observed(record):
        return asked if asked.number != serving_revision(record).number else None
    return record.status.revisions[progress.target] if progress.target is not None else None


def _summary(workload: Workload, revision: EndpointRevision, record: EndpointRecord) -> dict[str, Any]:
    """Return a `ProductionVariantSummary`."""
    config, state = revision.variant_config(workload.variant), visible_state(record)
    current, desired = variant_counts(record, revision, workload)
    summary: dict[str, Any] = {
        "VariantName": workload.variant,
        "CurrentWeight": workload.weight if has_capacity(state) else 0.0,
        "DesiredWeight": desired_workload(record, revision, workload).weight,
        "CurrentInstanceCount": current,
        "DesiredInstanceCount": desired,
    }
    if workload.model is not None:
        summary["DeployedImages"] = [_image(workload.model, record.created_s)]
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
    if status := _variant_status(workload.variant, record):
        summary["VariantStatus"] = [status]
    return summary


def _image(model: Json, resolved_s: float) -> dict[str, Any]:
    image = container_of(model)["Image"]
    return {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}


def _variant_status(variant: str, record: EndpointRecord) -> dict[str, Any] | None:
    """
    Return what the variant is doing, and what could not be honoured for it.

    SageMaker has no place for remarks on a variant in service: ours are the StatusMessage of an ActivatingTraffic,
    which no client acts upon.
    """
    notices, state = record.status.notices.get(variant, []), visible_state(record)
    statuses = {
        State.CREATING: "Creating",
        State.UPDATING: _updating_status(record),
        State.ROLLING_BACK: "Updating",
        State.DELETING: "Deleting",
    }
    found = statuses.get(state, "ActivatingTraffic" if notices and state is not State.FAILED else None)
    if found is None:
        return None
    status: dict[str, Any] = {"Status": found, "StartTime": changed_s(record)}
    if notices:
        text = "Not as on SageMaker: " + " ".join(notices)
        status["StatusMessage"] = text[:_MAX_MESSAGE_CHARACTERS]
    return status


def _updating_status(record: EndpointRecord) -> str:
    progress = record.status.progress
    if progress is None or progress.target is None or not is_observed(record):
        return "Updating"
    stages = {Stage.PROVISIONING: "Updating", Stage.BAKING: "Baking", Stage.TERMINATING: "ActivatingTraffic"}
    return stages[progress.stage]


def _pending_summary(revision: EndpointRevision, record: EndpointRecord) -> dict[str, Any]:
    variants = []
    fraction = _fraction(record)
    for workload in revision.workloads:
        summary = _summary(workload, revision, record)
        summary |= {"CurrentWeight": workload.weight * fraction, "InstanceType": workload.instance_type}
        variants.append({name: value for name, value in summary.items() if value != ""})
    return {
        "EndpointConfigName": revision.config_name,
        "ProductionVariants": variants,
        "StartTime": changed_s(record),
    }


def _fraction(record: EndpointRecord) -> float:
    progress = record.status.progress
    if progress is None or not is_observed(record):
        return 0.0
    return traffic_fraction(Deployment(progress=progress, revisions=record.status.revisions))


def _repeated_members(revision: EndpointRevision) -> dict[str, Any]:
    """Return the members of the configuration that DescribeEndpoint repeats."""
    config = revision.config
    repeated: dict[str, Any] = {
        name: config[name] for name in ("AsyncInferenceConfig", "MetricsConfig") if name in config
    }
    if capture := config.get("DataCaptureConfig"):
        repeated["DataCaptureConfig"] = {
            "EnableCapture": capture.get("EnableCapture", False),
            "CaptureStatus": "Stopped",
            "CurrentSamplingPercentage": capture["InitialSamplingPercentage"],
            "DestinationS3Uri": capture["DestinationS3Uri"],
            "KmsKeyId": capture.get("KmsKeyId", ""),
        }
    return repeated
