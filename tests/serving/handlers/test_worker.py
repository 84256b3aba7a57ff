"""The pure decisions of the pool: batches, restarts, and the GPUs of children."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.spec import ContractName, HandlerSpec, RestartPolicy
from headrace.serving.handlers.worker import Failures, Wait, least_used, next_batch, on_gpu
from headrace_handler.contract import Load


def spec(contract: ContractName, *, device: int | None = 0, num_gpus: int = 3, visible: str = "") -> HandlerSpec:
    load = Load(model_name="m", model_dir=Path(), entry="", device=device)
    environment = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    return HandlerSpec(contract=contract, load=load, num_gpus=num_gpus, environment=environment)


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=30))
def test_a_child_takes_a_gpu_that_fewest_use_also_after_some_have_ended(num_gpus: int, starts: list[bool]) -> None:
    taken: list[int] = []
    for is_start in starts:
        if is_start:
            gpu = least_used(taken, num_gpus)
            assert all(taken.count(gpu) <= taken.count(other) for other in range(num_gpus))
            taken.append(gpu)
        elif taken:
            taken.pop(0)


@given(st.integers(1, 8), st.integers(0, 30))
def test_children_are_spread_evenly(num_gpus: int, num_children: int) -> None:
    taken: list[int] = []
    for _ in range(num_children):
        taken.append(least_used(taken, num_gpus))
    counts = [taken.count(gpu) for gpu in range(num_gpus)]
    assert max(counts) - min(counts) <= 1


def test_without_gpus_there_is_no_choice() -> None:
    assert least_used([0, 0], 0) == 0


@pytest.mark.parametrize("contract", ["torchserve", "djl"])
def test_code_that_is_told_its_gpu_sees_all(contract: ContractName) -> None:
    made = spec(contract, visible="4,5,6")
    assert on_gpu(made, 2) == replace(made, load=replace(made.load, device=2))


def test_code_of_the_toolkits_sees_its_own_gpu_only() -> None:
    assert on_gpu(spec("sagemaker"), 2) == spec("sagemaker", visible="2")
    assert on_gpu(spec("sagemaker", visible="4, GPU-5e,6"), 1) == spec("sagemaker", visible="GPU-5e")


def test_code_on_the_cpu_or_on_the_only_gpu_is_left_alone() -> None:
    for made in (spec("sagemaker", device=None), spec("djl", num_gpus=1)):
        assert on_gpu(made, 0) is made


TIMES = st.floats(0, 1e6)


@given(st.integers(1, 100), TIMES, st.integers(1, 32), TIMES, st.booleans())
def test_a_batch_has_items_and_never_more_than_its_size_or_than_there_are(
    num_alike: int, waited_s: float, batch_size: int, max_delay_s: float, is_closed: bool
) -> None:
    decision = next_batch(num_alike, waited_s, batch_size=batch_size, max_delay_s=max_delay_s, is_closed=is_closed)
    if isinstance(decision, int):
        assert 1 <= decision <= min(num_alike, batch_size)
    else:
        assert 0 < decision.delay_s <= max_delay_s
        assert num_alike < batch_size
        assert not is_closed


def test_a_full_batch_starts_at_once_and_a_part_of_one_after_the_delay_of_its_first_item() -> None:
    assert next_batch(4, 0.0, batch_size=4, max_delay_s=1.0, is_closed=False) == 4
    assert next_batch(9, 0.0, batch_size=4, max_delay_s=1.0, is_closed=False) == 4
    assert next_batch(3, 0.25, batch_size=4, max_delay_s=1.0, is_closed=False) == Wait(0.75)
    assert next_batch(3, 1.0, batch_size=4, max_delay_s=1.0, is_closed=False) == 3
    assert next_batch(3, 0.0, batch_size=4, max_delay_s=1.0, is_closed=True) == 3


def test_the_delays_of_restarts_grow_to_their_limit() -> None:
    failures, delays = Failures(), []
    for second in range(10):
        failures = failures.add(float(second))
        delays.append(failures.restart_delay_s())
    assert delays == [0, 1, 1, 2, 3, 5, 8, 13, 13, 13]
    assert failures == Failures(10, 0.0)


def test_a_model_is_given_up_by_the_number_of_failures_or_by_their_time() -> None:
    failed_once = Failures().add(100.0)
    assert not failed_once.gives_up(RestartPolicy(), 1e9)
    assert failed_once.gives_up(RestartPolicy(max_failures=0), 100.0)
    assert not failed_once.gives_up(RestartPolicy(max_failures=1), 1e9)
    assert failed_once.add(101.0).gives_up(RestartPolicy(max_failures=1), 101.0)
    assert not failed_once.gives_up(RestartPolicy(max_retry_s=300), 399.0)
    assert failed_once.gives_up(RestartPolicy(max_retry_s=300), 400.0)
