"""An invalid step is refused with the reason, and the runner continues to work."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import EngineFailed
from headrace.inference.runner.step import Bias, History, Mask
from tests.inference.runner.native_models import load, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    spec = small_spec()
    return load(spec, random_weights(spec), tmp_path_factory.mktemp("cache"))


def good():
    return make_step(([1, 2, 3], 0, [0]), ([4], 0, [1]))


def ints(*values):
    return np.array(values, np.int32)


BAD_STEPS = {
    "token above the vocabulary": (replace(good(), token_ids=ints(1, 2, 3, 333)), "333"),
    "negative token": (replace(good(), token_ids=ints(1, -2, 3, 4)), "-2"),
    "block that is not there": (replace(good(), block_tables=np.array([[0], [48]], np.int32)), "48"),
    "negative block": (replace(good(), block_tables=np.array([[-1], [1]], np.int32)), "-1"),
    "short block table": (replace(good(), context_lens=ints(32, 0)), "too short"),
    "context over the limit": (replace(good(), context_lens=ints(510, 0)), "513"),
    "negative context": (replace(good(), context_lens=ints(-1, 0)), "negative"),
    "row outside the step": (replace(good(), rows=ints(2, 4)), "rows"),
    "rows that descend": (replace(good(), rows=ints(3, 2)), "rows"),
    "starts that descend": (replace(good(), query_starts=ints(0, 5, 4)), "ascend"),
    "starts that end elsewhere": (replace(good(), query_starts=ints(0, 3, 5)), "end at"),
    "sequence without tokens": (replace(good(), query_starts=ints(0, 4, 4)), "needs a token"),
    "starts of another number": (replace(good(), query_starts=ints(0, 4)), "one entry more"),
    "no tokens": (
        replace(
            good(),
            token_ids=ints(),
            query_starts=ints(0),
            context_lens=ints(),
            rows=ints(),
            block_tables=np.zeros((0, 1), np.int32),
            sampling=good().sampling[:0],
        ),
        "empty",
    ),
    "too many tokens": (make_step(([1] * 401, 0, list(range(13)))), "401"),
    "too many sequences": (make_step(*[([1], 0, [block]) for block in range(9)]), "9 sequences"),
    "sampling of another number": (replace(good(), sampling=good().sampling[:1]), "sampling"),
    "wide tokens": (replace(good(), token_ids=good().token_ids.astype(np.int64)), "int32"),
    "flat block tables": (replace(good(), block_tables=ints(0, 1)), "int32"),
    "tables of another number": (replace(good(), block_tables=np.zeros((3, 1), np.int32)), "block_tables"),
    "history of no row": (replace(good(), histories=(History(2, ints(1), 1),)), "row"),
    "history with a strange token": (replace(good(), histories=(History(0, ints(999), 1),)), "history"),
    "bias without values": (replace(good(), biases=(Bias(0, ints(1), np.zeros(0, np.float32)),)), "values"),
    "short mask": (replace(good(), masks=(Mask(0, np.zeros(3, np.uint32)),)), "words"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_step_that_does_not_fit_is_refused(name, runner):
    step, reason = BAD_STEPS[name]
    with pytest.raises(EngineFailed, match=reason):
        runner.execute(step)
    assert runner.execute(good()).token_ids.shape == (2,)


def test_a_target_outside_the_vocabulary_is_refused(runner):
    with pytest.raises(EngineFailed, match="target"):
        runner.execute(make_step(([1], 0, [0]), sampling={"target": 333}))


def test_a_closed_runner_says_so(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path)
    runner.close()
    runner.close()
    with pytest.raises(EngineFailed, match="closed"):
        runner.execute(good())
