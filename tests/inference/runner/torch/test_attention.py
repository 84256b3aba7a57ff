import numpy as np
import pytest
import torch

from headrace.inference.runner.torch import attention
from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import to_device
from tests.inference.runner.steps import make_step
from tests.inference.runner.torch.cases import AttentionCase

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
MIXED = [(0, 9), (13, 1), (5, 6), (0, 1), (40, 1)]

VARIANTS = {
    "plain": {},
    "window": {"windows": (6,)},
    "softcap": {"attention_softcap": 5.0, "attention_scale": 0.5},
    "sinks": {"sinks": True},
    "encoder": {"is_causal": False},
    "local encoder": {"is_causal": False, "windows": (4,)},
    "multi-query": {"num_heads": 6, "num_kv_heads": 1},
    "every head its own": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 24},
    "all at once": {"windows": (7,), "sinks": True, "attention_softcap": 3.0},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_plain_attention_agrees_with_the_reference_runner(changes):
    case = AttentionCase(*MIXED, **changes)
    found = attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    np.testing.assert_allclose(found, case.expected(), **CLOSE)


def test_a_long_prompt_is_attended_in_parts(monkeypatch):
    case = AttentionCase((3, 21), (0, 2), windows=(9,))
    whole = attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    monkeypatch.setattr(attention, "MAX_SCORES", 4 * 24 * 5)
    parts = attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    np.testing.assert_allclose(parts, whole, **CLOSE)


def test_values_may_be_of_another_size_than_keys():
    case = AttentionCase(*MIXED, value_dim=10)
    keys, values = case.cache.layer(0)
    found = attend(case.query, keys, values, case.batch, **case.options)
    assert found.shape == (18, 4, 10)
    padded = torch.nn.functional.pad(values, (0, 6))
    expected = attend(case.query, keys, padded, case.batch, **case.options)[..., :10]
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_a_row_does_not_depend_on_its_neighbours_in_the_batch():
    case = AttentionCase(*MIXED)
    together = attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    for index, (old, new) in enumerate(MIXED):
        start, stop = case.step.query_starts[index : index + 2]
        step = make_step(([1] * new, old, case.blocks[index]))
        alone = to_device(step, block_tokens=case.block_tokens, device="cpu")
        result = attend(case.query[start:stop], *case.cache.layer(0), alone, **case.options)
        np.testing.assert_array_equal(result, together[start:stop])


def test_half_precision_is_attended_in_float32():
    case = AttentionCase(*MIXED, dtype=torch.bfloat16)
    found = attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    assert found.dtype == torch.bfloat16
    np.testing.assert_allclose(found.float(), case.expected(), rtol=1e-2, atol=1e-3)
