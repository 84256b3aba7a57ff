"""
Create-, List-, Update- and DeleteInferenceComponent, and UpdateInferenceComponentRuntimeConfig.

They write down what is asked; the reconciler finds it there. `spec` of a component: that of an endpoint (`asked`,
`version`), `endpoint` and `endpoint_uid` of its host, and `request`: the members that Describe repeats.
"""

from typing import Any

from headrace.control.api.component_specs import component_version
from headrace.control.api.context import CallContext, already_exists, tags_of, without
from headrace.control.api.endpoints import modified_s
from headrace.control.api.listing import Listed, list_page
from headrace.control.model.component_reading import endpoint_of, is_readable, read_component, variant_of
from headrace.control.model.component_runtime import desired_copies, refuse_busy, serving_version, with_copies
from headrace.control.model.component_states import component_status
from headrace.control.model.density import with_density
from headrace.control.model.deployment_config import check_deployment_config
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT
from headrace.control.model.names import TITLES
from headrace.control.model.progress import State, view_endpoint, visible_state
from headrace.control.model.reading import UnreadableRecord, read_endpoint, unreadable_status
from headrace.control.model.version import Variant
from headrace.state.records import AlreadyExists, Json, RawRecord
from headrace.wire.aws.errors import validation_error

_NOT_A_HOST = (
    "Inference Components are not supported in this Endpoint. "
    "Please make sure this endpoint can deploy inference components."
)
_NO_COPIES = "Inference components copy count an integer larger than 0"
_CHANGED = ("Specification", "Specifications")
_BUSY = (State.CREATING, State.UPDATING, State.ROLLING_BACK)


def create_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """CreateInferenceComponent; DescribeInferenceComponent knows it when this returns."""
    name = params["InferenceComponentName"]
    context.refuse_existing(INFERENCE_COMPONENT, name)
    endpoint = context.get(ENDPOINT, params["EndpointName"])
    host = _host_of(context, endpoint, params.get("VariantName"))
    copies = int((params.get("RuntimeConfig") or {}).get("CopyCount", 1))
    if copies == 0 and context.is_strict:
        raise validation_error(_NO_COPIES)
    version = component_version(context, name, params, host=host, generation=1, copies=copies)
    spec: Json = {
        "asked": 1,
        "version": version,
        "endpoint": endpoint.name,
        "endpoint_uid": endpoint.uid,
        "request": {**without(params, "Tags"), "VariantName": host.name},
    }
    try:
        context.store.create(INFERENCE_COMPONENT, name, spec=spec, tags=tags_of(params))
    except AlreadyExists:
        arn = context.arn(INFERENCE_COMPONENT, name)
        raise already_exists(TITLES[INFERENCE_COMPONENT], arn) from None
    return _arn_answer(context, name)


def update_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateInferenceComponent: another model or other needs, copy by copy; or only another number of copies."""
    record = _existing(context, params)
    refuse_busy(record, context.arn(INFERENCE_COMPONENT, record.name))
    check_deployment_config(params.get("DeploymentConfig") or {})
    copies = (params.get("RuntimeConfig") or {}).get("CopyCount")
    if not any(params.get(member) for member in _CHANGED):
        if copies is None:
            raise validation_error("Nothing is to be updated: give Specification, Specifications or RuntimeConfig.")
        return _scale(context, record, int(copies))
    endpoint = context.get(ENDPOINT, record.spec["endpoint"])
    host = _host_of(context, endpoint, record.spec["request"]["VariantName"])
    view = view_endpoint(record)
    version = component_version(
        context,
        record.name,
        params,
        host=host,
        generation=view.asked + 1,
        copies=desired_copies(record) if copies is None else int(copies),
    )
    kept = without(record.spec["request"], *_CHANGED)
    request = {**kept, **{member: params[member] for member in _CHANGED if params.get(member)}}
    old = record.spec if copies is None else with_density(record.spec, None)
    spec = {**old, "asked": view.asked + 1, "version": version, "request": request}
    context.store.update(record, spec=spec)
    return _arn_answer(context, record.name)


def update_runtime_config(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UpdateInferenceComponentRuntimeConfig: another number of copies, also none."""
    return _scale(context, _existing(context, params), int(params["DesiredRuntimeConfig"]["CopyCount"]))


def list_inference_components(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """ListInferenceComponents."""
    endpoint, variant = params.get("EndpointNameEquals"), params.get("VariantNameEquals")
    found = [
        record
        for record in context.store.list(INFERENCE_COMPONENT)
        if (endpoint is None or endpoint_of(record).lower() == endpoint.lower())
        and (variant is None or variant_of(record) == variant)
    ]
    return list_page([_listed(context, record) for record in found], params, member="InferenceComponents")


def delete_inference_component(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteInferenceComponent; strict refuses it while the component is being made or changed, as AWS does."""
    record = context.get(INFERENCE_COMPONENT, params["InferenceComponentName"])
    is_busy = is_readable(record) and visible_state(view_endpoint(record)) in _BUSY
    if context.is_strict and is_busy:
        arn = context.arn(INFERENCE_COMPONENT, record.name)
        raise validation_error(f'Cannot delete in-progress inference component "{arn}".')
    context.store.update(record, is_deleting=True)
    return {}


def _scale(context: CallContext, record: RawRecord, copies: int) -> dict[str, Any]:
    arn = context.arn(INFERENCE_COMPONENT, record.name)
    context.store.update(record, spec=with_copies(record, copies, arn=arn))
    return _arn_answer(context, record.name)


def _existing(context: CallContext, params: dict[str, Any]) -> RawRecord:
    """The component, if its record can be understood."""
    record = context.get(INFERENCE_COMPONENT, params["InferenceComponentName"])
    try:
        read_component(record)
    except UnreadableRecord as error:
        raise validation_error(str(error)) from error
    return record


def _arn_answer(context: CallContext, name: str) -> dict[str, Any]:
    return {"InferenceComponentArn": context.arn(INFERENCE_COMPONENT, name)}


def _host_of(context: CallContext, endpoint: RawRecord, variant_name: str | None) -> Variant:
    """
    The variant that a component is placed on.

    Raises:
        AwsError: the endpoint is going, has failed, or has models of its own; or it has no such variant.
    """
    arn = context.arn(ENDPOINT, endpoint.name)
    try:
        view = read_endpoint(endpoint)
    except UnreadableRecord as error:
        raise validation_error(str(error)) from error
    state = visible_state(view)
    if state in (State.DELETING, State.FAILED):
        raise validation_error(
            f'Endpoint "{arn}" is {state.value}; an inference component needs one that is InService.'
        )
    version = serving_version(view)
    if any(variant.model is not None for variant in version.variants):
        raise validation_error(_NOT_A_HOST)
    names = ", ".join(variant.name for variant in version.variants)
    if variant_name is None and len(version.variants) > 1:
        raise validation_error(f'VariantName is missing; endpoint "{arn}" has several variants: {names}.')
    host = version.variants[0] if variant_name is None else version.variant(variant_name)
    if host is None:
        raise validation_error(f'Variant "{variant_name}" does not exist in endpoint "{arn}". It has: {names}.')
    return host


def _listed(context: CallContext, record: RawRecord) -> Listed:
    try:
        view = read_component(record)
        status, changed_s = component_status(view), modified_s(record, view)
    except UnreadableRecord:
        status, changed_s = unreadable_status(record), record.modified_s
    return Listed(
        name=record.name,
        created_s=record.created_s,
        modified_s=changed_s,
        status=status,
        summary={
            "InferenceComponentName": record.name,
            "InferenceComponentArn": context.arn(INFERENCE_COMPONENT, record.name),
            "EndpointName": endpoint_of(record),
            "EndpointArn": context.arn(ENDPOINT, endpoint_of(record)),
            "VariantName": variant_of(record),
            "InferenceComponentStatus": status,
            "CreationTime": record.created_s,
            "LastModifiedTime": changed_s,
        },
    )
