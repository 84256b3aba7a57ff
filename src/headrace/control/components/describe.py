"""DescribeInferenceComponent. Reads nothing but the component's own record: its model may be gone."""

from typing import Any

from headrace.control.components.runtime import current_copies, desired_copies, serving_version
from headrace.control.components.specs import specification_of
from headrace.control.components.states import component_status
from headrace.control.context import CallContext
from headrace.control.endpoints_api import modified_s
from headrace.control.progress import EndpointView, State, view_endpoint, visible_state
from headrace.control.worker_specs import container_of
from headrace.state.records import Json, Kind


def describe_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeInferenceComponent."""
    record = context.get(Kind.INFERENCE_COMPONENT, params["InferenceComponentName"])
    view = view_endpoint(record)
    current = serving_version(view)
    (host,) = current.variants
    present = current_copies(record)
    answer: dict[str, Any] = {
        "InferenceComponentName": record.name,
        "InferenceComponentArn": context.arn(Kind.INFERENCE_COMPONENT, record.name),
        "EndpointName": record.spec["endpoint"],
        "EndpointArn": context.arn(Kind.ENDPOINT, record.spec["endpoint"]),
        "VariantName": host.name,
        "Specification": _summary(specification_of(current.raw), current.raw, view.created_s),
        "RuntimeConfig": {
            "DesiredCopyCount": desired_copies(record),
            "CurrentCopyCount": present,
            "PlacementStatus": [{"InstanceType": host.instance_type, "CurrentCopyCount": present}],
        },
        "InferenceComponentStatus": component_status(view),
        "CreationTime": record.created_s,
        "LastModifiedTime": modified_s(record, view),
    }
    if reason := failure_reason(view):
        answer["FailureReason"] = reason
    if current.raw.get("deployment"):
        answer["LastDeploymentConfig"] = current.raw["deployment"]
    return answer


def failure_reason(view: EndpointView) -> str:
    """Why what was asked for last could not be had; empty: it could, or nobody knows yet."""
    progress = view.progress
    if progress is None or visible_state(view) is State.DELETING or progress.observed != view.asked:
        return ""
    return progress.failure_reason


def _summary(specification: Json, version: Json, resolved_s: float) -> dict[str, Any]:
    """`InferenceComponentSpecificationSummary`: as it came, the container's image as it was resolved."""
    summary = dict(specification)
    if asked := summary.get("Container"):
        (model,) = version["models"].values()
        image = container_of(model)["Image"]
        deployed = {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}
        others = {member: value for member, value in asked.items() if member != "Image"}
        summary["Container"] = {"DeployedImage": deployed, **others}
    return summary
