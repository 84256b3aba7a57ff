"""
The virtual instances of a variant that hosts components: how many there are. Pure.

Without ManagedInstanceScaling as many as were asked for. With it one more when a copy does not fit, up to the maximum,
and one that has stood empty for the cooldown goes, down to the minimum.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from headrace.state.records import Json

COOLDOWN_S = 600.0
"""`CooldownInMinutes` where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInstance:
    """One of them."""

    id: str
    """`i-0123456789abcdef0`"""
    idle_s: float | None = None
    """Since when nothing stands on it; None: something does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """How many instances a variant may have."""

    least: int
    most: int
    cooldown_s: float = 0.0
    """An instance above the least goes when it has been empty for so long."""


def read_rules(variant: Json, count: int) -> PoolRules:
    """
    Read a production variant without a model.

    Args:
        variant: as CreateEndpointConfig has it.
        count: instances that were asked for.
    """
    managed: Json = variant.get("ManagedInstanceScaling") or {}
    if managed.get("Status") != "ENABLED":
        return PoolRules(least=count, most=count)
    least = int(managed.get("MinInstanceCount", min(count, 1)))
    most = int(managed.get("MaxInstanceCount", max(count, least)))
    minutes = (managed.get("ScaleInPolicy") or {}).get("CooldownInMinutes")
    return PoolRules(
        least=min(least, most), most=most, cooldown_s=COOLDOWN_S if minutes is None else 60.0 * float(minutes)
    )


def first_instances(rules: PoolRules, count: int, *, now_s: float, new_id: Callable[[], str]) -> list[HostInstance]:
    """Those that a variant begins with."""
    number = max(rules.least, min(rules.most, count))
    return [HostInstance(id=new_id(), idle_s=now_s) for _ in range(number)]


def kept_instances(
    instances: Sequence[HostInstance],
    rules: PoolRules,
    *,
    busy: AbstractSet[str],
    now_s: float,
    new_id: Callable[[], str],
) -> list[HostInstance]:
    """
    Bring the instances up to date: as many as there must be at least, without those that have been empty too long.

    One with copies stays until they have gone, also when fewer were asked for.
    """
    seen = [
        replace(one, idle_s=None if one.id in busy else one.idle_s if one.idle_s is not None else now_s)
        for one in instances
    ]
    ripe = [one for one in reversed(seen) if one.idle_s is not None and now_s - one.idle_s >= rules.cooldown_s]
    above_most = [one for one in reversed(seen) if one.idle_s is not None][: max(0, len(seen) - rules.most)]
    leaving = list(dict.fromkeys(one.id for one in (*above_most, *ripe)))[: max(0, len(seen) - rules.least)]
    kept = [one for one in seen if one.id not in leaving]
    missing = max(0, rules.least - len(kept))
    return [*kept, *(HostInstance(id=new_id(), idle_s=now_s) for _ in range(missing))]
