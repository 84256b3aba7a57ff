"""
From CreateInferenceComponent's members to what the store keeps: a version of one synthetic production variant.

`config.Specification` keeps what the component asked for, as it came; a container that stands in the specification
itself becomes a model of the component's name.
"""

from collections.abc import Sequence
from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.model.component_runtime import refuse_many
from headrace.control.model.kinds import MODEL
from headrace.control.model.version import Desired, Variant, version_json
from headrace.control.planning.placement import read_need, resources_of_type, too_large
from headrace.control.planning.worker_specs import image_profile
from headrace.state.records import Json
from headrace.wire.aws.errors import validation_error

_REPEATED = ("ContainerStartupHealthCheckTimeoutInSeconds", "ModelDataDownloadTimeoutInSeconds")


def chosen_specification(params: Json, instance_type: str) -> Json:
    """
    The `Specification`, or that of `Specifications` for the host's instance type.

    Raises:
        AwsError: there is none, there are both, or it is not clear for which instance type one is.
    """
    single, several = params.get("Specification"), params.get("Specifications") or []
    if single and several:
        raise validation_error("Both Specification and Specifications were given. Give one of them.")
    if single:
        return dict(single)
    if not several:
        raise validation_error("Specification is missing: it says which model the inference component serves.")
    if len(several) > 1:
        _refuse_ambiguous(several)
    for one in several:
        if one.get("InstanceType", instance_type) == instance_type:
            return dict(one)
    named = ", ".join(str(one.get("InstanceType")) for one in several)
    raise validation_error(f"No one of Specifications is for {instance_type}, the variant's type; they are: {named}.")


def _refuse_ambiguous(specifications: Sequence[Json]) -> None:
    seen: set[str] = set()
    for one in specifications:
        kind = one.get("InstanceType")
        if kind is None:
            raise validation_error("InstanceType is missing in one of several Specifications; each is for a type.")
        if kind in seen:
            raise validation_error(f"Several of Specifications are for {kind}. Give one for each instance type.")
        seen.add(kind)


def check_specification(context: CallContext, specification: Json, host: Variant) -> None:
    """
    Refuse what cannot be served, or placed on an empty instance.

    Raises:
        AwsError: ValidationException; says which member, and what was wanted.
    """
    if base := specification.get("BaseInferenceComponentName"):
        raise validation_error(
            f"BaseInferenceComponentName is {base}; adapter inference components are not supported by Headrace yet. "
            "Deploy the merged model as a component of its own."
        )
    container = specification.get("Container")
    if bool(specification.get("ModelName")) == bool(container):
        raise validation_error("Give one of ModelName and Container in the Specification of the inference component.")
    if container and not container.get("Image"):
        raise validation_error("The Container of the Specification has no Image. Name the image that serves the model.")
    requirements = specification.get("ComputeResourceRequirements")
    if requirements is None:
        raise validation_error("ComputeResourceRequirements is missing in the Specification: MinMemoryRequiredInMb.")
    least, most = requirements["MinMemoryRequiredInMb"], requirements.get("MaxMemoryRequiredInMb")
    if most is not None and most < least:
        raise validation_error(f"MaxMemoryRequiredInMb is {most}, less than MinMemoryRequiredInMb, which is {least}.")
    wanted_type = specification.get("InstanceType")
    if wanted_type is not None and wanted_type != host.instance_type:
        raise validation_error(f"InstanceType is {wanted_type}; the instances of the variant are {host.instance_type}.")
    need = read_need(specification)
    if context.is_strict and not need.fits_in(resources_of_type(host.instance_type)):
        raise validation_error(too_large(need, host.instance_type))


def component_version(
    context: CallContext, name: str, params: Json, *, host: Variant, generation: int, copies: int
) -> Json:
    """
    What the store keeps of a version of a component.

    Args:
        context: of the call; models are read from its store.
        name: of the component.
        params: of CreateInferenceComponent or UpdateInferenceComponent.
        host: the variant that it is placed on; its routing is the component's.
        generation: number of the version.
        copies: how many.

    Raises:
        AwsError: it cannot be served or placed, there is no such model, its image is not known (strict), or there are
            too many copies.
    """
    refuse_many(copies)
    specification = chosen_specification(params, host.instance_type)
    check_specification(context, specification, host)
    model_name, model = _model_of(context, name, specification)
    startup: Json = specification.get("StartupParameters") or {}
    variant: dict[str, Any] = {
        "VariantName": host.name,
        "ModelName": model_name,
        "InstanceType": host.instance_type,
        "InitialInstanceCount": copies,
        **{member: startup[member] for member in _REPEATED if member in startup},
    }
    config = {"EndpointConfigName": name, "ProductionVariants": [variant], "Specification": specification}
    if several := params.get("Specifications"):
        config["Specifications"] = several
    return version_json(
        generation=generation,
        config=config,
        models={model_name: model},
        desired={host.name: Desired(weight=1.0, count=copies)},
        deployment=params.get("DeploymentConfig"),
    )


def specification_of(version: Json) -> Json:
    """The specification that a version of a component was made of."""
    found: Json = version["config"].get("Specification") or {}
    return found


def _model_of(context: CallContext, name: str, specification: Json) -> tuple[str, Json]:
    if model_name := specification.get("ModelName"):
        return model_name, context.get(MODEL, model_name).spec
    asked: Json = specification["Container"]
    container: Json = {"Image": asked["Image"], "Environment": asked.get("Environment") or {}}
    if url := asked.get("ArtifactUrl"):
        container["ModelDataUrl"] = url
    image_profile(container, own_images=context.own_images, is_strict=context.is_strict)
    return name, {"ModelName": name, "PrimaryContainer": container}
