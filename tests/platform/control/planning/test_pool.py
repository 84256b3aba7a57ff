"""The pool of a variant: the instance for a copy, and the number of instances."""

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.model.endpoint import HostInstance
from headrace.platform.control.model.resources import UNBOUNDED, Resources, Strategy, resources_of_type
from headrace.platform.control.model.workload import Workload
from headrace.platform.control.planning.pool import Placed, PoolRules, choose_instance, kept_instances, pool_rules

ARTICLE = Resources(cpus=6, accelerators=1, memory_mb=40 * 1024)


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


def host(count: int, managed_scaling: dict[str, Any]) -> Workload:
    return Workload(
        variant="v", weight=1.0, count=count, model=None, instance_type="ml.m5.large", managed_scaling=managed_scaling
    )
