"""CreateModel, DescribeModel, ListModels, DeleteModel."""

from typing import Any

from headrace.control.api.context import CallContext, without
from headrace.control.api.definition_calls import DefinitionCalls
from headrace.control.model.containers import container_of, image_profile
from headrace.control.model.definitions import MODEL
from headrace.wire.aws.errors import validation_error

_NOT_YET = {
    "ModelPackageName": "Model packages",
    "MultiModelConfig": "Multi-model containers",
    "InferenceSpecificationName": "Inference specifications",
}


MODELS = DefinitionCalls(kind=MODEL, word="Model")


def create_model(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """CreateModel."""
    name = params["ModelName"]
    _check_model(context, params)
    context.refuse_existing(MODEL, name)
    return MODELS.create(context, name, members=without(params, "Tags"), params=params)


def _check_model(context: CallContext, params: dict[str, Any]) -> None:
    """
    Refuse what cannot be served.

    Raises:
        AwsError: as AWS words it where AWS refuses too.
    """
    if context.is_strict and not params.get("ExecutionRoleArn"):
        raise validation_error("ExecutionRoleArn is missing: name the role that SageMaker assumes for the model.")
    containers = params.get("Containers") or []
    if params.get("PrimaryContainer") and containers:
        raise validation_error("Both PrimaryContainer and Containers were given. Give one of them.")
    if not params.get("PrimaryContainer") and not containers:
        raise validation_error("Neither PrimaryContainer nor Containers was given. Give one of them.")
    if len(containers) > 1:
        raise validation_error(
            f"The model has {len(containers)} containers; Headrace does not support inference pipelines and "
            "multi-container models yet. Make one model of each container."
        )
    _check_container(context, container_of(params))


def _check_container(context: CallContext, container: dict[str, Any]) -> None:
    for member, title in _NOT_YET.items():
        if container.get(member):
            raise validation_error(f"{title} ({member}) are not supported by Headrace yet.")
    if container.get("Mode") == "MultiModel":
        raise validation_error("Mode MultiModel is not supported by Headrace yet. Make one endpoint a model.")
    if not container.get("Image"):
        raise validation_error("The container has no Image. Name the image that serves the model.")
    if container.get("ModelDataUrl") and container.get("ModelDataSource"):
        raise validation_error("Both ModelDataUrl and ModelDataSource were given. Give one of them.")
    for source in _s3_sources(container):
        for member in ("ManifestS3Uri", "HubAccessConfig"):
            if source.get(member):
                raise validation_error(f"{member} is not supported by Headrace yet. Name the files' own S3Uri.")
    image_profile(container, own_images=context.own_images, is_strict=context.is_strict)


def _s3_sources(container: dict[str, Any]) -> list[dict[str, Any]]:
    primary = (container.get("ModelDataSource") or {}).get("S3DataSource")
    additional = [source["S3DataSource"] for source in container.get("AdditionalModelDataSources") or []]
    return [*([primary] if primary else []), *additional]
