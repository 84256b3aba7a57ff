"""Answers that repeat themselves end, exactly where the definition says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.generation import FinishReason, RepetitionDetection
from headrace.inference.engine.core.repetition import RepetitionDetector
from tests.inference.engine.support import LIMITS, ask, make_engine, request, running

CYCLE = tuple(b"abcab")


def repeats(tokens: list[int], rule: RepetitionDetection) -> bool:
    """The definition: the answer ends with one pattern, so many times in a row."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length <= len(tokens) and tokens[-length:] == tokens[-size:] * rule.min_count:
            return True
    return False


@st.composite
def rules(draw: st.DrawFn) -> RepetitionDetection:
    size = draw(st.integers(1, 6))
    return RepetitionDetection(
        max_pattern_size=size, min_pattern_size=draw(st.integers(1, size)), min_count=draw(st.integers(2, 4))
    )


few_tokens = st.lists(st.integers(0, 2), max_size=40)
cycles = st.tuples(few_tokens, st.lists(st.integers(0, 2), min_size=1, max_size=7), st.integers(1, 6)).map(
    lambda parts: parts[0] + parts[1] * parts[2]
)


@given(st.one_of(few_tokens, cycles), rules())
def test_a_repetition_is_found_after_each_token_as_defined(tokens: list[int], rule: RepetitionDetection) -> None:
    detector = RepetitionDetector(rule)
    answer = np.array(tokens, np.int32)
    for length in range(1, len(tokens) + 1):
        assert detector.push(answer[:length]) == repeats(tokens[:length], rule)


def script(prefix: tuple[int, ...]) -> int:
    """A text that goes round in a circle from its first token."""
    return CYCLE[(len(prefix) - 5) % len(CYCLE)]


async def test_an_answer_ends_with_the_token_that_completes_the_repetition() -> None:
    rule = RepetitionDetection(max_pattern_size=8, min_pattern_size=2, min_count=3)
    async with running(make_engine(script=script)) as engine:
        answer = await ask(engine, request(max_new_tokens=60, repetition_detection=rule))
        unasked = await ask(engine, request(max_new_tokens=60))
        later = await ask(engine, request(max_new_tokens=60, min_new_tokens=21, repetition_detection=rule))
        held = await ask(engine, request(max_new_tokens=60, stop=("abcabx",), repetition_detection=rule))
        at_limit = await ask(engine, request(max_new_tokens=15, repetition_detection=rule))
    assert (answer.text, answer.finish.reason, answer.finish.output_tokens) == (
        "abcab" * 3,
        FinishReason.REPETITION,
        15,
    )
    assert unasked.finish.reason is FinishReason.LENGTH
    assert (later.finish.reason, later.finish.output_tokens) == (FinishReason.REPETITION, 21)
    assert held.text == answer.text
    assert at_limit.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("max_pattern_size", {"max_pattern_size": -1}),
        ("max_pattern_size", {"max_pattern_size": 1_000_000}),
        ("min_pattern_size", {"min_pattern_size": 257}),
        ("min_count", {"min_count": 1}),
        ("min_count", {"min_count": 2**60}),
    ],
)
async def test_a_rule_out_of_range_is_refused(name: str, changes: dict[str, int]) -> None:
    async with running(make_engine(limits=LIMITS)) as engine:
        with pytest.raises(InvalidRequest, match=rf"`repetition_detection\.{name}` is .*; expected between"):
            await ask(engine, request(repetition_detection=RepetitionDetection(**changes)))
