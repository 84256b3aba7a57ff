"""DescribeInferenceComponent. Reads only the component's own record: its model may be gone."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    ComponentRevision,
    component_status,
    current_copies,
    endpoint_name,
    variant_name,
)
from headrace.control.model.containers import container_of
from headrace.control.model.endpoint import ENDPOINT
from headrace.control.model.names import unreadable_message
from headrace.control.model.workload import changed_s, failure_reason, serving_revision, unreadable_state
from headrace.state.records import Json, Unreadable


def describe_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeInferenceComponent."""
    record = context.find(INFERENCE_COMPONENT, params["InferenceComponentName"])
    identity = {
        "InferenceComponentName": record.name,
        "InferenceComponentArn": context.arn(INFERENCE_COMPONENT, record.name),
        "EndpointName": endpoint_name(record),
        "EndpointArn": context.arn(ENDPOINT, endpoint_name(record)),
        "VariantName": variant_name(record),
        "CreationTime": record.created_s,
    }
    if isinstance(record, Unreadable):
        return {
            **identity,
            "InferenceComponentStatus": unreadable_state(record).value,
            "LastModifiedTime": record.modified_s,
            "FailureReason": unreadable_message(record),
        }
    return {**identity, **_details(record)}


def _details(record: ComponentRecord) -> dict[str, Any]:
    current, num_serving = serving_revision(record), current_copies(record)
    answer: dict[str, Any] = {
        **_specifications(current, record.created_s),
        "RuntimeConfig": {
            "DesiredCopyCount": record.spec.revision.copies,
            "CurrentCopyCount": num_serving,
            "PlacementStatus": [{"InstanceType": current.instance_type, "CurrentCopyCount": num_serving}],
        },
        "InferenceComponentStatus": component_status(record),
        "LastModifiedTime": changed_s(record),
    }
    if reason := failure_reason(record):
        answer["FailureReason"] = reason
    if current.deployment:
        answer["LastDeploymentConfig"] = current.deployment
    return answer


def _specifications(revision: ComponentRevision, resolved_s: float) -> dict[str, Any]:
    """Return `Specifications`, if several were given, else `Specification`."""
    if not revision.specifications:
        return {"Specification": _summary(revision.specification, revision, resolved_s)}
    kind = revision.instance_type
    return {
        "Specifications": [
            _summary(specification, revision if specification.get("InstanceType", kind) == kind else None, resolved_s)
            for specification in revision.specifications
        ]
    }


def _summary(specification: Json, revision: ComponentRevision | None, resolved_s: float) -> dict[str, Any]:
    """
    Return an `InferenceComponentSpecificationSummary`: the members that were given, and the container's image.

    `revision`: made of this specification; None: there is none, it is for another instance type.
    """
    summary = dict(specification)
    if asked := summary.get("Container"):
        deployed: dict[str, Any] = {"SpecifiedImage": asked.get("Image", "")}
        if revision is not None:
            image = container_of(revision.model)["Image"]
            deployed = {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}
        others = {member: value for member, value in asked.items() if member != "Image"}
        summary["Container"] = {"DeployedImage": deployed, **others}
    return summary
