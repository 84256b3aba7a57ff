"""The resources of a node to reserve for a worker, from its request and the nodes' resources. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.sizes import format_size
from headrace.platform.cluster.launcher import ResourceRequest

_MAX_KINDS: Final = 8
"""Kinds of nodes listed in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """The total resources of a node, or the part of them reserved for a worker; as Ray counts them."""

    num_cpus: float
    num_gpus: float = 0.0
    memory_bytes: int = 0

    def holds(self, other: "NodeResources") -> bool:
        """Return whether every resource is at least that of `other`."""
        return (
            self.num_cpus >= other.num_cpus
            and self.num_gpus >= other.num_gpus
            and self.memory_bytes >= other.memory_bytes
        )

    def at_most(self, other: "NodeResources") -> "NodeResources":
        """Return the minimum of each resource."""
        return NodeResources(
            num_cpus=min(self.num_cpus, other.num_cpus),
            num_gpus=min(self.num_gpus, other.num_gpus),
            memory_bytes=min(self.memory_bytes, other.memory_bytes),
        )

    def __str__(self) -> str:
        parts = [f"{self.num_cpus:g} CPU"]
        if self.num_gpus:
            parts.append(f"{self.num_gpus:g} GPU")
        if self.memory_bytes:
            parts.append(f"{format_size(self.memory_bytes)} of memory")
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def grant(resources: ResourceRequest, nodes: Sequence[NodeResources]) -> NodeResources | None:
    """
    Return the resources to reserve for a worker on one node; None if no node is large enough even when empty.

    On a cluster without GPUs none is reserved, and the model runs on CPUs, as on a single machine.
    """
    requested = _requested(resources)
    if requested.num_gpus and not any(node.num_gpus for node in nodes):
        requested = NodeResources(num_cpus=requested.num_cpus, memory_bytes=requested.memory_bytes)
    if any(node.holds(requested) for node in nodes):
        return requested
    able = [node for node in nodes if node.num_cpus > 0]
    if not resources.is_at_most or not able:
        return None
    shares = [requested.at_most(node) for node in able]
    return max(shares, key=lambda share: (share.num_gpus, share.num_cpus, share.memory_bytes))


def target_node(
    name: str, granted: NodeResources, nodes: Mapping[str, NodeResources], placed: Sequence[tuple[str, str]]
) -> str | None:
    """
    Return the node with the fewest copies of a worker's fleet, so that the loss of a node takes as few as possible.

    Args:
        name: of the worker; the names of a fleet's workers differ in their last part only.
        granted: the resources to reserve for it.
        nodes: the resources of each live node by its id.
        placed: name and node of each worker that has a place.

    Returns None if all nodes that are large enough have as many: then Ray chooses by the free resources.
    """
    fleet = name.rpartition("-")[0]
    copies = Counter(node for other, node in placed if fleet and other.rpartition("-")[0] == fleet)
    workers = Counter(node for _, node in placed)
    able = [node for node, resources in nodes.items() if resources.holds(granted)]
    fewest = min((copies[node] for node in able), default=0)
    best = [node for node in able if copies[node] == fewest]
    return min(best, key=lambda node: workers[node]) if len(best) < len(able) else None


def notices_of_grant(resources: ResourceRequest, granted: NodeResources) -> tuple[str, ...]:
    """Return the differences between the requested and the reserved resources, in sentences."""
    requested = _requested(resources)
    if granted.holds(requested):
        return ()
    on_cpu = " The model runs on the CPU." if requested.num_gpus and not granted.num_gpus else ""
    return (f"The worker requests {requested}, which no node of the cluster has: it gets {granted}.{on_cpu}",)


def format_resources(resources: ResourceRequest, nodes: Sequence[NodeResources], free: NodeResources) -> str:
    """Format the requested, total and free resources, for the message of a worker that is refused or waits."""
    kinds = Counter(str(node) for node in nodes).most_common()
    shown = [f"{count} x {kind}" if count > 1 else kind for kind, count in kinds[:_MAX_KINDS]]
    has = "; ".join([*shown, *(["..."] if len(kinds) > _MAX_KINDS else [])]) or "none"
    return f"Requested on one node: {_requested(resources)}. Nodes: {has}. Free on all together: {free}."


def _requested(resources: ResourceRequest) -> NodeResources:
    return NodeResources(
        num_cpus=resources.num_cpus, num_gpus=resources.num_accelerators, memory_bytes=resources.memory_bytes
    )
