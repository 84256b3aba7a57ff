"""The sampler in eager torch, which GPUs use, against the numpy definition; CPU tensors stand in for the GPU's."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.inference.runner.sampling import masses, sample_rows
from headrace.inference.runner.step import Bias
from headrace.inference.runner.torch import sampling as torch_sampling
from headrace.inference.runner.torch.sampling import multiply_high, sample, sample_on_device
from tests.inference.runner.test_sampling import row_problems, step_of


def assert_same(found, expected):
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_array_equal(found.ranks, expected.ranks)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.top_logprobs, expected.top_logprobs, rtol=1e-6, atol=1e-6)
    for field in ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs"):
        assert getattr(found, field).dtype == getattr(expected, field).dtype


@settings(max_examples=200)
@given(row_problems())
def test_the_sampler_for_devices_gives_the_very_same_tokens_as_numpy(problem):
    logits, step = problem
    with np.errstate(invalid="ignore"):
        expected = sample_rows(logits, step)
    assert_same(sample_on_device(torch.from_numpy(logits), step), expected)


@settings(max_examples=30)
@given(row_problems())
def test_logits_on_the_cpu_are_sampled_natively(problem):
    logits, step = problem
    with np.errstate(invalid="ignore"):
        expected = sample_rows(logits, step)
    assert_same(sample(torch.from_numpy(logits), step), expected)


def test_masses_have_the_bits_of_the_definition():
    exponents = -np.abs(np.random.default_rng(3).standard_normal(200_000).astype(np.float32)) * np.float32(20)
    exponents[:4] = [0, -0.0, -60, -np.inf]
    found = torch_sampling.masses(torch.from_numpy(exponents))
    np.testing.assert_array_equal(found.numpy().astype(np.uint64), masses(exponents))


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**62 - 1))
def test_the_upper_half_of_a_product_is_exact(bits, total):
    signed = torch.tensor([bits - 2**64 if bits >= 2**63 else bits])
    assert multiply_high(signed, torch.tensor([total])).item() == bits * total >> 64


def test_many_rows_are_sampled_in_parts():
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((150, 40)).astype(np.float32)
    fields = [
        {"temperature": float(row % 3), "seed": row, "num_top": row % 4 - 1, "top_k": row % 5} for row in range(150)
    ]
    step = step_of(fields)
    assert_same(sample_on_device(torch.from_numpy(logits), step), sample_rows(logits, step))


def test_a_step_without_logit_rows_samples_nothing():
    output = sample_on_device(torch.empty(0, 7), step_of([]))
    assert output.token_ids.shape == (0,)
    assert output.top_ids.shape == (0, 0)


def test_a_bias_that_names_a_token_twice_adds_both():
    logits = np.zeros((1, 8), np.float32)
    bias = Bias(0, np.array([5, 2, 5], np.int32), np.array([1, 1.5, 1], np.float32))
    step = step_of([{}], biases=(bias,))
    assert sample_on_device(torch.from_numpy(logits), step).token_ids.tolist() == [5]
