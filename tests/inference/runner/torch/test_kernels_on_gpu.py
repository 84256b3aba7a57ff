"""Kernels that run on a GPU: `TRITON_INTERPRET=0 scripts/test --all -m gpu`. Speed is measured by `benchmarks/gpu`."""

import os

import numpy as np
import pytest
import torch

from headrace.inference.runner.sampling import sample_rows
from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import to_device
from headrace.inference.runner.torch.matmul import grouped_linear, linear, quantize_fp8, quantize_int4, quantize_int8
from headrace.inference.runner.torch.sampling import masses, sample_on_device
from tests.inference.runner.steps import make_step
from tests.inference.runner.test_sampling import step_of
from tests.inference.runner.torch.cases import AttentionCase
from tests.inference.runner.torch.test_attention import VARIANTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "0",
        reason="needs a GPU, and TRITON_INTERPRET=0 in the environment",
    ),
]

SHAPE = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_tokens": 32}


def attended(case, step, query):
    """Attend on the GPU with the cache of a case."""
    options = case.options | {"sinks": None if case.sinks is None else case.sinks.cuda()}
    batch = to_device(step, block_tokens=case.block_tokens, device="cuda")
    return attend(query.cuda(), *(part.cuda() for part in case.cache.layer(0)), batch, **options).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_attention_agrees_with_the_reference_runner(changes, dtype):
    case = AttentionCase((0, 9), (1300, 1), (5, 6), (600, 40), dtype=dtype, **({"block_tokens": 32} | changes))
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    np.testing.assert_allclose(attended(case, case.step, case.query).float(), case.expected(), **close)


@pytest.mark.parametrize("changes", [{}, {"sinks": True}, {"windows": (700,)}], ids=["plain", "sinks", "window"])
def test_attention_of_a_row_has_the_same_bits_in_batches_of_1_to_64_and_in_any_chunk(changes):
    case = AttentionCase((2000, 1), *[(40 * index, 1) for index in range(63)], dtype=torch.bfloat16, **SHAPE, **changes)
    alone = attended(case, make_step(([1], 2000, case.blocks[0])), case.query[:1])
    for size in (2, 3, 8, 17, 33, 64):
        pieces = [([1], int(case.step.context_lens[index]), case.blocks[index]) for index in range(size)]
        together = attended(case, make_step(*pieces), case.query[:size])
        np.testing.assert_array_equal(together[0].view(torch.int16), alone[0].view(torch.int16))
    chunk = attended(case, make_step(([1] * 64, 1937, case.blocks[0])), case.query.flip(0))
    np.testing.assert_array_equal(chunk[-1].view(torch.int16), alone[0].view(torch.int16))


@pytest.mark.parametrize("quantize", [None, quantize_int8, quantize_int4, quantize_fp8])
def test_an_invariant_product_of_a_row_has_the_same_bits_among_1_to_64_rows(quantize):
    if quantize is quantize_fp8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 needs compute capability 8.9")
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(300, 4096, generator=generator, device="cuda").bfloat16()
    matrix = torch.randn(1024, 4096, generator=generator, device="cuda").bfloat16()
    weight = matrix if quantize is None else quantize(matrix)
    is_invariant = quantize is not quantize_int8
    alone = linear(x[:1], weight, is_invariant=is_invariant)
    for size in (*range(2, 65), 300):
        assert torch.equal(linear(x[:size], weight, is_invariant=is_invariant)[0], alone[0])
    exact = x.float() @ matrix.float().T
    for rows in (x[:1], x):
        found = linear(rows, weight).float()
        assert (found - exact[: len(rows)]).norm() / exact[: len(rows)].norm() < 0.15


def test_groups_of_tokens_are_multiplied_without_waiting_for_the_device():
    x, matrices = torch.randn(90, 512, device="cuda"), torch.randn(4 * 256, 512, device="cuda")
    starts = torch.tensor([0, 1, 1, 60, 90], dtype=torch.int32, device="cuda")
    grouped_linear(x, matrices, starts)  # compiles, which may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = grouped_linear(x, matrices, starts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for group, (start, stop) in enumerate(((0, 1), (1, 1), (1, 60), (60, 90))):
        expected = x[start:stop].double() @ matrices[group * 256 : (group + 1) * 256].double().T
        assert torch.allclose(found[start:stop].double(), expected, rtol=1e-3, atol=1e-3)


def test_masses_have_the_same_bits_as_on_a_cpu():
    exponents = -torch.rand(1_000_000, generator=torch.Generator().manual_seed(1)) * 60
    assert torch.equal(masses(exponents.cuda()).cpu(), masses(exponents))


def test_tokens_are_drawn_like_by_numpy():
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((48, 128256)) * 3).astype(np.float32)
    kinds = (
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
        {"temperature": 2, "min_p": 0.01},
    )
    fields = [{**kinds[row % 4], "seed": row, "position": row * 7, "num_top": row % 3 - 1} for row in range(48)]
    step = step_of(fields)
    found, expected = sample_on_device(torch.from_numpy(logits).cuda(), step), sample_rows(logits, step)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=1e-5)
