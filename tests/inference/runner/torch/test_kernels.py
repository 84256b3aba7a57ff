"""
Triton kernels in Triton's interpreter, against plain torch: their indices, masks, pages and order.

That they compile is tested in `test_kernel_compilation`, that they are right on a GPU in `test_kernels_on_gpu`.
"""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.inference.models.experts import MoeSpec
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.sampling import sample_rows
from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import interpreted, to_device
from headrace.inference.runner.torch.fused import add_rms_norm, rms_norm, rotate_and_store, silu_mul
from headrace.inference.runner.torch.matmul import grouped_linear, linear, quantize_fp8, quantize_int4, quantize_int8
from headrace.inference.runner.torch.sampling import sample_on_device
from tests.inference.runner.adapters import random_adapter
from tests.inference.runner.native_models import LIMITS, SPECS, relative_error, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.test_sampling import step_of
from tests.inference.runner.torch.cases import AttentionCase
from tests.inference.runner.torch.runners import load
from tests.inference.runner.torch.test_attention import VARIANTS
from tests.inference.runner.torch.test_fused import normal, rope_tables
from tests.inference.runner.weights import random_weights

pytest.importorskip("triton")

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _interpreter():
    with interpreted():
        yield


@pytest.fixture
def dots_without_blas(monkeypatch):
    """
    Multiply tiles without BLAS, so that a row has the same bits at each position of a tile, as on a GPU.

    The interpreter calls `np.matmul`, and OpenBLAS's kernels for AVX2 sum the rows of a tile in different orders.
    """
    from triton.runtime import interpreter

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        product = np.einsum("ik,kj->ij", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def attended(case, batch=None, query=None, **options):
    return attend(
        case.query if query is None else query, *case.cache.layer(0), batch or case.batch, **(case.options | options)
    )


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_attention_agrees_with_the_reference_runner(changes):
    case = AttentionCase((0, 9), (13, 1), (5, 6), (0, 1), (40, 1), **changes)
    np.testing.assert_allclose(attended(case), case.expected(), **CLOSE)


def test_attention_over_blocks_of_32_tokens():
    case = AttentionCase((50, 3), (0, 33), (64, 1), block_tokens=32, sinks=True)
    np.testing.assert_allclose(attended(case), case.expected(), **CLOSE)


def test_values_may_be_of_another_size_than_keys():
    case = AttentionCase((5, 2), (0, 4), value_dim=10)
    with_padding = AttentionCase((5, 2), (0, 4))
    with_padding.query = case.query
    keys, values = with_padding.cache.layer(0)
    keys.copy_(case.cache.layer(0)[0])
    values.copy_(torch.nn.functional.pad(case.cache.layer(0)[1], (0, 6)))
    np.testing.assert_allclose(attended(case), with_padding.expected()[..., :10], **CLOSE)


@pytest.fixture
def short_segments(monkeypatch):
    """Segments of two tiles, so that a short context has several."""
    from headrace.inference.runner.torch.kernels import attention

    monkeypatch.setattr(attention, "SEGMENT_TOKENS", 64)
    return lambda is_split: monkeypatch.setattr(attention, "MIN_PROGRAMS", 10**6 if is_split else 0)


@pytest.mark.parametrize("changes", [{}, {"sinks": True}, {"windows": (70,)}], ids=["plain", "sinks", "window"])
def test_spreading_segments_over_programs_changes_no_bit(short_segments, changes):
    case = AttentionCase((200, 1), (130, 3), (9, 1), block_tokens=32, **changes)
    short_segments(False)
    whole = attended(case)
    short_segments(True)
    np.testing.assert_array_equal(attended(case), whole)
    np.testing.assert_allclose(whole, case.expected(), **CLOSE)


@pytest.mark.usefixtures("dots_without_blas")
def test_a_row_has_the_same_bits_in_any_batch_and_any_division_into_chunks(short_segments):
    short_segments(False)
    case = AttentionCase((90, 12), (0, 7), (150, 1), block_tokens=32, windows=(80,))
    together = attended(case)
    for old, new in ((90, 5), (95, 7), (101, 1)):
        step = make_step(([1] * new, old, case.blocks[0]))
        alone = to_device(step, block_tokens=32, device="cpu")
        rows = slice(old - 90, old - 90 + new)
        np.testing.assert_array_equal(attended(case, alone, case.query[rows]), together[rows])


def test_padded_sequences_and_tokens_are_harmless():
    case = AttentionCase((5, 1), (9, 1))
    batch = dataclasses.replace(
        case.batch,
        query_starts=torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32),
        context_lens=torch.tensor([5, 9, 0, 0], dtype=torch.int32),
        block_tables=torch.nn.functional.pad(case.batch.block_tables, (0, 0, 0, 2)),
        positions=torch.nn.functional.pad(case.batch.positions, (0, 2)),
    )
    query = torch.nn.functional.pad(case.query, (0, 0, 0, 0, 0, 2))
    np.testing.assert_array_equal(attended(case, batch, query)[:2], attended(case))


def test_keys_and_values_are_stored():
    case = AttentionCase((0, 3), (6, 2))
    slots = case.batch.slots.clone()
    slots[1] = -1
    keys, values = normal(5, 2, 16), normal(5, 2, 16, seed=1)
    expected = [part.clone().flatten(0, 1) for part in case.cache.layer(0)]
    for part, new in zip(expected, (keys, values), strict=True):
        part[slots[slots >= 0].long()] = new[slots >= 0]
    case.cache.store(keys, values, 0, slots)
    for part, found in zip(expected, case.cache.layer(0), strict=True):
        np.testing.assert_array_equal(found.flatten(0, 1), part)


def test_norms_are_those_of_plain_torch():
    wide, weight, residual = normal(3, 200), normal(48, seed=1), normal(3, 48, seed=2)
    x = wide[:, 20:68]
    found = (rms_norm(x, weight, 1e-5), *add_rms_norm(x, residual, weight, 1e-5))
    heads = rms_norm(wide[:, :96].unflatten(1, (2, 48)), weight, 1e-5)
    with interpreted(False):
        expected = (rms_norm(x, weight, 1e-5), *add_rms_norm(x, residual, weight, 1e-5))
        expected_heads = rms_norm(wide[:, :96].unflatten(1, (2, 48)), weight, 1e-5)
    for result, reference in zip((*found, heads), (*expected, expected_heads), strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6)


def test_rotation_and_store_are_those_of_plain_torch():
    qkv = normal(5, 8 * 16, seed=3).unflatten(1, (8, 16))
    parts = qkv.split([4, 2, 2], 1)
    cos, sin = rope_tables(16, rotary_dim=8)
    case, other = AttentionCase((0, 3), (6, 2)), AttentionCase((0, 3), (6, 2))
    found = rotate_and_store(*parts, cos, sin, case.batch, *case.cache.layer(0))
    with interpreted(False):
        expected = rotate_and_store(*parts, cos, sin, other.batch, *other.cache.layer(0))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for part, reference in zip(case.cache.layer(0), other.cache.layer(0), strict=True):
        np.testing.assert_allclose(part, reference, rtol=1e-6, atol=1e-6)


def test_the_gate_is_activated():
    gate_up = normal(3, 40) * 10
    with interpreted(False):
        expected = silu_mul(gate_up)
    np.testing.assert_allclose(silu_mul(gate_up), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_tokens", [1, 20])
@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize(
    "quantize", [quantize_fp8, quantize_int8, quantize_int4], ids=lambda function: function.__name__
)
def test_products_are_those_of_plain_torch(quantize, num_tokens, is_invariant):
    x, weight = normal(num_tokens, 96), quantize(normal(40, 96, seed=1))
    found = linear(x, weight, torch.ones(40), is_invariant=is_invariant)
    with interpreted(False):
        expected = linear(x, weight, torch.ones(40))
    # The interpreter truncates where float8 is rounded: an input may be off by a part in 8.
    error = (found - expected).norm() / expected.norm()
    assert error < (0.1 if quantize is quantize_fp8 else 1e-5)


@pytest.mark.parametrize("num_tokens", [3, 90])
@pytest.mark.parametrize("quantize", [torch.clone, quantize_int8, quantize_int4], ids=["float", "int8", "int4"])
def test_each_group_of_tokens_is_multiplied_by_its_own_matrix(quantize, num_tokens):
    x, weight = normal(num_tokens, 96), quantize(normal(4 * 40, 96, seed=1))
    starts = torch.tensor([0, 1, 1, num_tokens - 1, num_tokens], dtype=torch.int32)
    found = grouped_linear(x, weight, starts)
    with interpreted(False):
        expected = grouped_linear(x, weight, starts)
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_symmetric_int4_has_no_minima():
    x, weight = normal(3, 64), quantize_int4(normal(8, 64, seed=1))
    weight = dataclasses.replace(weight, minima=None)
    found = linear(x, weight)
    with interpreted(False):
        np.testing.assert_allclose(found, linear(x, weight), rtol=1e-4, atol=1e-4)


def test_an_invariant_product_of_a_row_has_the_same_bits_in_any_batch():
    x, weight = normal(70, 96), normal(40, 96, seed=1)
    together = linear(x, weight, is_invariant=True)
    np.testing.assert_allclose(together, x @ weight.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(linear(x[66:67], weight, is_invariant=True)[0], together[66])


@settings(max_examples=25)
@given(
    st.sampled_from([1, 31, 2048, 5000]),
    st.sampled_from([0.1, 0.7, 1.0, 1.5, 1e35]),
    st.integers(0, 2**64 - 1),
    st.sampled_from([0.1, 1.0, 30.0]),
)
def test_a_token_is_drawn_like_by_numpy(vocab, temperature, seed, spread):
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((3, vocab)) * spread).astype(np.float32)
    logits[0, rng.random(vocab) < 0.5] = -np.inf
    logits[:, 0] = 0
    step = step_of([{"temperature": temperature, "seed": seed, "position": row} for row in range(3)])
    found = sample_on_device(torch.from_numpy(logits), step)
    np.testing.assert_array_equal(found.token_ids, sample_rows(logits, step).token_ids)


@pytest.mark.parametrize("name", ["llama", "gemma 3", "experts with biases and clamped gates, attention sinks"])
def test_a_network_gives_the_logits_of_the_reference(name):
    spec, weights = SPECS[name], random_weights(SPECS[name])
    runner, reference = load(spec, weights), ReferenceRunner(spec, weights, LIMITS)
    step = make_step(([5, 7, 3, 9], 0, [4]), ([8], 2, [6]), ([2, 6], 4, [8]))  # caches without earlier tokens are zeros
    assert relative_error(runner.logits(step), reference.logits(step)) < 1e-5


EXPERTS = MoeSpec(num_experts=3, top_k=2, expert_size=32, renormalize=True)


@pytest.mark.usefixtures("dots_without_blas")
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [("w4a16", {}), ("fp32", {"moe": EXPERTS, "qk_norm": "full", "norms": "post"})],
    ids=["int4", "experts"],
)
def test_a_batch_invariant_network_gives_a_row_the_same_bits_alone_and_in_company(dtype, changes):
    shape = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "head_dim": 16}
    spec = small_spec(**(shape | {"vocab_size": 40} | changes))
    limits = dataclasses.replace(LIMITS, max_adapters=1, max_adapter_rank=8)
    runner = load(spec, random_weights(spec), dtype, limits=limits, is_batch_invariant=True)
    runner.load_adapter(0, random_adapter(spec, parts=("q", "down")))

    def logits(*pieces):
        return runner.logits(dataclasses.replace(make_step(*pieces), adapters=np.zeros(len(pieces), np.int32)))

    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, 35).tolist()
    prompt, answer = (tokens[:34], 0, [0, 1]), (tokens[34:], 34, [0, 1])
    alone = logits(prompt), logits(answer)
    together = logits((tokens[:2], 0, [2]), answer, (tokens[:34], 0, [3, 4]), (tokens[:7], 0, [5]))
    np.testing.assert_array_equal(together[2], alone[0][0])
    np.testing.assert_array_equal(together[1], alone[1][0])
