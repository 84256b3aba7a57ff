"""Distribution of a host to its workers: GPUs that no other worker has, and shares of the cores."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.gpus import Gpu
from headrace.platform.cluster.host_resources import (
    Given,
    Holding,
    HostResources,
    choose_gpus,
    chosen_of_given,
    give,
    gpu_environment,
    share_of_cores,
)
from headrace.platform.cluster.launcher import InsufficientCapacity, Limits, ResourceRequest, StartPending, WorkerSpec

FOUR = HostResources(num_cores=8, gpus=tuple(Gpu(index=index) for index in range(4)))
NONE = HostResources(num_cores=8)


def spec(num_gpus: float = 0, *, threads: int | None = 4, is_at_most: bool = True, **more: object) -> WorkerSpec:
    request = ResourceRequest(num_cpus=1, num_accelerators=num_gpus, is_at_most=is_at_most)
    return WorkerSpec(name="w", resources=request, threads=threads, **more)  # type: ignore[arg-type]


@given(
    requests=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20),
    num_gpus=st.integers(0, 4),
    workers_per_gpu=st.integers(1, 3),
)
def test_no_gpu_has_more_workers_than_allowed(
    requests: list[tuple[int, bool]], num_gpus: int, workers_per_gpu: int
) -> None:
    host = HostResources(
        num_cores=4, gpus=tuple(Gpu(index=index) for index in range(num_gpus)), workers_per_gpu=workers_per_gpu
    )
    held: list[Holding] = []
    for count, is_leaving in requests:
        try:
            found = give(spec(count), host, held)
        except StartPending:
            users = Counter(index for holding in held for index in holding.gpus)
            assert sum(users[gpu.index] < workers_per_gpu for gpu in host.gpus) < min(count, num_gpus)
        else:
            assert len(set(found.gpus)) == min(count, num_gpus)
            held.append(Holding(gpus=found.gpus, num_cores=found.num_cores))
        if is_leaving and held:
            held.pop(0)
        users = Counter(index for holding in held for index in holding.gpus)
        assert max(users.values(), default=0) <= workers_per_gpu


def test_the_gpus_with_the_fewest_workers_are_chosen() -> None:
    assert choose_gpus([0, 1, 2], 2, held=[0, 0, 2], workers_per_gpu=3) == (1, 2)
    assert choose_gpus([3, 1], 1, held=[]) == (3,)
    assert choose_gpus([0, 1], 2, held=[1]) is None


def test_a_worker_that_finds_its_gpus_taken_waits_and_is_told_how_many_are_free() -> None:
    held = [Holding(gpus=(0, 1)), Holding(gpus=(3,))]
    with pytest.raises(StartPending, match=r"requests 2 GPUs\. This host has 4, 1 of them free\."):
        give(spec(2), FOUR, held)
    assert give(spec(1), FOUR, held).gpus == (2,)


def test_an_instance_type_gets_at_most_the_gpus_of_the_host_and_a_component_what_it_requires() -> None:
    assert give(spec(8), FOUR, []).gpus == (0, 1, 2, 3)
    with pytest.raises(InsufficientCapacity, match=r"requests 8 GPUs; this host has 4\."):
        give(spec(8, is_at_most=False), FOUR, [])
    assert give(spec(8, is_at_most=False), NONE, []).gpus == (), "it runs on the CPU"


@given(wanted=st.integers(1, 64), num_cores=st.integers(1, 64), held=st.lists(st.integers(1, 64), max_size=8))
def test_a_share_of_cores_is_within_the_request_and_at_least_an_equal_one(
    wanted: int, num_cores: int, held: list[int]
) -> None:
    share = share_of_cores(wanted, num_cores=num_cores, held=held)
    assert 1 <= share <= wanted
    assert share >= min(wanted, max(1, num_cores // (len(held) + 1)))
    assert share_of_cores(wanted, num_cores=num_cores, held=[]) == max(1, min(wanted, num_cores))


@given(wanted=st.lists(st.integers(1, 64), min_size=1, max_size=12), num_cores=st.integers(1, 64))
def test_workers_that_fit_get_what_they_want(wanted: list[int], num_cores: int) -> None:
    held: list[int] = []
    for cores in wanted:
        held.append(share_of_cores(cores, num_cores=num_cores, held=held))
    if sum(wanted) <= num_cores:
        assert held == wanted


def test_two_workers_do_not_each_take_all_cores() -> None:
    first = give(spec(threads=None), NONE, [])
    second = give(spec(threads=None), NONE, [Holding(num_cores=first.num_cores)])
    assert (first.num_cores, second.num_cores) == (8, 4)


def test_the_new_revision_of_a_fleet_gets_the_cores_of_the_old_one_which_leaves() -> None:
    old = Holding(num_cores=8, group="e/v", revision=1)
    assert give(spec(threads=8, group="e/v", revision=2), NONE, [old]).num_cores == 8
    assert give(spec(threads=8, group="e/v", revision=1), NONE, [old]).num_cores == 4
    assert give(spec(threads=8, group="other/v", revision=2), NONE, [old]).num_cores == 4


def test_required_cores_are_given_even_if_others_hold_some() -> None:
    limited = spec(threads=6, limits=Limits(num_cpus=5.5))
    assert give(limited, NONE, [Holding(num_cores=8)]).num_cores == 6


def test_the_environment_shows_a_worker_its_own_gpus() -> None:
    assert gpu_environment(Given(gpus=(1, 3)), FOUR) == {
        "CUDA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert gpu_environment(Given(), FOUR)["CUDA_VISIBLE_DEVICES"] == ""
    assert gpu_environment(Given(), NONE) == {}


@pytest.mark.parametrize(
    ("given_to_it", "chosen", "visible"),
    [
        ("2,3", "1", "3"),
        ("2,3", "1,0", "3,2"),
        ("2,3", "0,2,1", "2"),
        ("2,3", "0,0", "2"),
        ("2,3", "", ""),
        ("2,3", "GPU-1", ""),
        ("", "0", ""),
    ],
)
def test_a_container_chooses_among_the_gpus_given_to_it(given_to_it: str, chosen: str, visible: str) -> None:
    assert chosen_of_given(given_to_it, chosen) == visible


@given(st.lists(st.integers(0, 9), unique=True), st.text(alphabet="0123456789, -GPU"))
def test_no_value_shows_a_container_a_gpu_of_another(gpus: list[int], chosen: str) -> None:
    visible = chosen_of_given(",".join(map(str, gpus)), chosen)
    assert {entry for entry in visible.split(",") if entry} <= {str(index) for index in gpus}
