"""
Which instance a copy is put on. Pure: what instances have, what stands on them and what is needed give a choice.

Instances are virtual: they have what their type has on AWS, whatever this host has. A copy stays where it was put.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.cluster.instance_types import find_instance_type
from headrace.state.records import Json

Strategy = Literal["SPREAD", "BINPACK"]
_MIB = 1 << 20
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What an instance has, or what a copy needs of it."""

    cpus: float = 0.0
    accelerators: float = 0.0
    memory_mb: float = 0.0

    def __add__(self, other: "Resources") -> "Resources":
        """Both together."""
        return Resources(
            cpus=self.cpus + other.cpus,
            accelerators=self.accelerators + other.accelerators,
            memory_mb=self.memory_mb + other.memory_mb,
        )

    def fits_in(self, whole: "Resources") -> bool:
        """Whether there is no less of anything in `whole`."""
        return (
            self.cpus <= whole.cpus + _EPSILON
            and self.accelerators <= whole.accelerators + _EPSILON
            and self.memory_mb <= whole.memory_mb + _EPSILON
        )


UNBOUNDED = Resources(cpus=float("inf"), accelerators=float("inf"), memory_mb=float("inf"))
"""Of an instance type that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A copy on an instance."""

    component: str
    instance: str
    need: Resources


def resources_of_type(instance_type: str) -> Resources:
    """What an instance of a type has on AWS."""
    kind = find_instance_type(instance_type)
    if kind is None:
        return UNBOUNDED
    return Resources(cpus=kind.vcpus, accelerators=kind.num_accelerators, memory_mb=kind.memory_bytes / _MIB)


def read_need(specification: Json) -> Resources:
    """`ComputeResourceRequirements` of a specification."""
    asked: Json = specification.get("ComputeResourceRequirements") or {}
    return Resources(
        cpus=float(asked.get("NumberOfCpuCoresRequired", 0)),
        accelerators=float(asked.get("NumberOfAcceleratorDevicesRequired", 0)),
        memory_mb=float(asked.get("MinMemoryRequiredInMb", 0)),
    )


def read_strategy(specification: Json) -> Strategy:
    """`SchedulingConfig.PlacementStrategy`; SPREAD where nothing is said."""
    chosen = (specification.get("SchedulingConfig") or {}).get("PlacementStrategy", "SPREAD")
    return "BINPACK" if chosen == "BINPACK" else "SPREAD"


def told(amount: Resources) -> str:
    """CPU cores, accelerators and memory, in words."""
    return f"{amount.cpus:g} CPU cores, {amount.accelerators:g} accelerators and {amount.memory_mb:.0f} MB"


def too_large(need: Resources, instance_type: str) -> str:
    """What to say when not even an empty instance has what a copy needs."""
    whole = resources_of_type(instance_type)
    return f"A copy needs {told(need)}; an instance of type {instance_type} has {told(whole)}."


def choose_instance(
    component: str,
    need: Resources,
    *,
    whole: Resources,
    instances: Sequence[str],
    placed: Sequence[Placed],
    strategy: Strategy,
) -> str | None:
    """
    Choose the instance for one more copy; None if it fits on none.

    SPREAD: where the component has the fewest copies, then where the fewest stand. BINPACK: where the least is left.

    Args:
        component: whose copy it is.
        need: of the copy.
        whole: what each instance has when nothing stands on it.
        instances: ids, oldest first.
        placed: the copies that stand on them, those that are leaving too.
        strategy: of the component.
    """
    used = {one: Resources() for one in instances}
    own, total = dict.fromkeys(instances, 0), dict.fromkeys(instances, 0)
    for copy in placed:
        if copy.instance in used:
            used[copy.instance] += copy.need
            total[copy.instance] += 1
            own[copy.instance] += copy.component == component
    able = [one for one in instances if (used[one] + need).fits_in(whole)]
    if not able:
        return None
    order: Mapping[str, int] = {one: number for number, one in enumerate(instances)}
    if strategy == "BINPACK":
        return max(able, key=lambda one: (_fullness(used[one], whole), total[one], -order[one]))
    return min(able, key=lambda one: (own[one], total[one], _fullness(used[one], whole), order[one]))


def _fullness(used: Resources, whole: Resources) -> float:
    """How full an instance is: the largest part that is used of anything."""
    pairs = (
        (used.cpus, whole.cpus),
        (used.accelerators, whole.accelerators),
        (used.memory_mb, whole.memory_mb),
    )
    return max(some / all_ if all_ > 0 else 0.0 for some, all_ in pairs)
