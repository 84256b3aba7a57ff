"""The pool of a variant: the instance for a copy, and the number of instances."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.model.endpoint import HostInstance
from headrace.platform.control.model.resources import UNBOUNDED, Resources, Strategy, resources_of_type
from headrace.platform.control.model.workload import Workload
from headrace.platform.control.planning.pool import (
    ConsolidationWindow,
    Placed,
    PoolRules,
    Tenant,
    choose_instance,
    kept_instances,
    pool_rules,
    with_leaving,
)

ARTICLE = Resources(cpus=6, accelerators=1, memory_mb=40 * 1024)
POLICY = {"Strategy": "CONSOLIDATION"}
CONSOLIDATION = {"Status": "ENABLED", "ScaleInPolicy": POLICY}
WHOLE = Resources(cpus=16, accelerators=4, memory_mb=4000)
ONE = Resources(accelerators=1)


def put(number: int, instances: list[str], whole: Resources, need: Resources, strategy: Strategy) -> list[str | None]:
    placed: list[Placed] = []
    found = []
    for _ in range(number):
        chosen = choose_instance("c", need, whole=whole, instances=instances, placed=placed, strategy=strategy)
        found.append(chosen)
        if chosen is not None:
            placed.append(Placed(component="c", instance=chosen, need=need))
    return found


def test_four_copies_with_a_gpu_each_fit_on_a_p3_8xlarge_and_a_fifth_does_not() -> None:
    found = put(5, ["i"], resources_of_type("ml.p3.8xlarge"), ARTICLE, "SPREAD")
    assert found == ["i"] * 4 + [None]


def test_spread_takes_turns_and_binpack_fills_one_first() -> None:
    whole = resources_of_type("ml.p3.8xlarge")
    assert put(4, ["i", "j"], whole, ARTICLE, "SPREAD") == ["i", "j", "i", "j"]
    assert put(5, ["i", "j"], whole, ARTICLE, "BINPACK") == ["i", "i", "i", "i", "j"]


def test_an_unknown_type_has_room_for_all() -> None:
    assert resources_of_type("ml.z99.large") == UNBOUNDED


@given(
    number=st.integers(0, 20),
    num_instances=st.integers(0, 4),
    cpus=st.integers(0, 8),
    memory=st.integers(1, 2000),
    strategy=st.sampled_from(["SPREAD", "BINPACK"]),
)
def test_no_instance_is_ever_overfull(
    number: int, num_instances: int, cpus: int, memory: int, strategy: Strategy
) -> None:
    whole, need = Resources(cpus=16, memory_mb=4000), Resources(cpus=cpus, memory_mb=memory)
    found = put(number, [f"i{index}" for index in range(num_instances)], whole, need, strategy)
    for instance in set(found) - {None}:
        copies = found.count(instance)
        assert copies * cpus <= whole.cpus
        assert copies * memory <= whole.memory_mb
    assert None not in found[: found.index(None)] if None in found else True


def test_an_empty_instance_goes_after_the_cooldown_and_never_below_the_least() -> None:
    numbers = count()
    rules = PoolRules(least=1, most=3, cooldown_s=60)
    pool = [HostInstance(id="a"), HostInstance(id="b"), HostInstance(id="c")]

    def kept(busy: set[str], now_s: float) -> list[str]:
        pool[:] = kept_instances(
            pool, rules, copies=dict.fromkeys(busy, 1), now_s=now_s, new_id=lambda: f"n{next(numbers)}"
        )
        return [instance.id for instance in pool]

    assert kept({"a", "b", "c"}, 0) == ["a", "b", "c"]
    assert kept({"b"}, 10) == ["a", "b", "c"]
    assert kept({"b"}, 69) == ["a", "b", "c"]
    assert kept({"b"}, 70) == ["b"]
    assert kept(set(), 500) == ["b"]


def test_rules_are_read_of_a_variant() -> None:
    managed = {
        "Status": "ENABLED",
        "MinInstanceCount": 0,
        "MaxInstanceCount": 4,
        "ScaleInPolicy": {"Strategy": "IDLE_RELEASE", "CooldownInMinutes": 5},
    }
    assert pool_rules(host(1, managed)) == PoolRules(least=0, most=4, cooldown_s=300)
    assert pool_rules(host(2, {})) == PoolRules(least=2, most=2)


@pytest.mark.parametrize(
    ("number", "managed", "least", "most", "cooldown_s", "step"),
    [
        (3, {"Status": "DISABLED", "MinInstanceCount": 1}, 3, 3, 0, 0),
        (3, {"Status": "ENABLED"}, 1, 3, 600, 0),
        (0, {"Status": "ENABLED"}, 0, 0, 600, 0),
        (1, {"Status": "ENABLED", "MinInstanceCount": 2}, 2, 2, 600, 0),
        (1, {"Status": "ENABLED", "MinInstanceCount": 5, "MaxInstanceCount": 4}, 4, 4, 600, 0),
        (1, CONSOLIDATION, 1, 1, 1200, 1),
        (1, {**CONSOLIDATION, "ScaleInPolicy": {**POLICY, "CooldownInMinutes": 2, "MaximumStepSize": 3}}, 1, 1, 120, 3),
        (1, {**CONSOLIDATION, "ScaleInPolicy": {**POLICY, "CooldownInMinutes": 0}}, 1, 1, 0, 1),
    ],
)
def test_rules_that_a_variant_leaves_out_are_those_of_sagemaker(
    number: int, managed: dict[str, Any], least: int, most: int, cooldown_s: float, step: int
) -> None:
    assert pool_rules(host(number, managed)) == PoolRules(least=least, most=most, cooldown_s=cooldown_s, step=step)


def copies(component: str, instances: str, need: Resources = ONE) -> list[Placed]:
    """Return copies of a component, one on each of the instances."""
    return [Placed(component=component, instance=instance, need=need) for instance in instances]


@pytest.mark.parametrize(
    ("strategy", "placed", "expected"),
    [
        ("SPREAD", [], "a"),
        ("SPREAD", copies("c", "a"), "b"),
        ("SPREAD", copies("c", "a") + copies("d", "bb"), "b"),
        ("SPREAD", copies("d", "a"), "b"),
        ("SPREAD", copies("d", "a") + copies("d", "b", Resources(cpus=1)), "b"),
        ("SPREAD", copies("c", "a") + copies("d", "bbbb"), "a"),
        ("SPREAD", copies("c", "xx") + copies("d", "a"), "b"),
        ("BINPACK", [], "a"),
        ("BINPACK", copies("d", "b"), "b"),
        ("BINPACK", copies("d", "a", Resources(cpus=12)) + copies("d", "bb", Resources(memory_mb=1000)), "a"),
        ("BINPACK", copies("d", "a", Resources(cpus=8)) + copies("d", "bbb", Resources(memory_mb=1000)), "b"),
        ("BINPACK", copies("d", "a", Resources(accelerators=2)) + copies("d", "bb"), "b"),
        ("BINPACK", copies("d", "bbbb"), "a"),
        ("BINPACK", copies("d", "aaaabbbb"), None),
    ],
)
def test_spread_looks_for_few_copies_then_room_binpack_for_a_full_instance_and_both_for_the_oldest(
    strategy: Strategy, placed: list[Placed], expected: str | None
) -> None:
    assert choose_instance("c", ONE, whole=WHOLE, instances="ab", placed=placed, strategy=strategy) == expected


def test_a_resource_that_an_instance_lacks_does_not_count_as_used() -> None:
    whole, placed = Resources(memory_mb=100), copies("c", "b", Resources(memory_mb=10))
    need = Resources(memory_mb=1)
    assert choose_instance("d", need, whole=whole, instances="ab", placed=placed, strategy="BINPACK") == "b"
    assert choose_instance("d", need, whole=whole, instances="ab", placed=placed, strategy="SPREAD") == "a"
    one_gpu = Resources(accelerators=1, memory_mb=100)
    placed = [*copies("c", "a", ONE), *copies("c", "b", Resources(memory_mb=50))]
    assert choose_instance("d", need, whole=one_gpu, instances="ab", placed=placed, strategy="BINPACK") == "a"


@pytest.mark.parametrize(
    ("rules", "pool", "expected"),
    [
        # More than the maximum: empty ones go at once, the newest first; those with copies stay.
        (PoolRules(least=1, most=1, cooldown_s=60), {"a": None, "b": 990, "c": 995}, "a"),
        (PoolRules(least=1, most=2, cooldown_s=60), {"a": 990, "b": 990, "c": 995}, "ab"),
        (PoolRules(least=0, most=1, cooldown_s=60), {"a": None, "b": None}, "ab"),
        # Above the minimum: an empty one goes after its cooldown; with consolidation only after it was chosen.
        (PoolRules(least=1, most=3, cooldown_s=60), {"a": 940, "b": 941, "c": 940}, "b"),
        (PoolRules(least=2, most=3, cooldown_s=60), {"a": 940, "b": 940, "c": 940}, "ab"),
        (PoolRules(least=0, most=3, cooldown_s=60, step=1), {"a": 0, "b": None}, "ab"),
        # Fewer than the minimum.
        (PoolRules(least=3, most=3), {"a": None}, "a01"),
    ],
)
def test_empty_instances_go_above_the_maximum_or_after_a_cooldown_and_missing_ones_come(
    rules: PoolRules, pool: dict[str, float | None], expected: str
) -> None:
    ids = count()
    instances = [HostInstance(id=name, idle_s=idle_s, num_copies=idle_s is None) for name, idle_s in pool.items()]
    occupied = {name: 1 for name, idle_s in pool.items() if idle_s is None}
    kept = kept_instances(instances, rules, copies=occupied, now_s=1000, new_id=lambda: str(next(ids)))
    assert "".join(instance.id for instance in kept) == expected
    added = [instance for instance in kept if instance.id not in pool]
    assert all((instance.idle_s, instance.changed_s) == (1000, 1000) for instance in added)


def test_an_emptied_instance_goes_at_once_and_the_next_ones_after_another_cooldown() -> None:
    instances = [HostInstance(id="a", num_copies=1), HostInstance(id="b", leaving_s=900, idle_s=900)]
    rules = PoolRules(least=1, most=2, cooldown_s=60, step=1)
    (kept,) = kept_instances(instances, rules, copies={"a": 1}, now_s=1000, new_id=str)
    assert (kept.id, kept.changed_s) == ("a", 1000)


def test_an_instance_records_when_its_copies_changed_and_since_when_it_has_none() -> None:
    rules = PoolRules(least=1, most=1)

    def after(instance: HostInstance, num_copies: int) -> HostInstance:
        (kept,) = kept_instances([instance], rules, copies={"a": num_copies}, now_s=1000, new_id=str)
        return kept

    busy = HostInstance(id="a", num_copies=1, changed_s=5)
    assert after(busy, 1) is busy
    assert after(busy, 2) == HostInstance(id="a", num_copies=2, changed_s=1000)
    assert after(busy, 0) == HostInstance(id="a", idle_s=1000, changed_s=1000)
    empty = HostInstance(id="a", idle_s=7, changed_s=5)
    assert after(empty, 0) is empty
    assert after(empty, 1) == HostInstance(id="a", num_copies=1, changed_s=1000)


def emptied(
    tenants: Sequence[Tenant],
    rules: PoolRules,
    *,
    fixed: Sequence[Placed] = (),
    may_begin: bool = True,
    may_go_on: bool = True,
    since_s: float = 0,
    instances: Sequence[HostInstance] = tuple(HostInstance(id=name) for name in "abc"),
) -> str:
    """Return the instances among `a`, `b` and `c`, oldest first, that are emptied at 1000 s."""
    window = ConsolidationWindow(may_begin=may_begin, may_go_on=may_go_on, since_s=since_s)
    found = with_leaving(instances, rules, tenants, fixed=fixed, whole=WHOLE, window=window, now_s=1000)
    return "".join(instance.id for instance in found if instance.leaving_s is not None)


def tenant(instances: str, need: float = 1, strategy: Strategy = "SPREAD", name: str = "c") -> Tenant:
    return Tenant(name=name, need=Resources(accelerators=need), strategy=strategy, instances=tuple(instances))


def test_instances_are_emptied_when_nothing_has_changed_for_the_cooldown() -> None:
    rules = PoolRules(least=1, most=3, cooldown_s=100, step=1)
    tenants = [tenant("abc")]
    assert emptied(tenants, rules) == "c"
    assert emptied(tenants, rules, since_s=900) == "c"
    assert emptied(tenants, rules, since_s=901) == ""
    changed = [HostInstance(id="a", changed_s=901), HostInstance(id="b"), HostInstance(id="c")]
    assert emptied(tenants, rules, instances=changed) == ""
    assert emptied(tenants, rules, may_begin=False) == ""
    assert emptied(tenants, PoolRules(least=1, most=2, cooldown_s=100), may_begin=False) == ""
    assert emptied(tenants, PoolRules(least=1, most=2, cooldown_s=100), since_s=999) == "c", "fewer were requested"


def test_emptying_goes_on_until_it_may_not() -> None:
    rules = PoolRules(least=1, most=3, cooldown_s=100, step=1)
    leaving = [HostInstance(id="a"), HostInstance(id="b", leaving_s=950)]
    assert emptied([tenant("a")], rules, instances=leaving, may_begin=False) == "b"
    assert emptied([tenant("a")], rules, instances=leaving, may_go_on=False) == ""


@pytest.mark.parametrize(
    ("tenants", "rules", "fixed", "expected"),
    [
        # As many as the step and the minimum allow: those with the fewest copies first, then the newest.
        ([tenant("abc")], {"step": 2}, "", "bc"),
        ([tenant("abc")], {"step": 2, "least": 2}, "", "c"),
        ([tenant("abc")], {"step": 0}, "", ""),
        ([tenant("aabc")], {"step": 1, "most": 1}, "", "bc"),
        ([tenant("abbcc", strategy="BINPACK")], {"step": 1}, "", "a"),
        ([], {"step": 3, "least": 0}, "", "abc"),
        # A copy that cannot be moved keeps its instance.
        ([tenant("aabb")], {"step": 1}, "c", "b"),
        ([], {"step": 3, "least": 0}, "ac", "b"),
        # Each copy has room on the others, and all of them together.
        ([tenant("abc", need=3)], {"step": 1}, "", ""),
        ([tenant("acc", need=2, strategy="BINPACK")], {"step": 1}, "bbbb", ""),
        ([tenant("ac", need=2, strategy="BINPACK")], {"step": 1}, "bbbb", "c"),
        ([tenant("ac", need=2), tenant("c", need=1, name="d"), tenant("c", need=2, name="e")], {"step": 1}, "bbbb", ""),
        # A component is not spread less evenly: there is no room for its copies on the second instance.
        ([tenant("aabbcc", strategy="BINPACK")], {"step": 1}, "bb", "c"),
        ([tenant("aabbcc")], {"step": 1}, "bb", ""),
        ([tenant("abbc")], {"step": 1}, "bb", "c"),
    ],
)
def test_instances_whose_copies_have_room_on_the_others_are_emptied(
    tenants: list[Tenant], rules: dict[str, int], fixed: str, expected: str
) -> None:
    all_rules = PoolRules(**{"least": 1, "most": 3, "cooldown_s": 100, **rules})
    assert emptied(tenants, all_rules, fixed=copies("x", fixed)) == expected


def host(count: int, managed_scaling: dict[str, Any]) -> Workload:
    return Workload(
        variant="v", weight=1.0, count=count, model=None, instance_type="ml.m5.large", managed_scaling=managed_scaling
    )
