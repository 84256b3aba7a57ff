"""
Create-, Describe-, List-, Update- and DeleteInferenceComponent, and UpdateInferenceComponentRuntimeConfig.

They only write the desired state; the reconciler reads it from the store. DescribeInferenceComponent reads only the
component's own record: its model may be deleted.
"""

from collections.abc import Iterator

import msgspec

from headrace.platform.control.api.component_specs import (
    adapters_of,
    base_of,
    make_revision,
    refuse_other_base,
    with_unchanged,
)
from headrace.platform.control.api.context import CallContext, list_page
from headrace.platform.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    ComponentRevision,
    ComponentSpec,
    component_status,
    current_copies,
    endpoint_name,
    refuse_busy,
    variant_name,
    with_copies,
)
from headrace.platform.control.model.definitions import container_of
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.rollout_config import check_deployment_config
from headrace.platform.control.model.workload import (
    State,
    Workload,
    changed_s,
    failure_reason,
    last_deployment,
    serving_revision,
    settled_revision,
    visible_state,
)
from headrace.platform.state.records import Json, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import validation_error

_NOT_A_HOST = (
    "Inference Components are not supported in this Endpoint. "
    "Please make sure this endpoint can deploy inference components."
)
_NO_COPIES = "Inference components copy count an integer larger than 0"
_SPECIFICATIONS = ("Specification", "Specifications")
_BUSY = (State.CREATING, State.UPDATING, State.ROLLING_BACK)


def create_inference_component(context: CallContext, params: Json) -> Json:
    """Answer CreateInferenceComponent; DescribeInferenceComponent finds it as soon as this returns."""
    name = params["InferenceComponentName"]
    context.refuse_existing(INFERENCE_COMPONENT, name)
    endpoint = context.get(ENDPOINT, params["EndpointName"])
    base = base_of(context, params, endpoint)
    wanted = params.get("VariantName") if base is None else base.spec.revision.variant
    host = _host_of(context, endpoint, wanted)
    copies = int((params.get("RuntimeConfig") or {}).get("CopyCount", 1)) if base is None else 0
    if base is None and copies == 0 and context.is_strict:
        raise validation_error(_NO_COPIES)
    spec = ComponentSpec(
        endpoint=endpoint.name,
        endpoint_uid=endpoint.uid,
        generation=1,
        revision=make_revision(context, name, params, host=host, number=1, copies=copies),
    )
    return {"InferenceComponentArn": context.create(INFERENCE_COMPONENT, name, spec=spec, params=params)}


def update_inference_component(context: CallContext, params: Json) -> Json:
    """Answer UpdateInferenceComponent: roll out another specification, or only change the number of copies."""
    record = context.get(INFERENCE_COMPONENT, params["InferenceComponentName"])
    refuse_busy(record, context.arn(INFERENCE_COMPONENT, record.name))
    check_deployment_config(params.get("DeploymentConfig") or {})
    copies = (params.get("RuntimeConfig") or {}).get("CopyCount")
    if not any(params.get(member) for member in _SPECIFICATIONS):
        if copies is None:
            raise validation_error("Nothing to update: give Specification, Specifications or RuntimeConfig.")
        return _scale(context, record, int(copies))
    endpoint = context.get(ENDPOINT, record.spec.endpoint)
    refuse_other_base(record, params)
    host = _host_of(context, endpoint, record.spec.revision.variant)
    old = settled_revision(record)
    revision = make_revision(
        context,
        record.name,
        with_unchanged(params, old, deployment=record.spec.revision.deployment),
        host=host,
        number=record.spec.generation + 1,
        copies=record.spec.revision.copies if copies is None else int(copies),
        old=old,
    )
    spec = msgspec.structs.replace(
        record.spec,
        generation=record.spec.generation + 1,
        revision=revision,
        density=record.spec.density if copies is None else None,  # a requested number ends following the instances
    )
    context.store.update(record, spec=spec)
    return _arn_answer(context, record.name)


def update_runtime_config(context: CallContext, params: Json) -> Json:
    """Answer UpdateInferenceComponentRuntimeConfig: change the number of copies; 0 is allowed."""
    return _scale(
        context,
        context.get(INFERENCE_COMPONENT, params["InferenceComponentName"]),
        int(params["DesiredRuntimeConfig"]["CopyCount"]),
    )


def describe_inference_component(context: CallContext, params: Json) -> Json:
    record = context.find(INFERENCE_COMPONENT, params["InferenceComponentName"])
    if isinstance(record, Unreadable):
        return {**_summary(context, record), "FailureReason": unreadable_message(record)}
    return {**_summary(context, record), **_details(record)}


def list_inference_components(context: CallContext, params: Json) -> Json:
    endpoint, variant = params.get("EndpointNameEquals"), params.get("VariantNameEquals")

    def read(selection: Selection) -> Iterator[Json]:
        for record in context.store.each(INFERENCE_COMPONENT, selection):
            is_on_endpoint = endpoint is None or endpoint_name(record).lower() == endpoint.lower()
            if is_on_endpoint and variant in (None, variant_name(record)):
                yield _summary(context, record)

    return list_page(read, params, word="InferenceComponent")


def delete_inference_component(context: CallContext, params: Json) -> Json:
    """
    Answer DeleteInferenceComponent, which also deletes the adapters of the component.

    Strict mode refuses it during a deployment of the component, as AWS does.
    """
    record = context.find(INFERENCE_COMPONENT, params["InferenceComponentName"])
    if context.is_strict and visible_state(record) in _BUSY:
        arn = context.arn(INFERENCE_COMPONENT, record.name)
        raise validation_error(f'Cannot delete in-progress inference component "{arn}".')
    for adapter in adapters_of(context, record):  # first, so that a write conflict leaves no adapter without a base
        context.store.update(adapter, is_deleting=True)
    context.store.update(record, is_deleting=True)
    return {}


def _scale(context: CallContext, record: ComponentRecord, copies: int) -> Json:
    arn = context.arn(INFERENCE_COMPONENT, record.name)
    context.store.update(record, spec=with_copies(record, copies, arn=arn))
    return _arn_answer(context, record.name)


def _arn_answer(context: CallContext, name: str) -> Json:
    return {"InferenceComponentArn": context.arn(INFERENCE_COMPONENT, name)}


def _host_of(context: CallContext, endpoint: EndpointRecord, wanted: str | None) -> Workload:
    """
    Return the variant that a component is placed on.

    Raises:
        AwsError: the endpoint is being deleted, has failed, or serves models of its own; or it has no such variant.
    """
    arn = context.arn(ENDPOINT, endpoint.name)
    state = visible_state(endpoint)
    if state in (State.DELETING, State.FAILED):
        raise validation_error(
            f'Endpoint "{arn}" is {state.value}; an inference component needs one that is InService.'
        )
    revision = serving_revision(endpoint)
    if not all(workload.is_host for workload in revision.workloads):
        raise validation_error(_NOT_A_HOST)
    names = ", ".join(workload.variant for workload in revision.workloads)
    if wanted is None and len(revision.workloads) > 1:
        raise validation_error(f'VariantName is missing; endpoint "{arn}" has several variants: {names}.')
    host = revision.workloads[0] if wanted is None else revision.workload(wanted)
    if host is None:
        raise validation_error(f'Variant "{wanted}" does not exist in endpoint "{arn}". It has: {names}.')
    return host


def _summary(context: CallContext, record: ComponentRecord | Unreadable) -> Json:
    """Return the members that Describe and List share."""
    return {
        "InferenceComponentName": record.name,
        "InferenceComponentArn": context.arn(INFERENCE_COMPONENT, record.name),
        "EndpointName": endpoint_name(record),
        "EndpointArn": context.arn(ENDPOINT, endpoint_name(record)),
        "VariantName": variant_name(record),
        "CreationTime": record.created_s,
        "LastModifiedTime": changed_s(record),
        "InferenceComponentStatus": component_status(record),
    }


def _details(record: ComponentRecord) -> Json:
    current, num_serving = serving_revision(record), current_copies(record)
    answer = _specifications(current, record.created_s)
    if not current.base:
        answer["RuntimeConfig"] = {
            "DesiredCopyCount": record.spec.revision.copies,
            "CurrentCopyCount": num_serving,
            "PlacementStatus": [{"InstanceType": current.instance_type, "CurrentCopyCount": num_serving}],
        }
    if reason := failure_reason(record):
        answer["FailureReason"] = reason
    if deployment := last_deployment(record):
        answer["LastDeploymentConfig"] = deployment
    return answer


def _specifications(revision: ComponentRevision, resolved_s: float) -> Json:
    """Return the member `Specifications` if several were given, else `Specification`."""
    if not revision.specifications:
        return {"Specification": _specification_summary(revision.specification, revision, resolved_s)}
    kind = revision.instance_type
    return {
        "Specifications": [
            _specification_summary(
                specification, revision if specification.get("InstanceType", kind) == kind else None, resolved_s
            )
            for specification in revision.specifications
        ]
    }


def _specification_summary(specification: Json, revision: ComponentRevision | None, resolved_s: float) -> Json:
    """
    Return an `InferenceComponentSpecificationSummary`: the given members, and the container's image.

    `revision` is the one with this specification; None for a specification of another instance type.
    """
    summary = dict(specification)
    container = summary.get("Container")
    if container and not summary.get("BaseInferenceComponentName"):
        deployed: Json = {"SpecifiedImage": container.get("Image", "")}
        if revision is not None:
            image = container_of(revision.model)["Image"]
            deployed = {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}
        others = {member: value for member, value in container.items() if member != "Image"}
        summary["Container"] = {"DeployedImage": deployed, **others}
    return summary
