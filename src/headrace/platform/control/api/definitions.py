"""Models and endpoint configurations: operations to create, describe, list and delete them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from headrace.platform.control.api.context import CallContext, check_environment, list_page, without
from headrace.platform.control.api.packages import package_containers
from headrace.platform.control.model.definitions import (
    ENDPOINT_CONFIG,
    MODEL,
    MULTI_MODEL,
    DefinitionSpec,
    ModelSpec,
    container_names,
    containers_of,
    image_profile,
    is_direct,
    refuse_many_models,
)
from headrace.platform.control.model.endpoint import PRODUCTION, SHADOWS, model_name_of, variant_configs
from headrace.platform.control.model.images import ImageProfile
from headrace.platform.state.records import Json, Kind, NoStatus
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws import members
from headrace.serving.wire.aws.errors import validation_error
from headrace.serving.wire.aws.members import MEMBERS
from headrace.serving.wire.aws.services import operation

SpecT = TypeVar("SpecT", bound=DefinitionSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionCalls(Generic[SpecT]):
    """The operations of one kind of definition, in AWS's terms."""

    kind: Kind[SpecT, NoStatus]
    word: str
    """The word from which AWS forms member names, such as `Model` in `ModelName`, `ModelArn` and `Models`."""

    def create(self, context: CallContext, name: str, *, spec: SpecT, params: Json) -> Json:
        """Add a definition with validated members and the tags of its `params`; refuse a name that is taken."""
        arn = context.create(self.kind, name, spec=spec, params=params)
        return {f"{self.word}Arn": arn}

    def describe(self, context: CallContext, params: Json) -> Json:
        record = context.get(self.kind, params[f"{self.word}Name"])
        return {
            "EnableNetworkIsolation": False,
            **record.spec.members,
            f"{self.word}Arn": context.arn(self.kind, record.name),
            "CreationTime": record.created_s,
        }

    def list(self, context: CallContext, params: Json) -> Json:

        def read(selection: Selection) -> Iterator[Json]:
            for entry in context.store.entries(self.kind, selection):
                arn = context.arn(self.kind, entry.name)
                yield {f"{self.word}Name": entry.name, f"{self.word}Arn": arn, "CreationTime": entry.created_s}

        return list_page(read, params, word=self.word)

    def delete(self, context: CallContext, params: Json) -> Json:
        """Remove the definition; endpoints that use it keep their copy."""
        context.store.remove(context.find(self.kind, params[f"{self.word}Name"]))
        return {}


_SERVERLESS_STEP_MB: Final = 1024
MODELS = DefinitionCalls(kind=MODEL, word="Model")
ENDPOINT_CONFIGS = DefinitionCalls(kind=ENDPOINT_CONFIG, word="EndpointConfig")


def create_model(context: CallContext, params: Json) -> Json:
    name = params["ModelName"]
    given = _given_containers(context, params)
    containers = [served for container in given for served in _served_containers(context, container)]
    is_packed = any(container.get("ModelPackageName") for container in given)
    spec = ModelSpec(members=without(params, "Tags"), containers=containers if is_packed else None)
    _check_several(context, spec.deployed())
    context.refuse_existing(MODEL, name)
    return MODELS.create(context, name, spec=spec, params=params)


def _given_containers(context: CallContext, params: Json) -> list[Json]:
    """Return the containers of a new model as the request gives them."""
    if context.is_strict and not params.get("ExecutionRoleArn"):
        raise validation_error("ExecutionRoleArn is missing: name the role that SageMaker assumes for the model.")
    containers = params.get("Containers") or []
    if params.get("PrimaryContainer") and containers:
        raise validation_error("Both PrimaryContainer and Containers were given. Give one of them.")
    if not params.get("PrimaryContainer") and not containers:
        raise validation_error("Neither PrimaryContainer nor Containers was given. Give one of them.")
    return containers_of(params)


def _served_containers(context: CallContext, container: Json) -> list[Json]:
    """Return a container, or those of the model package that it names. Raises `AwsError`: they cannot be served."""
    containers = [container]
    if container.get("ModelPackageName"):
        containers = package_containers(context, container)
        members.check(operation("sagemaker", "CreateModel"), {"Containers": containers}, MEMBERS["sagemaker"])
    elif container.get("InferenceSpecificationName"):
        raise validation_error("InferenceSpecificationName was given without ModelPackageName. Name the package too.")
    for served in containers:
        _check_container(context, served)
    return containers


def _check_several(context: CallContext, model: Json) -> None:
    """Check what the containers of one model must have in common. Source: API reference, ContainerDefinition."""
    containers = containers_of(model)
    names = [container["ContainerHostname"] for container in containers if container.get("ContainerHostname")]
    if is_direct(model) and (model.get("PrimaryContainer") or len(names) < len(containers)):
        raise validation_error(
            "InferenceExecutionConfig.Mode is Direct; expected Containers with a ContainerHostname each."
        )
    if not container_names(model):
        return
    if any(_profile(context, container).container for container in containers):
        raise validation_error(
            "An image that runs as a container itself is not supported by Headrace in a model with several containers. "
            "Create a model for it."
        )
    if 0 < len(names) < len(containers):
        raise validation_error(
            f"{len(names)} of {len(containers)} containers have a ContainerHostname. Give one to each, or to none."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise validation_error(f"Two containers have the ContainerHostname {twice}. The names in a model are unique.")
    multi = [container for container in containers if container.get("Mode") == "MultiModel"]
    if len(multi) > 1:  # the text of SageMaker
        raise validation_error("More than one container in MultiModel mode is not supported with inference pipeline.")
    if multi:
        raise validation_error(
            "Mode MultiModel is not supported by Headrace in a model with several containers. Create a model for it."
        )


def _check_container(context: CallContext, container: Json) -> None:
    check_environment(container)
    if not container.get("Image"):
        raise validation_error("The container has no Image. Name the image that serves the model.")
    if container.get("ModelDataUrl") and container.get("ModelDataSource"):
        raise validation_error("Both ModelDataUrl and ModelDataSource were given. Give one of them.")
    check_eula(context, container)
    _check_mode(container, runs_container=bool(_profile(context, container).container))


def _profile(context: CallContext, container: Json) -> ImageProfile:
    return image_profile(container, own_images=context.own_images, is_strict=context.is_strict)


def _check_mode(container: Json, *, runs_container: bool) -> None:
    if container.get("Mode") != MULTI_MODEL:
        if container.get("MultiModelConfig"):
            raise validation_error("MultiModelConfig was given without Mode MultiModel. Give both, or neither.")
        return
    if not container.get("ModelDataUrl"):
        raise validation_error(
            "The container has Mode MultiModel and no ModelDataUrl; expected the S3 prefix of its models."
        )
    if container["ModelDataUrl"].endswith((".tar.gz", ".tgz")):
        raise validation_error(
            f"ModelDataUrl is {container['ModelDataUrl']}; expected the S3 prefix of the models for Mode MultiModel."
        )
    if runs_container:
        raise validation_error(
            "Mode MultiModel is not supported by Headrace for images that run as containers. Leave out --containers "
            "for this image, or create an endpoint for each model."
        )


def check_eula(context: CallContext, container: Json) -> None:
    """Refuse a gated model of JumpStart whose licence was not accepted, in AWS's words."""
    sources = [container.get("ModelDataSource") or {}, *(container.get("AdditionalModelDataSources") or [])]
    for source in (holder.get("S3DataSource") or {} for holder in sources):
        row = context.jumpstart.find_artifacts(source.get("S3Uri", ""))
        if row is not None and row.gated and not (source.get("ModelAccessConfig") or {}).get("AcceptEula"):
            raise validation_error(
                "The AcceptEula value must be explicitly defined as True in order to accept the end-user license "
                f'agreement (EULA) that this "{source["S3Uri"]}" model requires. You are responsible for reviewing and '
                "complying with any applicable license terms and making sure they are acceptable for your use case "
                "before downloading or using a model."
            )


def create_endpoint_config(context: CallContext, params: Json) -> Json:
    name = params["EndpointConfigName"]
    _check_config(context, params)
    context.refuse_existing(ENDPOINT_CONFIG, name)
    config = without(params, "Tags")
    for group in {PRODUCTION, SHADOWS} & config.keys():
        # AWS's defaults for missing members.
        config[group] = [
            {
                "InitialVariantWeight": 1.0,
                **({} if "ServerlessConfig" in variant else {"InitialInstanceCount": 1}),
                **variant,
            }
            for variant in params[group]
        ]
    return ENDPOINT_CONFIGS.create(context, name, spec=DefinitionSpec(members=config), params=params)


def _check_config(context: CallContext, params: Json) -> None:
    asynchronous = params.get("AsyncInferenceConfig")
    if asynchronous and not asynchronous["OutputConfig"].get("S3OutputPath"):
        raise validation_error(
            "AsyncInferenceConfig.OutputConfig has no S3OutputPath; expected the location for responses. Set it."
        )
    if asynchronous and any("ServerlessConfig" in variant for variant in params["ProductionVariants"]):
        raise validation_error("A serverless variant cannot have an AsyncInferenceConfig. Leave out one of them.")
    names = [variant["VariantName"] for variant in variant_configs(params)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise validation_error(f"Two production variants have the name {twice}. Variant names are unique.")
    if params.get(SHADOWS):
        models = filter(None, map(model_name_of, variant_configs(params)))
        check_shadow(params, {name: context.get(MODEL, name).spec.deployed() for name in models})
    for variant in variant_configs(params):
        has_role = bool(params.get("ExecutionRoleArn"))
        _check_variant(context, variant, has_role=has_role, is_async=bool(asynchronous))
    hosts = [model_name_of(variant) is None for variant in params["ProductionVariants"]]
    if any(hosts) and not all(hosts):
        raise validation_error("Either all production variants name a model, or none does (inference components).")


def check_shadow(config: Json, models: Mapping[str, Json]) -> None:
    """Refuse what an endpoint with a shadow variant cannot be. Source: SageMaker developer guide, "Shadow tests"."""
    for group in (PRODUCTION, SHADOWS):
        if (number := len(config[group])) > 1:
            raise validation_error(
                f"{group} has {number} variants; expected one. An endpoint with a shadow variant has one production "
                "variant and one shadow variant."
            )
    excluded = "AsyncInferenceConfig" if "AsyncInferenceConfig" in config else ""
    for variant in variant_configs(config):
        if (name := model_name_of(variant)) is None:
            excluded = "inference components: name a model in each variant"
            continue
        containers = containers_of(models[name])
        if "ServerlessConfig" in variant:
            excluded = "ServerlessConfig"
        elif len(containers) > 1 or containers[0].get("Mode") == "MultiModel":
            excluded = f"model {name}, which has several containers or models"
    if excluded:
        raise validation_error(f"A configuration with {SHADOWS} cannot have {excluded}.")


def _check_variant(context: CallContext, variant: Json, *, has_role: bool, is_async: bool) -> None:
    name = variant["VariantName"]
    is_serverless = "ServerlessConfig" in variant
    if variant.get("InstanceType") and variant.get("InstancePools"):
        raise validation_error(f"Variant {name} has both InstanceType and InstancePools. Give one of them.")
    has_type = bool(variant.get("InstanceType") or variant.get("InstancePools"))
    if is_serverless and (has_type or "InitialInstanceCount" in variant):
        raise validation_error(f"Variant {name} has a ServerlessConfig, and instances too. Give one of them.")
    if not is_serverless and not has_type:
        raise validation_error(f"Variant {name} has no InstanceType, and no ServerlessConfig. Give one of them.")
    if is_serverless:
        check_serverless(name, variant["ServerlessConfig"])
    if context.is_strict and not is_serverless and "InitialInstanceCount" not in variant:
        raise validation_error(f"Variant {name} has no InitialInstanceCount.")
    model = model_name_of(variant)
    if model is not None:
        deployed = context.get(MODEL, model).spec.deployed()
        if container_names(deployed) and is_serverless:
            raise validation_error(
                f"Model {model} of variant {name} has several containers, which a ServerlessConfig does not support. "
                "Give an InstanceType."
            )
        if is_serverless or is_async:
            refuse_many_models(deployed, where="serverless variants" if is_serverless else "asynchronous inference")
    elif not has_role:
        raise validation_error(
            f"Variant {name} names no model. Name one, or give ExecutionRoleArn: the endpoint then hosts "
            "inference components."
        )


def check_serverless(name: str, config: Json) -> None:
    """Source: SageMaker API reference, ProductionVariantServerlessConfig."""
    memory_mb, most = config["MemorySizeInMB"], config["MaxConcurrency"]
    if memory_mb % _SERVERLESS_STEP_MB:
        raise validation_error(
            f"Variant {name} has a MemorySizeInMB of {memory_mb}; expected 1024, 2048, 3072, 4096, 5120 or 6144."
        )
    if (provisioned := config.get("ProvisionedConcurrency", 0)) > most:
        raise validation_error(
            f"Variant {name} has a ProvisionedConcurrency of {provisioned}; expected at most MaxConcurrency, {most}."
        )
