"""
Models and endpoint configurations: created once, never changed, copied by the endpoints that use them.

A model has one container, or several that its replicas run side by side; each names its image and its files.
"""

from collections.abc import Mapping
from typing import Final

from headrace.platform.cluster.launcher import ModelPrefix
from headrace.platform.control.model.images import ImageProfile, OwnImage, profile
from headrace.platform.state.records import Json, Kind, NoStatus, RecordPart
from headrace.serving.artifacts.sources import ArtifactSource
from headrace.serving.wire.aws.errors import validation_error

MULTI_MODEL: Final = "MultiModel"
"""The `Mode` of a container whose models are loaded on demand."""
_ARCHIVES: Final = (".tar.gz", ".tgz")


class DefinitionSpec(RecordPart, frozen=True, kw_only=True):
    """The members of the Create request, which the Describe operation repeats."""

    members: Json


class ModelSpec(DefinitionSpec, frozen=True, kw_only=True):
    containers: list[Json] | None = None
    """The containers with the images and files of their model packages, which may be changed or deleted later."""

    def deployed(self) -> Json:
        """Return the members of the model as what serves it copies them."""
        if self.containers is None:
            return self.members
        others = {name: value for name, value in self.members.items() if name != "PrimaryContainer"}
        if self.members.get("PrimaryContainer") and len(self.containers) == 1:
            return {**others, "PrimaryContainer": self.containers[0]}
        return {**others, "Containers": self.containers}


def _without_package(spec: Json, status: Json) -> tuple[Json, Json]:
    """Version 2 -> 3: `container`."""
    return spec, status


def _with_several_containers(spec: Json, status: Json) -> tuple[Json, Json]:
    """Version 3 -> 4: `containers` in place of `container`."""
    container = spec.pop("container", None)
    return {**spec, "containers": None if container is None else [container]}, status


MODEL: Final = Kind("model", ModelSpec, NoStatus, oldest=2, migrations=(_without_package, _with_several_containers))
ENDPOINT_CONFIG: Final = Kind("endpoint-config", DefinitionSpec, NoStatus, oldest=2)


def containers_of(model: Json) -> list[Json]:
    """Return the containers of a model, in the order of its pipeline."""
    primary = model.get("PrimaryContainer")
    return [primary] if primary else list(model.get("Containers") or [])


def container_of(model: Json) -> Json:
    """Return the first container of a model, which is its only one where several are refused."""
    return next(iter(containers_of(model)), {})


def is_direct(model: Json) -> bool:
    """Return whether each request names the container that answers it; otherwise the containers are a pipeline."""
    return (model.get("InferenceExecutionConfig") or {}).get("Mode") == "Direct"


def container_names(model: Json) -> tuple[str, ...]:
    """
    Return the names of the containers of a replica that has several; empty for a model with one container.

    Source of the names of those without a `ContainerHostname`: developer guide, "Use logs and metrics to monitor an
    inference pipeline".
    """
    containers = containers_of(model)
    if len(containers) < 2 and not is_direct(model):
        return ()
    return tuple(
        container.get("ContainerHostname") or f"container-{number}" for number, container in enumerate(containers, 1)
    )


def image_profile(container: Json, *, own_images: Mapping[str, OwnImage], is_strict: bool) -> ImageProfile:
    """Return the profile with which the container's image is run."""
    environment: dict[str, str] = container.get("Environment") or {}
    return profile(container.get("Image", ""), environment, own_images=own_images, is_strict=is_strict)


def model_prefix(container: Json) -> ModelPrefix | None:
    """Return where the models of a container in Mode MultiModel are; None for one model."""
    if container.get("Mode") != MULTI_MODEL:
        return None
    setting = (container.get("MultiModelConfig") or {}).get("ModelCacheSetting", "Enabled")
    url = container["ModelDataUrl"].removeprefix("file://")
    return ModelPrefix(prefix=f"{url.rstrip('/')}/", is_caching=setting == "Enabled")


def refuse_many_models(model: Json, *, where: str) -> None:
    """Refuse a model whose container has Mode MultiModel where only one model is served. Raises `AwsError`."""
    if container_of(model).get("Mode") == MULTI_MODEL:
        raise validation_error(
            f"Model {model.get('ModelName', '')} has Mode MultiModel, which is not supported for {where}. "
            "Create a model for the files of one model."
        )


def artifacts_of(container: Json) -> tuple[ArtifactSource, ...]:
    """Return the sources of the container's files, but not those of models that are loaded on demand."""
    sources = []
    if (url := container.get("ModelDataUrl")) and container.get("Mode") != MULTI_MODEL:
        is_local = "://" not in url or url.startswith("file://")
        is_archive = url.endswith(_ARCHIVES) or not (url.endswith("/") or is_local)
        sources.append(ArtifactSource(uri=url, is_prefix=url.endswith("/"), is_archive=is_archive))
    if data := (container.get("ModelDataSource") or {}).get("S3DataSource"):
        sources.append(_s3_source(data, channel=None))
    additional = container.get("AdditionalModelDataSources") or []
    sources.extend(_s3_source(source["S3DataSource"], channel=source["ChannelName"]) for source in additional)
    return tuple(sources)


def _s3_source(data: Json, *, channel: str | None) -> ArtifactSource:
    return ArtifactSource(
        uri=data["S3Uri"],
        is_prefix=data["S3DataType"] == "S3Prefix",
        is_archive=data["CompressionType"] == "Gzip",
        channel=channel,
    )
