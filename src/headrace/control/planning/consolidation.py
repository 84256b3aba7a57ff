"""
Consolidation: which instances are emptied, so that a variant has fewer of them.

That happens under CONSOLIDATION once nothing has changed for the cooldown, and when fewer instances were asked for than
hold copies. Copies move: another one is started on an instance that stays, and when it serves the old one goes
(`fleet.surplus`), so that no more room is needed than the others have. A request for a component or its endpoint
meanwhile comes first: all instances stay then, and the cooldown starts again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.control.model.endpoint import HostInstance
from headrace.control.model.resources import Resources, Strategy
from headrace.control.planning.placement import Placed, choose_instance
from headrace.control.planning.pool import PoolRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A component whose copies may be moved."""

    name: str
    need: Resources
    strategy: Strategy
    instances: tuple[str, ...]
    """Ids of the instances of its copies: one entry for each copy."""

    def placed(self) -> list[Placed]:
        """Return its copies."""
        return [Placed(component=self.name, instance=instance, need=self.need) for instance in self.instances]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationWindow:
    """The time in which copies may be moved."""

    may_begin: bool
    """Everything that was asked for serves, and nothing has failed lately."""
    may_go_on: bool
    """Nothing has been asked for since, and no copy has failed."""
    since_s: float
    """When something was asked for last, or completed."""


def with_leaving(
    instances: Sequence[HostInstance],
    rules: PoolRules,
    tenants: Sequence[Tenant],
    *,
    fixed: Sequence[Placed],
    whole: Resources,
    window: ConsolidationWindow,
    now_s: float,
) -> list[HostInstance]:
    """
    Decide which instances are emptied now.

    Args:
        instances: of the variant, oldest first.
        rules: how many there may be.
        tenants: the components, in the order in which they are planned.
        fixed: other copies, which stay where they are.
        whole: what an instance has.
        window: whether anything may be moved.
        now_s: seconds since 1970.
    """
    if any(instance.leaving_s is not None for instance in instances):
        return list(instances) if window.may_go_on else all_staying(instances, now_s)
    limit = _how_many(instances, rules, window, now_s) if window.may_begin else 0
    if limit <= 0:
        return list(instances)
    chosen = instances_to_empty([instance.id for instance in instances], tenants, fixed=fixed, whole=whole, limit=limit)
    return [replace(instance, leaving_s=now_s) if instance.id in chosen else instance for instance in instances]


def all_staying(instances: Sequence[HostInstance], now_s: float) -> list[HostInstance]:
    """Stop emptying instances until another cooldown has passed."""
    return [replace(instance, leaving_s=None, changed_s=now_s) for instance in instances]


def _how_many(instances: Sequence[HostInstance], rules: PoolRules, window: ConsolidationWindow, now_s: float) -> int:
    """Return how many instances may be emptied."""
    if len(instances) > rules.most:
        return len(instances) - rules.most
    quiet_s = now_s - max([window.since_s, *(instance.changed_s for instance in instances)])
    return min(rules.step, len(instances) - rules.least) if quiet_s >= rules.cooldown_s else 0


def instances_to_empty(
    instances: Sequence[str], tenants: Sequence[Tenant], *, fixed: Sequence[Placed], whole: Resources, limit: int
) -> frozenset[str]:
    """
    Choose at most so many instances whose copies have room on the others, those with the fewest copies first.

    Args:
        instances: ids, oldest first.
        tenants: the components, in the order in which they are placed.
        fixed: copies that cannot be moved.
        whole: what an instance has.
        limit: how many at most.
    """
    copies = [*fixed, *(copy for tenant in tenants for copy in tenant.placed())]
    numbers = Counter(copy.instance for copy in copies)
    age: Mapping[str, int] = {instance: number for number, instance in enumerate(instances)}
    chosen: frozenset[str] = frozenset()
    for instance in sorted(instances, key=lambda instance: (numbers[instance], -age[instance])):
        if len(chosen) == limit:
            break
        if _can_be_emptied(chosen | {instance}, instances, tenants, fixed, whole):
            chosen |= {instance}
    return chosen


def _can_be_emptied(
    leaving: AbstractSet[str],
    instances: Sequence[str],
    tenants: Sequence[Tenant],
    fixed: Sequence[Placed],
    whole: Resources,
) -> bool:
    """Return whether each copy on them fits on the others, and no component is spread less evenly for it."""
    if any(copy.instance in leaving for copy in fixed):
        return False
    kept = [instance for instance in instances if instance not in leaving]
    placed = [*fixed, *(copy for tenant in tenants for copy in tenant.placed())]
    for tenant in tenants:
        own = [instance for instance in tenant.instances if instance not in leaving]
        for _ in range(len(tenant.instances) - len(own)):
            instance = choose_instance(
                tenant.name, tenant.need, whole=whole, instances=kept, placed=placed, strategy=tenant.strategy
            )
            if instance is None:
                return False
            placed.append(Placed(component=tenant.name, instance=instance, need=tenant.need))
            own.append(instance)
        is_moved = sorted(own) != sorted(tenant.instances)
        if is_moved and tenant.strategy == "SPREAD":
            before, after = _imbalance(tenant.instances, instances), _imbalance(own, kept)
            if after > max(1, before):
                return False
    return True


def _imbalance(standing: Sequence[str], instances: Sequence[str]) -> int:
    """Return the copies on the instance that has the most, less those on the one that has the fewest."""
    numbers = Counter(standing)
    return max((numbers[instance] for instance in instances), default=0) - min(
        (numbers[instance] for instance in instances), default=0
    )
