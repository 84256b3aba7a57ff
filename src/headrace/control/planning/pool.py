"""
The pool of virtual instances of a variant that hosts components: how many there are.

Without ManagedInstanceScaling as many as were asked for. With it one more when a copy does not fit, up to the maximum,
and fewer, down to the minimum: IDLE_RELEASE lets an instance go that has stood empty for the cooldown, CONSOLIDATION
empties instances that others have room for (`consolidation`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.control.model.endpoint import HostInstance
from headrace.control.model.workload import Workload

IDLE_COOLDOWN_S = 600.0
"""Default `CooldownInMinutes` of IDLE_RELEASE."""
CONSOLIDATION_COOLDOWN_S = 1200.0
"""Default of CONSOLIDATION. Source: botocore, sagemaker 2017-07-24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The bounds on the number of instances of a variant."""

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


def first_instances(rules: PoolRules, count: int, *, now_s: float, new_id: Callable[[], str]) -> list[HostInstance]:
    """Return the instances that a variant starts with."""
    number = max(rules.least, min(rules.most, count))
    return [HostInstance(id=new_id(), idle_s=now_s, changed_s=now_s) for _ in range(number)]


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

    An instance with copies stays until they are gone, even if fewer were asked for.

    Args:
        instances: as they were.
        rules: how many there may be.
        copies: copies by instance, now.
        now_s: seconds since 1970.
        new_id: makes the id of an instance.
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
