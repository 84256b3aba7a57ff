import dataclasses

import numpy as np
import pytest

from headrace.inference.models.decoding import decode
from headrace.inference.models.spec import ModelSpec, RopeSpec
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.reference_activations import silu
from headrace.inference.runner.step import RunnerLimits
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

SPEC = ModelSpec(
    family="test",
    num_layers=2,
    hidden_size=32,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    max_positions=128,
    norm_eps=1e-5,
)
LIMITS = RunnerLimits(
    num_blocks=16,
    block_tokens=4,
    max_step_tokens=64,
    max_step_sequences=8,
    max_step_rows=64,
    max_context_tokens=64,
)
PROMPT = [7, 3, 49, 0, 12, 12, 5, 21, 8]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def runner_of(**changes):
    spec = dataclasses.replace(SPEC, **changes)
    return ReferenceRunner(spec, random_weights(spec), LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"windows": (3, 0), "ropes": (RopeSpec(), RopeSpec(theta=100.0)), "rope_of_layer": (1, 0)},
        {"qkv_bias": True, "o_bias": True, "tie_embeddings": True},
        {"qk_norm": "head", "norms": "both", "activation": "gelu_tanh", "embedding_scale": 32**0.5},
    ],
)
def test_logits_do_not_depend_on_chunks_blocks_or_neighbours(changes):
    whole = runner_of(**changes).logits(make_step((PROMPT, 0, [0, 1, 2]), all_rows=True))
    runner = runner_of(**changes)
    runner.logits(make_step((PROMPT[:2], 0, [9]), ([1, 2, 3], 0, [3])))
    middle = runner.logits(make_step(([4], 3, [3]), (PROMPT[2:7], 2, [9, 4]), all_rows=True))[1:]
    end = runner.logits(make_step((PROMPT[7:], 7, [9, 4, 15]), all_rows=True))
    np.testing.assert_allclose(np.concatenate([middle, end]), whole[2:], **CLOSE)


def test_a_window_hides_what_lies_before_it():
    runner = runner_of(num_layers=1, windows=(3,))
    first = runner.logits(make_step((PROMPT, 0, [0, 1, 2])))
    other = runner.logits(make_step(([1, 1, 1, 1, 1, 1, *PROMPT[6:]], 0, [0, 1, 2])))
    seen = runner.logits(make_step(([1, 1, 1, 1, 1, 1, 1, *PROMPT[7:]], 0, [0, 1, 2])))
    np.testing.assert_array_equal(first, other)
    assert not np.allclose(first, seen)


def test_positions_are_relative_to_each_other_only():
    """Rotary positions: the scores of one query do not change when the whole sequence moves."""
    runner = runner_of(num_layers=1, windows=(len(PROMPT),))
    plain = runner.logits(make_step((PROMPT, 0, [0, 1, 2])))
    moved = runner.logits(make_step(([30] * 11 + PROMPT, 0, [3, 4, 5, 6, 7])))
    np.testing.assert_allclose(moved, plain, rtol=1e-3, atol=1e-4)


def test_greedy_tokens_come_only_from_the_requested_rows():
    step = make_step((PROMPT, 0, [0, 1, 2]), ([5, 6], 0, [3]))
    runner = runner_of()
    assert runner.execute(step).token_ids.tolist() == runner.logits(step).argmax(axis=1).tolist()


def test_silu_does_not_overflow():
    values = silu(np.array([-1e4, -1.0, 0.0, 1.0, 1e4], np.float32))
    np.testing.assert_allclose(values, [0, -0.26894142, 0, 0.7310586, 1e4], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("encoding", "steps"), [("q8_0", 127), ("q4_0", 8), ("q4_1", 15)])
def test_quantized_tensors_decode_as_gguf_does(encoding, steps):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    values = np.random.default_rng(1).standard_normal((6, 96)).astype(np.float32)
    data = gguf.quants.quantize(values, kind)
    decoded = decode(RawTensor(Encoding(encoding), 6, 96, data))
    np.testing.assert_array_equal(decoded, gguf.quants.dequantize(data, kind))
    assert np.abs(decoded - values).max() < 2 * np.abs(values).max() / steps


@pytest.mark.parametrize(("encoding", "dtype"), [("f32", "<f4"), ("f16", "<f2")])
def test_plain_tensors_decode_to_themselves(encoding, dtype):
    values = np.arange(12, dtype=dtype).reshape(3, 4)
    np.testing.assert_array_equal(decode(RawTensor(Encoding(encoding), 3, 4, values.view(np.uint8))), values)


def test_bfloat16_is_the_upper_half_of_a_float():
    values = np.array([[1.0, -2.5, 3.140625]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    np.testing.assert_array_equal(decode(RawTensor(Encoding.BF16, 1, 3, halves.view(np.uint8))), values)
