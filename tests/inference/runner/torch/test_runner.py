"""The torch runner computes what the reference computes: networks of every kind, formats, adapters, pooling."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.core.errors import BrokenModel, EngineFailed, InsufficientMemory, SettingsError
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.torch.rank import estimate_sizes
from headrace.inference.runner.torch.runner import load_torch_runner
from tests.inference.runner.adapters import random_adapter
from tests.inference.runner.native_models import (
    LIMITS,
    SPECS,
    WIDE,
    WITHOUT_TORCH,
    BlockWeights,
    relative_error,
    small_spec,
)
from tests.inference.runner.steps import make_step
from tests.inference.runner.test_hidden_rows import ENCODERS, pooled_step
from tests.inference.runner.torch.runners import load, plan_of
from tests.inference.runner.weights import ArrayWeights, random_weights

TABLES = [[0, 9, 2, 3, 4], [5, 6], [7, 8]]
TOLERANCES = {"fp32": 1e-5, "bf16": 0.05, "fp16": 0.01, "fp8": 0.15, "w8a8": 0.06, "w4a16": 0.35}
"""Relative error of the logits of random weights, which lose much in 8 and 4 bits."""


def mixed_steps(spec):
    """Yield steps whose sequences are prompts, later chunks and single tokens."""
    rng = np.random.default_rng(0)
    first, second, third = (rng.integers(0, spec.vocab_size, length).tolist() for length in (150, 33, 40))
    yield make_step((first[:100], 0, TABLES[0]), (second[:32], 0, TABLES[1]), all_rows=True)
    yield make_step(
        (second[32:], 32, TABLES[1]), (first[100:149], 100, TABLES[0]), (third, 0, TABLES[2]), all_rows=True
    )
    yield make_step((first[149:], 149, TABLES[0]), (third[-1:], 40, TABLES[2]), all_rows=True)


def errors(runner, reference, spec):
    return [relative_error(runner.logits(step), reference.logits(step)) for step in mixed_steps(spec)]


@pytest.mark.parametrize("name", sorted(set(SPECS) - WITHOUT_TORCH))
def test_logits_are_those_of_the_reference(name):
    spec, weights = SPECS[name], random_weights(SPECS[name])
    assert max(errors(load(spec, weights), ReferenceRunner(spec, weights, LIMITS), spec)) < TOLERANCES["fp32"]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_format_stays_close_to_the_reference(dtype):
    spec = small_spec(norms="both", qkv_bias=True, embedding_scale=3.0)
    weights = random_weights(spec)
    assert max(errors(load(spec, weights, dtype), ReferenceRunner(spec, weights, LIMITS), spec)) < TOLERANCES[dtype]


@pytest.mark.parametrize("encoding", [Encoding.Q4_0, Encoding.Q4_1, Encoding.TERNARY])
def test_int4_weights_of_a_file_are_not_rounded_again(encoding):
    spec = replace(WIDE if encoding is Encoding.TERNARY else small_spec(), tie_embeddings=False)
    weights = BlockWeights(random_weights(spec).arrays, encoding)
    assert max(errors(load(spec, weights, "w4a16"), ReferenceRunner(spec, weights, LIMITS), spec)) < 0.02


@pytest.mark.parametrize("encoding", [Encoding.Q8_0, Encoding.FP4, Encoding.I8, Encoding.Q3_K])
def test_blocks_of_other_formats_are_decoded(encoding):
    spec = WIDE if encoding is Encoding.Q3_K else small_spec()
    weights = BlockWeights(random_weights(spec).arrays, encoding)
    reference = ReferenceRunner(spec, weights, LIMITS)
    assert max(errors(load(spec, weights), reference, spec)) < TOLERANCES["fp32"]
    assert max(errors(load(spec, weights, "w8a8"), reference, spec)) < TOLERANCES["w8a8"]


@pytest.mark.parametrize("name", ENCODERS)
def test_tokens_of_an_encoder_attend_to_both_sides_of_them(name):
    spec, weights = ENCODERS[name], random_weights(ENCODERS[name])
    step = pooled_step([], [0, 1, 31, 32, 33, 100, 199, 200, 232, 233, 349])
    if spec.token_types > 1:
        step = replace(step, token_types=np.arange(350, dtype=np.int32) % 2)
    expected = ReferenceRunner(spec, weights, LIMITS).execute(step).hidden
    np.testing.assert_allclose(load(spec, weights).execute(step).hidden, expected, rtol=1e-3, atol=1e-4)


def test_adapters_of_several_slots_change_their_own_sequences():
    spec = SPECS["eight heads a group, biases, own LM head"]
    limits = replace(LIMITS, max_adapters=2, max_adapter_rank=24)
    weights = random_weights(spec)
    runner, reference = load(spec, weights, limits=limits), ReferenceRunner(spec, weights, limits)
    for slot, ranks in enumerate([(8,), (3, 16, 24)]):
        adapter = random_adapter(spec, seed=slot, ranks=ranks)
        runner.load_adapter(slot, adapter)
        reference.load_adapter(slot, adapter)
    step, *_ = mixed_steps(spec)
    adapted = replace(step, adapters=np.array([1, 0], np.int32))
    partly = replace(step, adapters=np.array([-1, 1], np.int32))
    for taken in (adapted, partly):
        assert relative_error(runner.logits(taken), reference.logits(taken)) < TOLERANCES["fp32"]
    assert relative_error(runner.logits(adapted), runner.logits(step)) > 0.1


def test_sampled_tokens_and_hidden_states_are_those_of_the_reference():
    spec, weights = SPECS["llama"], random_weights(SPECS["llama"])
    sampling = [{"temperature": 0.9, "seed": 3, "position": 200, "num_top": 2}, {"num_top": 1}]
    step = pooled_step([199, 349], [0, 198], stop=350)
    step = replace(step, sampling=make_step(([1, 2], 0, [0]), all_rows=True, sampling=sampling).sampling)
    actual, expected = (kind.execute(step) for kind in (load(spec, weights), ReferenceRunner(spec, weights, LIMITS)))
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
    np.testing.assert_allclose(actual.logprobs, expected.logprobs, atol=1e-4)
    np.testing.assert_allclose(actual.hidden, expected.hidden, rtol=1e-3, atol=1e-4)


def test_a_step_that_breaks_the_limits_fails_and_the_next_one_runs():
    spec = SPECS["llama"]
    runner = load(spec, random_weights(spec))
    good = make_step(([1, 2, 3], 0, [0]))
    with pytest.raises(EngineFailed, match="a token id lies outside the vocabulary"):
        runner.execute(replace(good, token_ids=np.array([1, 2, 333], np.int32)))
    assert runner.execute(good).token_ids.shape == (1,)
    runner.close()
    runner.close()
    with pytest.raises(EngineFailed, match="closed"):
        runner.execute(good)


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read():
    spec = small_spec()
    plan = replace(plan_of(), budget=MemoryBudget(available_bytes=1 << 20))
    with pytest.raises(InsufficientMemory, match="fp8 or w4a16"):
        load_torch_runner(spec, ArrayWeights({}), plan)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_memory_plan_counts_the_head_that_a_cpu_has_in_float32(is_tied):
    spec = small_spec(tie_embeddings=is_tied)
    on_cpu, on_cuda = (estimate_sizes(spec, replace(plan_of("bf16"), device=device)) for device in ("cpu", "cuda"))
    head = load(spec, random_weights(spec), "bf16")._rank._network._lm_head._weight
    assert head.dtype is torch.float32
    stored_bytes = 0 if is_tied else 2 * head.numel()
    assert on_cpu.weights_bytes - on_cuda.weights_bytes == head.nbytes - stored_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(SettingsError, match=r"device is cuda, but torch .* sees 0 GPUs; expected at least 1"):
        load_torch_runner(small_spec(), ArrayWeights({}), replace(plan_of(), device="cuda"))


def test_int4_needs_inputs_in_blocks():
    spec = small_spec(hidden_size=100)
    with pytest.raises(BrokenModel, match="32"):
        load(spec, random_weights(spec), "w4a16")


def test_progress_ends_at_the_total():
    spec, reports = SPECS["experts, one layer dense"], []
    load_torch_runner(
        spec, random_weights(spec), plan_of(), progress=lambda task, done, total, unit="": reports.append((done, total))
    )
    assert reports[0][0] == 0
    assert reports[-1][0] == reports[-1][1]
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
