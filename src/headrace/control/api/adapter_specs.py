"""
Adapter inference components: the checks of their specifications, and of what happens to their base.

An adapter has artifacts and a base, and neither a model nor copies of its own: the copies of its base load it.
Source: SageMaker API reference, `InferenceComponentSpecification`.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.control.api.context import CallContext
from headrace.control.model.component import INFERENCE_COMPONENT, ComponentRecord, is_component, owner_of
from headrace.control.model.endpoint import EndpointRecord
from headrace.control.model.workload import State, visible_state
from headrace.state.records import Json, Unreadable
from headrace.wire.aws.errors import validation_error

_FOR_COPIES: Final = ("ModelName", "ComputeResourceRequirements", "SchedulingConfig", "DataCacheConfig")
"""Members of a specification with copies of its own."""


def base_of(context: CallContext, params: Mapping[str, Any], endpoint: EndpointRecord) -> ComponentRecord | None:
    """
    Return the base component of an adapter that is to be created on an endpoint; None for any other component.

    Raises:
        AwsError: the base does not exist, is an adapter itself, is on another endpoint or variant, or cannot serve.
    """
    specification: Json = params.get("Specification") or next(iter(params.get("Specifications") or []), {})
    name = specification.get("BaseInferenceComponentName")
    if not name:
        return None
    base = context.get(INFERENCE_COMPONENT, name)
    arn, revision = context.arn(INFERENCE_COMPONENT, base.name), base.spec.revision
    if revision.base:
        raise validation_error(f'Inference component "{arn}" is an adapter itself. Its base is {revision.base}.')
    if base.spec.endpoint_uid != endpoint.uid:
        raise validation_error(
            f"EndpointName is {endpoint.name}; the base inference component {base.name} is on endpoint "
            f"{base.spec.endpoint}. Create the adapter there."
        )
    variant = params.get("VariantName")
    if variant not in (None, revision.variant):
        raise validation_error(
            f"VariantName is {variant}; the base inference component {base.name} is on variant {revision.variant}."
        )
    state = visible_state(base)
    if state in (State.DELETING, State.FAILED):
        raise validation_error(f'Inference component "{arn}" is {state.value}; expected a base that can serve.')
    return base


def check_adapter_params(params: Mapping[str, Any], specification: Json) -> None:
    """
    Refuse members that only components with copies of their own have, and an adapter without artifacts.

    Raises:
        AwsError: ValidationException, which names the member.
    """
    given = [member for member in _FOR_COPIES if specification.get(member)]
    container: Json = specification.get("Container") or {}
    given += [f"Container.{member}" for member in ("Image", "Environment") if container.get(member)]
    given += [member for member in ("RuntimeConfig", "DeploymentConfig") if params.get(member)]
    if given:
        raise validation_error(
            f"{', '.join(given)} given with BaseInferenceComponentName. An adapter is loaded by the copies of its base "
            "and has no resources of its own: omit it."
        )
    if not container.get("ArtifactUrl"):
        raise validation_error(
            "Container.ArtifactUrl is missing in the Specification; expected the location of the adapter's artifacts."
        )


def refuse_other_base(record: ComponentRecord, params: Mapping[str, Any]) -> None:
    """
    Refuse an update by which a component would become an adapter or get another base; no name leaves it as it is.

    Raises:
        AwsError: ValidationException.
    """
    base = record.spec.revision.base
    given = [params["Specification"]] if params.get("Specification") else params.get("Specifications") or []
    for specification in given:
        is_whole = bool(specification.get("ModelName"))  # the specification of a component of its own
        other = str(specification.get("BaseInferenceComponentName") or ("" if is_whole else base))
        if other.lower() != base.lower():
            raise validation_error(
                f"BaseInferenceComponentName is {other or 'missing'}; expected {base or 'none'}, as when "
                f"{record.name} was created. Create another inference component."
            )


def adapters_of(context: CallContext, record: ComponentRecord | Unreadable) -> list[ComponentRecord]:
    """Return the adapters of a base component that are not being deleted yet: they are deleted with it, as by AWS."""
    owner = owner_of(record)
    return [
        component
        for component in context.store.each(INFERENCE_COMPONENT)
        if is_component(component)
        and component.deleting_s is None
        and component.spec.revision.base.lower() == record.name.lower()
        and (owner is None or component.spec.endpoint_uid == owner.endpoint_uid)
    ]
