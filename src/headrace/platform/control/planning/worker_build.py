"""Build the worker of a workload: its files, environment, options and resources."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace.platform.cluster.instance_types import HostShare, find_instance_type
from headrace.platform.cluster.launcher import NO_GRANTS, ContainerImage, Grants, Limits, ResourceRequest, WorkerSpec
from headrace.platform.control.jumpstart.catalogue import Catalogue
from headrace.platform.control.jumpstart.located import located
from headrace.platform.control.model.definitions import artifacts_of, containers_of, image_profile, model_prefix
from headrace.platform.control.model.images import ImageProfile, OwnImage, num_split_gpus, split_degree
from headrace.platform.control.model.workload import Workload
from headrace.platform.state.records import Json
from headrace.serving.artifacts.sources import ArtifactSource

_MIB = 1 << 20
_PROGRAM = "SAGEMAKER_PROGRAM"
"""Variable that names the script of a container in script mode, which serves the model."""


_PREFIX_CACHE_NAMES: Final = (
    "HEADRACE_PREFIX_CACHE_DIR",
    "LMCACHE_LOCAL_DISK",
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
)
"""Names of a folder inside a container, which stands for that of the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDefaults:
    """Settings that all workers of a platform share."""

    share_of: Callable[[str], HostShare]
    """Returns the share of this host for an instance type."""
    own_images: Mapping[str, OwnImage] = field(default_factory=dict)
    is_strict: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that SageMaker sets in every container: AWS_REGION, ..."""
    grants: Grants = NO_GRANTS
    """Lets workers read their artifacts in object storage."""
    jumpstart: Catalogue = field(default_factory=Catalogue)
    """The models that stand for those in AWS's buckets of JumpStart."""
    public_source: Callable[[ArtifactSource], ArtifactSource] = lambda source: source
    """Returns where to read an artifact in a public bucket of AWS; any other one as it is."""
    prefix_caches: Path | None = None
    """A folder for each endpoint whose prefix cache outlives its workers; None: workers are on other machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWorker:
    """A worker to start, and notices about settings that could not be honoured."""

    spec: WorkerSpec
    notices: tuple[str, ...]


def build_worker(
    name: str,
    workload: Workload,
    defaults: WorkerDefaults,
    *,
    group: str = "",
    revision: int = 0,
    endpoint_uid: str = "",
) -> BuiltWorker:
    """
    Return the worker of a workload, ready to start; it replaces those of other revisions in its `group`.

    Raises `AwsError`: in strict mode, when the image is not known.
    """
    assert workload.model is not None
    share = defaults.share_of(workload.instance_type)
    resources, titles = resources_of(workload, share), workload.containers or (name,)
    containers = [
        _build_container(title, container, defaults, endpoint_uid)
        for title, container in zip(titles, containers_of(workload.model), strict=True)
    ]
    spec = containers[0].spec
    if workload.containers:
        spec = WorkerSpec(name=name, containers=tuple(each.spec for each in containers), is_direct=workload.is_direct)
    spec = replace(
        spec,
        artifact_timeout_s=workload.download_timeout_s,
        threads=resources.threads,
        memory_bytes=resources.memory_bytes,
        limits=limits_of(workload),
        resources=room_of(workload, num_gpus=max(num_split_gpus(each.image) for each in containers)),
        group=group,
        revision=revision,
    )
    idle = "" if workload.containers else _idle_gpus(workload, containers[0].image, share)
    own = [
        f"{title}: {text}" if workload.containers else text
        for title, each in zip(titles, containers, strict=True)
        for text in each.notices
    ]
    notices = [*own, *share.notices, *([idle] if idle else []), *workload.notices]
    if any(each.spec.command for each in containers) and resources.is_asked:
        notices.append(
            "The memory of an own image's command is not bounded without a delegated control group; it finds its "
            "cores in OMP_NUM_THREADS."
        )
    return BuiltWorker(spec=spec, notices=tuple(notices))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltContainer:
    """A container as the process that serves it, without its share of resources."""

    spec: WorkerSpec
    image: ImageProfile
    notices: tuple[str, ...]


def _build_container(name: str, container: Json, defaults: WorkerDefaults, endpoint_uid: str) -> _BuiltContainer:
    container, hints = located(container, defaults.jumpstart)
    image = image_profile(container, own_images=defaults.own_images, is_strict=defaults.is_strict)
    is_ours = not image.command and not image.container
    environment, prefix_notices = (
        _with_prefix_cache(image.environment, defaults.prefix_caches, endpoint_uid)
        if is_ours
        else (image.environment, ())
    )
    spec = WorkerSpec(
        name=name,
        artifacts=tuple(map(defaults.public_source, artifacts_of(container))),
        environment={**defaults.environment, **environment},
        family=image.family,
        options=image.options,
        command=image.command,
        runs_code=not image.dialect or _PROGRAM in image.environment,
        image=ContainerImage(uri=image.container) if image.container else None,
        models=model_prefix(container),
    )
    return _BuiltContainer(spec=spec, image=image, notices=(*hints, *image.notices, *prefix_notices))


def _with_prefix_cache(
    environment: Mapping[str, str], folders: Path | None, endpoint_uid: str
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the environment, and notices, with the folder of the endpoint if a name asks for prefixes on a disk."""
    asked = [name for name in _PREFIX_CACHE_NAMES if environment.get(name)]
    if not asked:
        return environment, ()
    others = {name: value for name, value in environment.items() if name not in asked}
    if folders is None:
        return others, (f"{', '.join(asked)} has no effect: on a cluster, prefixes are kept in memory only.",)
    return {**others, _PREFIX_CACHE_NAMES[0]: str(folders / endpoint_uid)}, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """Threads and memory of a worker on its machine."""

    threads: int | None
    """None: decided where it starts."""
    memory_bytes: int | None
    """None: what is free there."""
    is_asked: bool = False
    """True if its inference component or a `ServerlessConfig` names them; else they are the share of an instance."""


def resources_of(workload: Workload, share: HostShare) -> WorkerResources:
    """
    Return the threads and the memory of a worker: those of its inference component, at most those of its instance.

    A serverless variant has only a memory limit, `MemorySizeInMB`. That of a component is `MaxMemoryRequiredInMb`, or
    else `MinMemoryRequiredInMb`. With accelerators the latter is no limit: it is then host memory, and on AWS the model
    is in the accelerators' memory.
    """
    need, limits = workload.need, limits_of(workload)
    return WorkerResources(
        threads=_least(share.threads, math.ceil(need.cpus) if need is not None else 0),
        memory_bytes=_least(share.memory_bytes, limits.memory_bytes or 0),
        is_asked=limits != Limits(),
    )


def limits_of(workload: Workload) -> Limits:
    """Return the limits that a component or a serverless variant names; an instance type is a share, not a limit."""
    need = workload.need
    if need is None:
        return Limits(memory_bytes=round((workload.max_memory_mb or 0.0) * _MIB) or None)
    memory_mb = workload.max_memory_mb or (0 if need.accelerators else need.memory_mb)
    return Limits(num_cpus=need.cpus or None, memory_bytes=round(memory_mb * _MIB) or None)


def _least(whole: int | None, asked: int) -> int | None:
    """Return the smaller of a share and a requested amount; a request of 0 means the whole share."""
    return min(whole or asked, asked) if asked else whole


def room_of(workload: Workload, *, num_gpus: int = 0) -> ResourceRequest | None:
    """
    Return the resources to reserve for a worker: its component's needs, or a share as large as the instance type.

    Its settings name `num_gpus`; 0: all of the instance type.
    """
    need = workload.need
    if need is not None:
        return ResourceRequest(
            num_cpus=need.cpus or 1.0,
            num_accelerators=need.accelerators,
            memory_bytes=round(need.memory_mb * _MIB),
            is_at_most=False,
        )
    kind = find_instance_type(workload.instance_type)
    if kind is None:
        return ResourceRequest(num_cpus=1.0, num_accelerators=num_gpus) if num_gpus else None
    num_gpus = min(kind.num_gpus, num_gpus or kind.num_gpus)
    return ResourceRequest(num_cpus=kind.vcpus, num_accelerators=num_gpus, memory_bytes=kind.memory_bytes)


def _idle_gpus(workload: Workload, image: ImageProfile, share: HostShare) -> str:
    """Return a notice about GPUs that a container leaves idle unless it is told to use them, or an empty string."""
    if workload.need is not None or share.num_gpus < 2 or image.command or image.container or split_degree(image):
        return ""
    variable = "SM_VLLM_TENSOR_PARALLEL_SIZE" if image.family == "vllm" else "SM_NUM_GPUS"
    return (
        f"A worker on {workload.instance_type} has {share.num_gpus} GPUs and uses one, as its container does by "
        f"default. Set {variable} to {share.num_gpus} to split the model, or to 1 to leave the others free."
    )
