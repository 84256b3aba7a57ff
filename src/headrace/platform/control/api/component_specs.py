"""
Specifications of inference components: validation, and the revision that follows from one.

A container in the specification itself becomes a model with the component's name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.platform.control.api.context import CallContext, check_environment
from headrace.platform.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    ComponentRevision,
    check_num_copies,
    is_component,
    owner_of,
)
from headrace.platform.control.model.definitions import MODEL, container_names, image_profile, refuse_many_models
from headrace.platform.control.model.endpoint import EndpointRecord
from headrace.platform.control.model.resources import read_requirements, resources_of_type, too_large_message
from headrace.platform.control.model.workload import State, Workload, visible_state
from headrace.platform.state.records import Json, Unreadable
from headrace.serving.wire.aws.errors import validation_error

_ALTERNATIVES = {"ModelName": "Container", "Container": "ModelName"}
"""Members of a specification that replace each other."""


def chosen_specification(params: Json, instance_type: str) -> Json:
    """Return the `Specification`, or the one of `Specifications` for the host's instance type; refuse any other."""
    single, several = params.get("Specification"), params.get("Specifications") or []
    if single and several:
        raise validation_error("Both Specification and Specifications were given. Give one of them.")
    if single:
        return dict(single)
    if not several:
        raise validation_error("Specification is missing: it names the model that the inference component serves.")
    if len(several) > 1:
        _refuse_ambiguous(several)
    for specification in several:
        if specification.get("InstanceType", instance_type) == instance_type:
            return dict(specification)
    named = ", ".join(str(specification.get("InstanceType")) for specification in several)
    raise validation_error(
        f"None of Specifications is for {instance_type}, the variant's instance type; given: {named}."
    )


def _refuse_ambiguous(specifications: Sequence[Json]) -> None:
    seen: set[str] = set()
    for specification in specifications:
        kind = specification.get("InstanceType")
        if kind is None:
            raise validation_error("InstanceType is missing in one of several Specifications; expected one in each.")
        if kind in seen:
            raise validation_error(f"Several of Specifications are for {kind}. Give one for each instance type.")
        seen.add(kind)


def with_unchanged(params: Json, old: ComponentRevision, *, deployment: Json) -> Json:
    """Return the parameters of UpdateInferenceComponent with what they leave out, as it was in the `old` revision."""
    completed = {"DeploymentConfig": deployment, **params}
    if single := params.get("Specification"):
        completed["Specification"] = _merged(old.specification, single)
    by_type = {known.get("InstanceType", old.instance_type): known for known in old.specifications}
    by_type.setdefault(old.instance_type, old.specification)
    if several := params.get("Specifications"):
        completed["Specifications"] = [
            _merged(by_type.get(given.get("InstanceType", old.instance_type), {}), given) for given in several
        ]
    return completed


def _merged(old: Json, given: Json) -> Json:
    """Return a structure with the given members, and the old ones that are not given; a map is replaced whole."""
    merged = {name: value for name, value in old.items() if _ALTERNATIVES.get(name) not in given}
    for name, value in given.items():
        is_structure = isinstance(value, dict) and name != "Environment"
        merged[name] = _merged(merged.get(name) or {}, value) if is_structure else value
    return merged


def check_specification(context: CallContext, specification: Json, host: Workload) -> None:
    """Refuse a specification that cannot be served, or whose copy fits on no empty instance."""
    container = specification.get("Container")
    if bool(specification.get("ModelName")) == bool(container):
        raise validation_error("Give one of ModelName and Container in the Specification of the inference component.")
    if container and not container.get("Image"):
        raise validation_error("The Container of the Specification has no Image. Name the image that serves the model.")
    check_environment(container or {})
    requirements = specification.get("ComputeResourceRequirements")
    if requirements is None:
        raise validation_error("ComputeResourceRequirements is missing in the Specification: MinMemoryRequiredInMb.")
    least, most = requirements["MinMemoryRequiredInMb"], requirements.get("MaxMemoryRequiredInMb")
    if most is not None and most < least:
        raise validation_error(f"MaxMemoryRequiredInMb is {most}, less than MinMemoryRequiredInMb, which is {least}.")
    wanted_type = specification.get("InstanceType")
    if wanted_type is not None and wanted_type != host.instance_type:
        raise validation_error(f"InstanceType is {wanted_type}; the instances of the variant are {host.instance_type}.")
    need = read_requirements(requirements)
    if context.is_strict and not need.fits_in(resources_of_type(host.instance_type)):
        raise validation_error(too_large_message(need, host.instance_type))


def make_revision(
    context: CallContext,
    name: str,
    params: Json,
    *,
    host: Workload,
    number: int,
    copies: int,
    old: ComponentRevision | None = None,
) -> ComponentRevision:
    """
    Return a revision of a component on the variant `host`; the model of the `old` one is kept while its name stays.

    Raises `AwsError`: the component cannot be served or placed, the model does not exist, the image is unknown (strict
    mode), or there are too many copies.
    """
    check_num_copies(copies)
    specification = chosen_specification(params, host.instance_type)
    if specification.get("BaseInferenceComponentName"):
        check_adapter_params(params, specification)
    else:
        check_specification(context, specification, host)
    return ComponentRevision(
        number=number,
        variant=host.variant,
        instance_type=host.instance_type,
        specification=specification,
        specifications=params.get("Specifications") or [],
        model=_model_of(context, name, specification, old),
        copies=copies,
        deployment=params.get("DeploymentConfig") or {},
    )


def _model_of(context: CallContext, name: str, specification: Json, old: ComponentRevision | None) -> Json:
    if specification.get("BaseInferenceComponentName"):
        return {}
    if model_name := specification.get("ModelName"):
        is_same = old is not None and old.specification.get("ModelName") == model_name
        if old is not None and is_same and context.store.find(MODEL, model_name) is None:
            return old.model  # deleted since, which does not affect what serves it
        model = context.get(MODEL, model_name).spec.deployed()
        if names := container_names(model):
            raise validation_error(
                f"Model {model_name} has the containers {', '.join(names)}; expected one. Inference components are "
                "copies of one container: create a model for each."
            )
        refuse_many_models(model, where="inference components")
        return model
    given: Json = specification["Container"]
    container: Json = {"Image": given["Image"], "Environment": given.get("Environment") or {}}
    if url := given.get("ArtifactUrl"):
        container["ModelDataUrl"] = url
    image_profile(container, own_images=context.own_images, is_strict=context.is_strict)
    return {"ModelName": name, "PrimaryContainer": container}


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
    """Refuse members that only components with copies of their own have, and an adapter without artifacts."""
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
    """Refuse an update by which a component would become an adapter or get another base; no name leaves it as it is."""
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
