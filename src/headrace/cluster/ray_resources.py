"""How much of a node a worker gets. Pure: what it is to have and what the nodes have give what is reserved."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cluster.launcher import ResourceRequest
from headrace.core.sizes import format_size

_MAX_KINDS: Final = 8
"""Of nodes, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What a node has in all, or what a worker gets of one; in the words of Ray."""

    num_cpus: float
    num_gpus: float = 0.0
    memory_bytes: int = 0

    def holds(self, other: "NodeResources") -> bool:
        """Whether there is no less of anything."""
        return (
            self.num_cpus >= other.num_cpus
            and self.num_gpus >= other.num_gpus
            and self.memory_bytes >= other.memory_bytes
        )

    def at_most(self, other: "NodeResources") -> "NodeResources":
        """The lesser of everything."""
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
    What to reserve for a worker on one node; None if there is none that is large enough, also when it is empty.

    On a cluster without a single GPU none is reserved, and the model runs on CPUs, as it does on one machine.
    """
    wanted = _wanted(resources)
    if wanted.num_gpus and not any(node.num_gpus for node in nodes):
        wanted = NodeResources(num_cpus=wanted.num_cpus, memory_bytes=wanted.memory_bytes)
    if any(node.holds(wanted) for node in nodes):
        return wanted
    able = [node for node in nodes if node.num_cpus > 0]
    if not resources.is_at_most or not able:
        return None
    shares = [wanted.at_most(node) for node in able]
    return max(shares, key=lambda share: (share.num_gpus, share.num_cpus, share.memory_bytes))


def notices_of_grant(resources: ResourceRequest, granted: NodeResources) -> tuple[str, ...]:
    """What could not be honoured, in sentences."""
    wanted = _wanted(resources)
    if granted.holds(wanted):
        return ()
    on_cpu = " The model runs on the CPU." if wanted.num_gpus and not granted.num_gpus else ""
    return (f"The worker was to have {wanted}, which no node of the cluster has: it gets {granted}.{on_cpu}",)


def format_resources(resources: ResourceRequest, nodes: Sequence[NodeResources], free: NodeResources) -> str:
    """The numbers, for whoever is refused or has to wait."""
    kinds = Counter(str(node) for node in nodes).most_common()
    shown = [f"{count} x {kind}" if count > 1 else kind for kind, count in kinds[:_MAX_KINDS]]
    has = "; ".join([*shown, *(["..."] if len(kinds) > _MAX_KINDS else [])]) or "none"
    return f"Wanted on one node: {_wanted(resources)}. Nodes: {has}. Free on all together: {free}."


def _wanted(resources: ResourceRequest) -> NodeResources:
    return NodeResources(
        num_cpus=resources.num_cpus, num_gpus=resources.num_accelerators, memory_bytes=resources.memory_bytes
    )
