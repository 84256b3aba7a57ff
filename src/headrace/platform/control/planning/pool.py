"""
The pool of virtual instances of a variant: how many there are, which are emptied, and which one gets a copy.

An instance has the resources of its type on AWS, whatever this host has; a copy stays where it was placed.
Without ManagedInstanceScaling there are as many as were requested. With it one is added when a copy does not fit, up to
the maximum, and instances are removed, down to the minimum: IDLE_RELEASE removes an instance that has been empty for
the cooldown; CONSOLIDATION empties instances whose copies have room on others, once nothing has changed for the
cooldown. Instances are also emptied when fewer were requested than hold copies.

A copy is moved by starting another one on an instance that stays; when that one serves, the old one is drained
(`worker_actions.surplus`), so that no more room is needed than the others have. A request for a component or its
endpoint in the meantime takes precedence: all instances then stay, and the cooldown starts again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.platform.control.model.endpoint import HostInstance
from headrace.platform.control.model.resources import Resources, Strategy
from headrace.platform.control.model.workload import Workload

IDLE_COOLDOWN_S = 600.0
"""Default `CooldownInMinutes` of IDLE_RELEASE."""
CONSOLIDATION_COOLDOWN_S = 1200.0
"""Default of CONSOLIDATION. Source: botocore, sagemaker 2017-07-24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    least: int
    most: int
    cooldown_s: float = 0.0
    """Seconds an instance above the minimum stays empty before it is removed; with `step`: seconds without a change."""
    step: int = 0
    """CONSOLIDATION: how many instances may be emptied at a time; 0: none."""


def pool_rules(host: Workload) -> PoolRules:
    """Return the rules for the instances of a variant that hosts components."""
    managed, count = host.managed_scaling, host.count
    if managed.get("Status") != "ENABLED":
        return PoolRules(least=count, most=count)
    least = int(managed.get("MinInstanceCount", min(count, 1)))
    most = int(managed.get("MaxInstanceCount", max(count, least)))
    policy = managed.get("ScaleInPolicy") or {}
    consolidates = policy.get("Strategy") == "CONSOLIDATION"
    cooldown_s = CONSOLIDATION_COOLDOWN_S if consolidates else IDLE_COOLDOWN_S
    minutes = policy.get("CooldownInMinutes")
    return PoolRules(
        least=min(least, most),
        most=most,
        cooldown_s=cooldown_s if minutes is None else 60.0 * float(minutes),
        step=int(policy.get("MaximumStepSize", 1)) if consolidates else 0,
    )


def kept_instances(
    instances: Sequence[HostInstance],
    rules: PoolRules,
    *,
    copies: Mapping[str, int],
    now_s: float,
    new_id: Callable[[], str],
) -> list[HostInstance]:
    """
    Return the instances of the next pass: at least the minimum, without those that may go.

    An instance with copies stays until they are gone, even if fewer instances were requested.
    """
    seen = [_with_copies(instance, copies.get(instance.id, 0), now_s) for instance in instances]
    empty = [instance for instance in reversed(seen) if instance.idle_s is not None]
    emptied = [instance for instance in empty if instance.leaving_s is not None]
    ripe = [instance for instance in empty if not rules.step and now_s - (instance.idle_s or 0.0) >= rules.cooldown_s]
    above_most = empty[: max(0, len(seen) - rules.most)]
    leaving = list(dict.fromkeys(instance.id for instance in (*emptied, *above_most, *ripe)))[
        : max(0, len(seen) - rules.least)
    ]
    kept = [instance for instance in seen if instance.id not in leaving]
    if any(instance.id in leaving for instance in emptied):
        kept = [replace(instance, changed_s=now_s) for instance in kept]  # the next ones go after another cooldown
    missing = max(0, rules.least - len(kept))
    return [*kept, *(HostInstance(id=new_id(), idle_s=now_s, changed_s=now_s) for _ in range(missing))]


def _with_copies(instance: HostInstance, num_copies: int, now_s: float) -> HostInstance:
    idle_s = None if num_copies else instance.idle_s if instance.idle_s is not None else now_s
    if num_copies == instance.num_copies and instance.idle_s == idle_s:
        return instance
    changed_s = now_s if num_copies != instance.num_copies else instance.changed_s
    return replace(instance, idle_s=idle_s, num_copies=num_copies, changed_s=changed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
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
    Choose the instance for one more copy, among ids in the order of age; None if it fits on none.

    SPREAD chooses the one with the fewest copies of the component, then of all components; BINPACK the fullest one.
    The leaving copies among `placed` still take their room.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A component whose copies may be moved."""

    name: str
    need: Resources
    strategy: Strategy
    instances: tuple[str, ...]
    """Ids of the instances of its copies: one entry for each copy."""

    def placed(self) -> list[Placed]:
        return [Placed(component=self.name, instance=instance, need=self.need) for instance in self.instances]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationWindow:
    """The conditions under which copies may be moved between instances."""

    may_begin: bool
    """True if everything requested serves, and nothing has failed lately."""
    may_go_on: bool
    """True if nothing was requested since, and no copy has failed."""
    since_s: float
    """Time of the latest request, or of its completion."""


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
    """Decide which instances are emptied now; `fixed` are copies that cannot be moved."""
    if any(instance.leaving_s is not None for instance in instances):
        return list(instances) if window.may_go_on else all_staying(instances, now_s)
    limit = 0
    if window.may_begin and len(instances) > rules.most:
        limit = len(instances) - rules.most  # fewer were requested: no cooldown
    elif window.may_begin:
        quiet_s = now_s - max([window.since_s, *(instance.changed_s for instance in instances)])
        limit = min(rules.step, len(instances) - rules.least) if quiet_s >= rules.cooldown_s else 0
    if limit <= 0:
        return list(instances)
    chosen = instances_to_empty([instance.id for instance in instances], tenants, fixed=fixed, whole=whole, limit=limit)
    return [replace(instance, leaving_s=now_s) if instance.id in chosen else instance for instance in instances]


def all_staying(instances: Sequence[HostInstance], now_s: float) -> list[HostInstance]:
    """Stop emptying instances until another cooldown has passed."""
    return [replace(instance, leaving_s=None, changed_s=now_s) for instance in instances]


def instances_to_empty(
    instances: Sequence[str], tenants: Sequence[Tenant], *, fixed: Sequence[Placed], whole: Resources, limit: int
) -> frozenset[str]:
    """
    Choose at most `limit` instances whose copies have room on the others, those with the fewest copies first.

    The tenants are in the order in which they are placed, the instances in that of their age.
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
    """Return whether each copy on leaving instances fits on the others without a component being spread less evenly."""
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
    """Return the difference between the most and the fewest copies on an instance."""
    numbers = Counter(standing)
    return max((numbers[instance] for instance in instances), default=0) - min(
        (numbers[instance] for instance in instances), default=0
    )
