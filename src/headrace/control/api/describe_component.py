"""DescribeInferenceComponent. Reads nothing but the component's own record: its model may be gone."""

from typing import Any

from headrace.control.api.component_specs import specification_of
from headrace.control.api.context import CallContext
from headrace.control.api.endpoints import modified_s
from headrace.control.model.component_reading import endpoint_of, read_component, variant_of
from headrace.control.model.component_runtime import current_copies, desired_copies, serving_version
from headrace.control.model.component_states import component_status
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT
from headrace.control.model.progress import EndpointView, State, visible_state
from headrace.control.model.reading import UnreadableRecord, unreadable_status
from headrace.control.planning.worker_specs import container_of
from headrace.state.records import Json, RawRecord


def describe_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeInferenceComponent."""
    record = context.get(INFERENCE_COMPONENT, params["InferenceComponentName"])
    answer = {
        "InferenceComponentName": record.name,
        "InferenceComponentArn": context.arn(INFERENCE_COMPONENT, record.name),
        "EndpointName": endpoint_of(record),
        "EndpointArn": context.arn(ENDPOINT, endpoint_of(record)),
        "VariantName": variant_of(record),
        "CreationTime": record.created_s,
    }
    try:
        return {**answer, **_of_view(record, read_component(record))}
    except UnreadableRecord as error:
        return {
            **answer,
            "InferenceComponentStatus": unreadable_status(record),
            "LastModifiedTime": record.modified_s,
            "FailureReason": str(error),
        }


def _of_view(record: RawRecord, view: EndpointView) -> dict[str, Any]:
    """The members that tell how the component is."""
    current = serving_version(view)
    (host,) = current.variants
    present = current_copies(record)
    answer: dict[str, Any] = {
        **_specifications(current.raw, view.created_s),
        "RuntimeConfig": {
            "DesiredCopyCount": desired_copies(record),
            "CurrentCopyCount": present,
            "PlacementStatus": [{"InstanceType": host.instance_type, "CurrentCopyCount": present}],
        },
        "InferenceComponentStatus": component_status(view),
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


def _specifications(version: Json, resolved_s: float) -> dict[str, Any]:
    """`Specifications`, if the component was made of several, else `Specification`."""
    chosen = specification_of(version)
    several: list[Json] = version["config"].get("Specifications") or []
    if not several:
        return {"Specification": _summary(chosen, version, resolved_s)}
    kind = version["config"]["ProductionVariants"][0]["InstanceType"]
    return {
        "Specifications": [
            _summary(one, version if one.get("InstanceType", kind) == kind else None, resolved_s) for one in several
        ]
    }


def _summary(specification: Json, version: Json | None, resolved_s: float) -> dict[str, Any]:
    """
    `InferenceComponentSpecificationSummary`: as it came, the container's image as it was resolved.

    `version`: made of this specification; None: there is none, it is for another instance type.
    """
    summary = dict(specification)
    if asked := summary.get("Container"):
        deployed: dict[str, Any] = {"SpecifiedImage": asked.get("Image", "")}
        if version is not None:
            (model,) = version["models"].values()
            image = container_of(model)["Image"]
            deployed = {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}
        others = {member: value for member, value in asked.items() if member != "Image"}
        summary["Container"] = {"DeployedImage": deployed, **others}
    return summary
