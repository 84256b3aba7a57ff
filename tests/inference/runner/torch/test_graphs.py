"""Decode steps in buffers of a fixed size, as CUDA graphs need them; on a CPU the recorder is the function itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.inference.runner.torch.graphs import DecodeGraphs, graph_sizes, is_decode_step
from headrace.inference.runner.torch.rank import largest_step
from tests.inference.runner.native_models import LIMITS, SPECS
from tests.inference.runner.steps import make_step
from tests.inference.runner.torch.runners import load
from tests.inference.runner.weights import random_weights


def test_graphs_are_denser_where_steps_are_shorter_and_end_at_the_largest_step():
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(70) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 70]


def decode(*contexts):
    pieces = [([7 + index], context, [index * 2, index * 2 + 1]) for index, context in enumerate(contexts)]
    return make_step(*pieces)


def test_only_steps_that_decode_one_token_for_each_sequence_use_graphs():
    step = decode(5, 6)
    assert is_decode_step(step)
    assert is_decode_step(replace(step, adapters=np.array([-1, -1], np.int32)))
    assert not is_decode_step(replace(step, adapters=np.array([-1, 0], np.int32)))
    assert not is_decode_step(replace(step, rows=step.rows[:1], sampling=step.sampling[:1]))
    assert not is_decode_step(make_step(([1, 2], 0, [0]), all_rows=True))


@pytest.mark.parametrize("name", ["llama", "softcaps, norms on both sides", "experts, shared one of another size"])
def test_padded_steps_have_the_logits_of_the_steps_themselves(name):
    spec = SPECS[name]
    runner = load(spec, random_weights(spec))
    runner.execute(make_step(*(([3, 1, 4, 1, 5, 9 + index], 0, [index * 2]) for index in range(5))))
    steps = [decode(6, 6, 6, 6, 6), decode(6), decode(6, 6, 6), decode(6, 6, 6, 6, 6)]
    expected = [runner.logits(step) for step in steps]
    captured = []

    def capture(function):
        captured.append(function)
        return function

    rank = runner._rank
    with torch.inference_mode():
        rank._graphs = DecodeGraphs(
            rank._decode, max_sequences=6, table_blocks=16, max_context=512, device=torch.device("cpu"), capture=capture
        )
    assert len(captured) == 4
    for step, logits in zip(steps, expected, strict=True):
        np.testing.assert_allclose(runner.logits(step), logits, rtol=1e-5, atol=1e-5)


def test_the_largest_step_has_all_tokens_and_rows_that_the_limits_allow():
    step = largest_step(replace(LIMITS, max_step_tokens=700, max_step_rows=64, max_context_tokens=512))
    assert step.query_starts.tolist() == [0, 512, 700]
    assert len(step.rows) == 64
    assert step.block_tables.shape == (2, 16)
