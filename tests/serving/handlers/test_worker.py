"""The GPUs of children."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.spec import ContractName, HandlerSpec
from headrace.serving.handlers.worker import least_used, on_gpu
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
