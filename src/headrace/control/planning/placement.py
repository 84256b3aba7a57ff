"""
Placement of copies: the resources of instances, the copies on them and the needs of one more give an instance.

Instances are virtual: they have what their type has on AWS, whatever this host has. A copy stays where it was placed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.control.model.resources import Resources, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A copy on an instance."""

    component: str
    instance: str
    need: Resources


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

    SPREAD: where the component has the fewest copies, then the fewest of all. BINPACK: where the least is left.

    Args:
        component: of the copy.
        need: of the copy.
        whole: resources of an empty instance.
        instances: ids, oldest first.
        placed: the copies on them, leaving ones included.
        strategy: of the component.
    """
    used = {instance: Resources() for instance in instances}
    own, total = dict.fromkeys(instances, 0), dict.fromkeys(instances, 0)
    for copy in placed:
        if copy.instance in used:
            used[copy.instance] += copy.need
            total[copy.instance] += 1
            own[copy.instance] += copy.component == component
    able = [instance for instance in instances if (used[instance] + need).fits_in(whole)]
    if not able:
        return None
    order: Mapping[str, int] = {instance: number for number, instance in enumerate(instances)}
    if strategy == "BINPACK":
        return max(able, key=lambda instance: (_fullness(used[instance], whole), total[instance], -order[instance]))
    return min(
        able, key=lambda instance: (own[instance], total[instance], _fullness(used[instance], whole), order[instance])
    )


def _fullness(used: Resources, whole: Resources) -> float:
    """Return the largest part that is used of any resource of an instance."""
    pairs = (
        (used.cpus, whole.cpus),
        (used.accelerators, whole.accelerators),
        (used.memory_mb, whole.memory_mb),
    )
    return max(some / all_ if all_ > 0 else 0.0 for some, all_ in pairs)
