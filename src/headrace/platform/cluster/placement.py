"""The order in which machines are asked to start a worker. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.platform.cluster.launcher import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The resources of a machine, and what its workers leave of them."""

    num_cores: int
    num_free_cores: int
    memory_bytes: int
    """Memory that is available now."""
    num_gpus: int = 0
    num_free_gpus: int = 0
    """GPUs that have room for one more worker."""
    copies: tuple[tuple[str, int], ...] = ()
    """Group and revision of each worker."""


def in_order(spec: WorkerSpec, rooms: Mapping[str, Room]) -> list[str]:
    """
    Return the machines, the best for a worker first.

    First come those that have the GPUs and the memory which the worker requests; of these, those with the fewest
    copies of its fleet, so that the loss of a machine takes as few as possible; then those with the most free cores. A
    worker that requests GPUs goes to machines with GPUs only, if there are any.
    """
    request = spec.resources
    num_gpus = math.ceil(request.num_accelerators) if request is not None else 0
    declared = request.memory_bytes if request is not None and not request.is_at_most else 0
    needed_bytes = max(declared, spec.limits.memory_bytes or 0)
    has_gpus = num_gpus > 0 and any(room.num_gpus for room in rooms.values())
    able = {name: room for name, room in rooms.items() if room.num_gpus or not has_gpus}

    def badness(name: str) -> tuple[bool, bool, int, int, int, str]:
        room = able[name]
        return (
            has_gpus and room.num_free_gpus < num_gpus,
            room.memory_bytes < needed_bytes,
            room.copies.count((spec.group, spec.revision)) if spec.group else 0,
            -room.num_free_cores,
            -room.memory_bytes,
            name,
        )

    return sorted(able, key=badness)
