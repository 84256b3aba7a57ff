"""
Models and endpoint configurations: created once, never changed, copied by the endpoints that use them.

A model has one container, which names its image and its files.
"""

from collections.abc import Mapping
from typing import Final

from headrace.platform.control.model.images import ImageProfile, OwnImage, profile
from headrace.platform.state.records import Json, Kind, NoStatus, RecordPart
from headrace.serving.artifacts.sources import ArtifactSource

_ARCHIVES: Final = (".tar.gz", ".tgz")


class DefinitionSpec(RecordPart, frozen=True, kw_only=True):
    """The members of the Create request, which the Describe operation repeats."""

    members: Json


class ModelSpec(DefinitionSpec, frozen=True, kw_only=True):
    container: Json | None = None
    """The container with the image and the files of its model package, which may be changed or deleted later."""

    def deployed(self) -> Json:
        """Return the members of the model as what serves it copies them."""
        return self.members if self.container is None else {**self.members, "PrimaryContainer": self.container}


def _without_package(spec: Json, status: Json) -> tuple[Json, Json]:
    """Version 2 -> 3: `container`."""
    return spec, status


MODEL: Final = Kind("model", ModelSpec, NoStatus, oldest=2, migrations=(_without_package,))
ENDPOINT_CONFIG: Final = Kind("endpoint-config", DefinitionSpec, NoStatus, oldest=2)


def container_of(model: Json) -> Json:
    containers: list[Json] = model.get("Containers") or []
    container: Json = model.get("PrimaryContainer") or (containers[0] if containers else {})
    return container


def image_profile(container: Json, *, own_images: Mapping[str, OwnImage], is_strict: bool) -> ImageProfile:
    """Return the profile with which the container's image is run."""
    environment: dict[str, str] = container.get("Environment") or {}
    return profile(container.get("Image", ""), environment, own_images=own_images, is_strict=is_strict)


def artifacts_of(container: Json) -> tuple[ArtifactSource, ...]:
    """Return the sources of the container's files."""
    sources = []
    if url := container.get("ModelDataUrl"):
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
