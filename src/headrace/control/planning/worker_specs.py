"""From a model and a variant, as they were asked for, to a worker that can be started. Pure."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.cluster.instance_types import find_instance_type
from headrace.cluster.launcher import ArtifactSource, ResourceRequest, WorkerSpec
from headrace.control.model.images import ImageProfile, OwnImage, profile
from headrace.control.model.version import Version
from headrace.control.planning.notices import notices_of_variant
from headrace.control.planning.placement import read_need
from headrace.state.records import Json

_MIB = 1 << 20
_ARCHIVES = (".tar.gz", ".tgz")


class HostShare(Protocol):
    """What an instance type means on this host."""

    @property
    def threads(self) -> int | None:
        """CPU threads; None: all."""
        ...

    @property
    def memory_bytes(self) -> int | None:
        """None: as much as there is."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What this host does not have."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDefaults:
    """What all workers of a platform have in common."""

    share_of: Callable[[str], HostShare]
    """By instance type."""
    own_images: Mapping[str, OwnImage] = field(default_factory=dict)
    is_strict: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that SageMaker sets in every container: AWS_REGION, ..."""
    s3: Json = field(default_factory=dict)
    """Endpoint and keys with which artifacts are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWorker:
    """A worker, and what could not be honoured."""

    spec: WorkerSpec
    notices: tuple[str, ...]


def build_worker(name: str, *, version: Version, variant_name: str, defaults: WorkerDefaults) -> BuiltWorker:
    """
    Decide how a worker of a variant is run.

    Raises:
        AwsError: in strict mode, when the image is not known.
    """
    variant = version.variant(variant_name)
    assert variant is not None
    assert variant.model is not None
    container = container_of(version.raw["models"][variant.model])
    image = image_profile(container, own_images=defaults.own_images, is_strict=defaults.is_strict)
    share = defaults.share_of(variant.instance_type)
    resources = resources_of(version, share)
    spec = WorkerSpec(
        name=name,
        artifacts=artifacts_of(container),
        environment={**defaults.environment, **image.environment},
        options=image.options,
        command=image.command,
        artifact_timeout_s=variant.download_timeout_s,
        threads=resources.threads,
        memory_bytes=resources.memory_bytes,
        resources=room_of(version, variant.instance_type),
        s3=defaults.s3,
    )
    notices = [*image.notices, *share.notices, *notices_of_variant(version, variant_name)]
    if image.command and resources.is_asked:
        notices.append("The memory of an own image's command is not bounded; it finds its cores in OMP_NUM_THREADS.")
    return BuiltWorker(spec=spec, notices=tuple(notices))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """What bounds a worker on its machine."""

    threads: int | None
    """None: decided where it starts."""
    memory_bytes: int | None
    """None: what is free there."""
    is_asked: bool = False
    """By its inference component; otherwise it is the share of an instance."""


def resources_of(version: Version, share: HostShare) -> WorkerResources:
    """
    Return the threads and the memory of a worker: those of its inference component, at most those of its instance.

    `MaxMemoryRequiredInMb` is the limit, `MinMemoryRequiredInMb` without it. With accelerators the latter is none: it
    is the memory of the host then, and on AWS the model lies in that of the accelerators.
    """
    specification: Json | None = version.raw["config"].get("Specification")
    if specification is None:
        return WorkerResources(threads=share.threads, memory_bytes=share.memory_bytes)
    need = read_need(specification)
    most_mb = (specification.get("ComputeResourceRequirements") or {}).get("MaxMemoryRequiredInMb")
    asked_mb = most_mb or (0 if need.accelerators else need.memory_mb)
    return WorkerResources(
        threads=_least(share.threads, math.ceil(need.cpus)),
        memory_bytes=_least(share.memory_bytes, round(asked_mb * _MIB)),
        is_asked=bool(need.cpus or asked_mb),
    )


def _least(whole: int | None, asked: int) -> int | None:
    """The smaller of a share and what is asked for; 0 asks for nothing less than the share."""
    return min(whole or asked, asked) if asked else whole


def room_of(version: Version, instance_type: str) -> ResourceRequest | None:
    """What a worker is to have for itself: what its component needs, or a share as large as the instance type."""
    specification = version.raw["config"].get("Specification")
    if specification is not None:
        need = read_need(specification)
        return ResourceRequest(
            num_cpus=need.cpus or 1.0,
            num_accelerators=need.accelerators,
            memory_bytes=round(need.memory_mb * _MIB),
            is_at_most=False,
        )
    kind = find_instance_type(instance_type)
    if kind is None:
        return None
    return ResourceRequest(num_cpus=kind.vcpus, num_accelerators=kind.num_gpus, memory_bytes=kind.memory_bytes)


def container_of(model: Json) -> Json:
    """The container of a model that has one."""
    containers: list[Json] = model.get("Containers") or []
    container: Json = model.get("PrimaryContainer") or (containers[0] if containers else {})
    return container


def image_profile(container: Json, *, own_images: Mapping[str, OwnImage], is_strict: bool) -> ImageProfile:
    """What the container's image means here."""
    environment: dict[str, str] = container.get("Environment") or {}
    return profile(container.get("Image", ""), environment, own_images=own_images, is_strict=is_strict)


def artifacts_of(container: Json) -> tuple[ArtifactSource, ...]:
    """Where the container's files come from."""
    sources = []
    if url := container.get("ModelDataUrl"):
        is_archive = url.endswith(_ARCHIVES) or not (url.endswith("/") or _is_local(url))
        sources.append(ArtifactSource(uri=url, is_prefix=url.endswith("/"), is_archive=is_archive))
    if data := (container.get("ModelDataSource") or {}).get("S3DataSource"):
        sources.append(_s3_source(data, channel=None))
    additional = container.get("AdditionalModelDataSources") or []
    sources.extend(_s3_source(one["S3DataSource"], channel=one["ChannelName"]) for one in additional)
    return tuple(sources)


def _s3_source(data: Json, *, channel: str | None) -> ArtifactSource:
    return ArtifactSource(
        uri=data["S3Uri"],
        is_prefix=data["S3DataType"] == "S3Prefix",
        is_archive=data["CompressionType"] == "Gzip",
        channel=channel,
    )


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file://")
