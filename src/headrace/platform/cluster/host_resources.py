"""The GPUs and cores of this host that a worker gets, from its request and what the running workers hold. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.gpus import VISIBLE_VARIABLE, Gpu
from headrace.platform.cluster.launcher import InsufficientCapacity, StartPending, WorkerSpec
from headrace.platform.cluster.placement import Room

_ORDER_VARIABLE: Final = "CUDA_DEVICE_ORDER"
"""By default CUDA numbers GPUs by speed, nvidia-smi by their place on the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """The resources of a host that are distributed to its workers."""

    num_cores: int
    gpus: tuple[Gpu, ...] = ()
    workers_per_gpu: int = 1
    """Workers that may share a GPU."""
    cgroup: Path | None = None
    """Delegated control group in which the kernel bounds workers; None: only their servers' settings do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The GPUs and cores that a running worker holds."""

    gpus: tuple[int, ...] = ()
    """Indices, as the driver numbers them."""
    num_cores: int = 0
    """0: not counted."""
    group: str = ""
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The GPUs and cores that a worker is given at its start and keeps until it ends."""

    gpus: tuple[int, ...] = ()
    """Indices, as the driver numbers them."""
    workers_per_gpu: int = 1
    """Workers that may use the same GPUs."""
    num_cores: int = 0
    """0: not decided by the launcher."""


def give(spec: WorkerSpec, host: HostResources, held: Sequence[Holding]) -> Given:
    """
    Decide which GPUs and cores of its host a worker gets.

    Raises `StartPending` if not enough GPUs are free now, `InsufficientCapacity` if the host has too few.
    """
    gpus = _give_gpus(spec, host, held)
    num_cores = min(spec.threads or host.num_cores, host.num_cores)
    if spec.limits.num_cpus is None:
        beside = [
            holding.num_cores
            for holding in held
            # Without other revisions of its own fleet: one of the two will leave.
            if holding.num_cores
            and (not spec.group or holding.group != spec.group or holding.revision == spec.revision)
        ]
        num_cores = share_of_cores(num_cores, num_cores=host.num_cores, held=beside)
    return Given(gpus=gpus, workers_per_gpu=host.workers_per_gpu, num_cores=num_cores)


def room_of(host: HostResources, held: Sequence[Holding], *, memory_bytes: int) -> Room:
    """Return the resources of a host, and what its workers leave of them."""
    users = Counter(index for holding in held for index in holding.gpus)
    return Room(
        num_cores=host.num_cores,
        num_free_cores=host.num_cores - sum(holding.num_cores for holding in held),
        memory_bytes=memory_bytes,
        num_gpus=len(host.gpus),
        num_free_gpus=sum(users[gpu.index] < host.workers_per_gpu for gpu in host.gpus),
        copies=tuple((holding.group, holding.revision) for holding in held if holding.group),
    )


def share_of_cores(wanted: int, *, num_cores: int, held: Sequence[int]) -> int:
    """
    Return the cores of one more worker: those that it wants if they are free, otherwise at least an equal share.

    Args:
        wanted: cores that it would use on an empty host, at least 1.
        num_cores: cores of the host.
        held: cores that were given to the workers beside it; they keep them.
    """
    free = num_cores - sum(held)
    equal_share = num_cores // (len(held) + 1)
    return min(wanted, max(free, equal_share, 1))


def _give_gpus(spec: WorkerSpec, host: HostResources, held: Sequence[Holding]) -> tuple[int, ...]:
    """Return the GPUs of a worker; none on a host without GPUs, where it runs on the CPU."""
    request = spec.resources
    count = math.ceil(request.num_accelerators) if request is not None and host.gpus else 0
    if request is None or not count:
        return ()
    if count > len(host.gpus):
        if not request.is_at_most:
            raise InsufficientCapacity(f"The worker requests {_gpus_text(count)}; this host has {len(host.gpus)}.")
        count = len(host.gpus)
    chosen = choose_gpus(
        [gpu.index for gpu in host.gpus],
        count,
        held=[index for holding in held for index in holding.gpus],
        workers_per_gpu=host.workers_per_gpu,
    )
    if chosen is None:
        users = Counter(index for holding in held for index in holding.gpus)
        num_free = sum(users[gpu.index] < host.workers_per_gpu for gpu in host.gpus)
        raise StartPending(
            f"This host has not enough free GPUs now: the worker requests {_gpus_text(count)}. "
            f"This host has {len(host.gpus)}, {num_free} of them free."
        )
    return chosen


def choose_gpus(
    gpus: Sequence[int], count: int, *, held: Iterable[int], workers_per_gpu: int = 1
) -> tuple[int, ...] | None:
    """
    Choose GPUs for a worker, those with the fewest workers first; None if too few have room for one more.

    Args:
        gpus: indices of all GPUs of the host.
        count: how many the worker gets.
        held: the index of a GPU for each worker on it.
        workers_per_gpu: how many workers may share one.
    """
    users = Counter(held)
    able = sorted((index for index in gpus if users[index] < workers_per_gpu), key=lambda index: users[index])
    return tuple(sorted(able[:count])) if len(able) >= count else None


def gpu_environment(given: Given, host: HostResources) -> dict[str, str]:
    """Return the variables that show a worker its GPUs only; empty on a host without GPUs."""
    if not host.gpus:
        return {}
    return {VISIBLE_VARIABLE: ",".join(map(str, given.gpus)), _ORDER_VARIABLE: "PCI_BUS_ID"}


def chosen_of_given(given: str, chosen: str) -> str:
    """
    Return the GPUs that a container's own `CUDA_VISIBLE_DEVICES` (`chosen`) chooses of those that the launcher set.

    As in a container, its numbers count the given ones from 0; as in CUDA, the first that is none ends the list.
    """
    here = [entry for entry in given.split(",") if entry]
    found: list[str] = []
    for entry in (part.strip() for part in chosen.split(",")):
        is_number = entry.isascii() and entry.isdigit() and int(entry) < len(here)
        if not is_number or here[int(entry)] in found:
            break
        found.append(here[int(entry)])
    return ",".join(found)


def gpus_text(worker: str, indices: Sequence[int], gpus: Sequence[Gpu]) -> str:
    """Return which GPUs a worker has, for the description of its endpoint."""
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus if gpu.index in indices))
    return f"{worker} runs on GPU {', '.join(map(str, indices))}{f' ({names})' if names else ''}."


def _gpus_text(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"
