import dataclasses

import numpy as np
import pytest

from headrace.core.errors import EngineFailed
from headrace.testing.fake_runner import FAKE_LIMITS, FakeRunner, follow
from tests.inference.runner.steps import make_step

PROMPT = [5, 6, 7, 8, 9, 10]


def one_token(runner, *pieces):
    return runner.execute(make_step(*pieces)).token_ids.tolist()


def test_the_token_does_not_depend_on_chunks_or_block_placement():
    whole = one_token(FakeRunner(), (PROMPT, 0, [3]))
    runner = FakeRunner()
    runner.execute(make_step((PROMPT[:4], 0, [17]), ([1, 2], 0, [4])))
    assert one_token(runner, ([3], 2, [4]), (PROMPT[4:], 4, [17]))[1:] == whole


@pytest.mark.parametrize("prompt", [[5, 6, 7, 8, 10, 9], [6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 11]])
def test_a_different_prefix_gives_different_logits(prompt):
    first = FakeRunner().logits(make_step((PROMPT, 0, [0])))
    second = FakeRunner().logits(make_step((prompt, 0, [0])))
    assert (first != second).mean() > 0.99


def test_a_context_that_was_never_written_is_reported():
    with pytest.raises(EngineFailed, match="Position 0 of a context was never written"):
        FakeRunner().execute(make_step(([9], 2, [0])))


def test_overwriting_a_block_of_another_sequence_changes_its_logits():
    runner = FakeRunner()
    runner.execute(make_step((PROMPT, 0, [1])))
    clean = runner.logits(make_step(([11], len(PROMPT), [1])))
    runner.execute(make_step(([1, 2, 3], 0, [1])))
    assert not np.array_equal(runner.logits(make_step(([11], len(PROMPT), [1]))), clean)


def test_a_script_is_followed_after_the_end_of_the_prompt():
    script = follow({(9, 10): [40, 41, 42], (): [77]})
    runner = FakeRunner(script=script)
    assert one_token(runner, (PROMPT, 0, [0])) == [40]
    assert one_token(runner, ([40], 6, [0])) == [41]
    assert one_token(runner, ([41], 7, [0])) == [42]
    assert one_token(runner, ([1, 2], 0, [1])) == [77]


def test_a_token_biased_to_minus_infinity_is_never_drawn():
    runner = FakeRunner(bias={token: -np.inf for token in range(256) if token != 99})
    assert one_token(runner, (PROMPT, 0, [0])) == [99]


def test_a_step_in_fail_on_steps_fails_once():
    runner = FakeRunner(fail_on_steps={1})
    first = one_token(runner, (PROMPT, 0, [0]))
    with pytest.raises(EngineFailed, match="Step 1"):
        one_token(runner, (PROMPT, 0, [0]))
    assert one_token(runner, (PROMPT, 0, [0])) == first
    assert runner.num_steps == 3


def test_before_step_sees_each_step():
    seen = []
    step = make_step((PROMPT, 0, [0]))
    FakeRunner(before_step=seen.append).execute(step)
    assert seen == [step]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (make_step((PROMPT, 0, [64])), "the block table of sequence 0 has a block that does not exist"),
        (make_step((PROMPT, 11, [0])), "block table of sequence 0 is too short"),
        (make_step(([1], 0, [2]), ([1], 0, [2])), "share a slot"),
        (make_step(([256], 0, [0])), "outside the vocabulary"),
        (make_step(([-1], 0, [0])), "outside the vocabulary"),
        (make_step(*[([1], 0, [block % 64]) for block in range(65)]), "65 sequences; expected at most 64"),
        (make_step(([1], 1024, list(range(65)))), "1025 tokens in a context; expected at most 1024"),
        (dataclasses.replace(make_step(([1, 2], 0, [0])), rows=np.array([2], np.int32)), "outside the step"),
        (dataclasses.replace(make_step(([1, 2], 0, [0])), query_starts=np.array([0, 1], np.int32)), "must end at"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_the_reason(step, problem):
    with pytest.raises(EngineFailed, match=problem):
        FakeRunner(limits=FAKE_LIMITS).execute(step)
