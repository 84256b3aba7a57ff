"""The ratio by which copies follow instances."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.platform.control.model.component import Density
from headrace.platform.control.model.resources import Resources
from headrace.platform.control.planning.pool import Placed, choose_instance
from tests.platform.control.planning.host_world import HostWorld

densities = st.builds(Density, copies=st.integers(1, 100), instances=st.integers(1, 20))


@given(densities, st.integers(0, 40), st.integers(0, 40))
def test_copies_are_what_was_declared_none_on_nothing_and_never_fewer_on_more(
    density: Density, some: int, more: int
) -> None:
    assert density.copies_on(density.instances) == density.copies
    assert density.copies_on(0) == 0
    assert density.copies_on(some) <= density.copies_on(some + more)
    assert density.copies_on(some) * density.instances - density.copies * some in range(density.instances)


@given(densities, st.integers(1, 5))
def test_whole_multiples_of_the_instances_have_whole_multiples_of_the_copies(density: Density, times: int) -> None:
    assert density.copies_on(times * density.instances) == times * density.copies


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["SPREAD", "BINPACK"]))
def test_copies_that_fit_as_declared_fit_on_every_larger_number_of_instances(
    copies: int, instances: int, accelerators: int, strategy: str
) -> None:
    whole = Resources(accelerators=4)
    need = Resources(accelerators=accelerators)
    if copies > instances * (4 // accelerators):
        return
    for number in range(instances, instances + 5):
        ids, placed = [f"i{index}" for index in range(number)], []
        for _ in range(Density(copies=copies, instances=instances).copies_on(number)):
            chosen = choose_instance("c", need, whole=whole, instances=ids, placed=placed, strategy=strategy)  # type: ignore[arg-type]
            assert chosen is not None
            placed.append(Placed(component="c", instance=chosen, need=need))


@pytest.mark.parametrize("raw", [{"copies": 0, "instances": 1}, {"copies": 1}, "four", {"copies": 2, "instances": -1}])
def test_a_density_that_makes_no_sense_is_an_error(raw: object) -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected|missing"):
        msgspec.convert(raw, Density)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from(["SPREAD", "BINPACK"]),
    st.booleans(),
    st.integers(0, 6),
)
def test_instances_and_copies_that_change_together_are_all_there_in_the_end_in_whichever_order_they_are_asked_for(
    per_instance: int, before: int, after: int, strategy: str, is_instances_first: bool, num_passes_between: int
) -> None:
    world = HostWorld(variant={}, count=before)
    density = Density(copies=per_instance * before, instances=before)
    world.add("c", density.copies, strategy=strategy)
    world.settle()
    assert world.serving("c") == density.copies
    least = min(density.copies, density.copies_on(after))

    def instances() -> None:
        world.resize(after)

    def copies() -> None:
        if density.copies_on(after) != density.copies:
            world.scale("c", density.copies_on(after))

    for number, change in enumerate((instances, copies) if is_instances_first else (copies, instances)):
        change()
        for _ in range(num_passes_between if number == 0 else 100):
            world.step(0.5)
            assert world.serving("c") >= least, "no request goes without an answer meanwhile"
    assert world.serving("c") == density.copies_on(after)
    assert len(world.instances) == after
    assert all(sum(copies.values()) <= 4 for copies in world.standing().values())
