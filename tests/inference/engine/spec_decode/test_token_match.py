"""The token matcher predicts the tokens after an earlier occurrence, with a calibrated probability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.engine.spec_decode.token_match import _MAX_STEPS, TokenMatcher

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=300)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def matcher_of(tokens: list[int], *, from_token: int = 0) -> TokenMatcher:
    """Followed one token at a time after the first `from_token`."""
    matcher = TokenMatcher(len(tokens))
    for count in range(max(1, from_token), len(tokens) + 1):
        matcher.follow(array(tokens), count)
    return matcher


@pytest.mark.parametrize("from_token", [0, 10, 11])
def test_the_tokens_after_an_earlier_occurrence_are_predicted(from_token: int) -> None:
    tokens = [5, 6, 7, 8, 9, 10, 11, 1, 6, 7, 8]
    matcher = matcher_of(tokens, from_token=from_token)
    assert matcher.guess(array(tokens), 3).tolist() == [9, 10, 11]
    assert matcher.trust(0) > 0


def test_the_latest_occurrence_is_used() -> None:
    tokens = [1, 2, 30, 9, 1, 2, 40, 8, 1, 2]
    assert matcher_of(tokens).guess(array(tokens), 1).tolist() == [40]


def test_the_first_tokens_are_found_again() -> None:
    tokens = [1, 2, 30, 9, 1, 2]
    assert matcher_of(tokens).guess(array(tokens), 1).tolist() == [30]
    assert matcher_of(tokens, from_token=len(tokens)).guess(array(tokens), 1).tolist() == [30]


def test_a_match_grows_by_each_token_that_it_predicts() -> None:
    """It begins with two tokens: prior 0.25, which one right guess raises by an eighth; from four on it is 0.45."""
    grown = matcher_of([*range(40), 99, 0, 1, 2])
    assert (grown.trust(0), grown.trust(1)) == (0.25 + 0.75 / 8, 0.45)
    assert matcher_of([*range(40), 99, 0, 1]).trust(0) == 0.25
    assert matcher_of([*range(40), 99, 0, 1, 3]).trust(0) == 0.0


def test_a_match_of_four_tokens_beats_a_later_match_of_two() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4]
    assert matcher_of(tokens, from_token=len(tokens)).guess(array(tokens), 1).tolist() == [50]


def test_a_loop_is_predicted_beyond_its_end() -> None:
    tokens = [7, 1, 2, 3, 1, 2, 3]
    assert matcher_of(tokens).guess(array(tokens), 8).tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_trusted_without_a_repeat() -> None:
    matcher = matcher_of(list(range(50)))
    assert matcher.trust(0) == 0.0


def test_trust_grows_with_the_match_and_falls_with_wrong_guesses() -> None:
    short, long = matcher_of([*range(40), 99, 0, 1]), matcher_of([*range(40), 99, *range(30)])
    assert 0 < short.trust(0) < long.trust(0) < 1
    misled = matcher_of([token for number in range(20) for token in (1, 2, 100 + number)] + [1, 2])
    assert misled.trust(0) < short.trust(0) / 2


def test_repeats_restore_trust() -> None:
    wrong = [token for number in range(20) for token in (1, 2, 100 + number)]
    before, after = matcher_of([*wrong, 1, 2]), matcher_of([*wrong, *[1, 2, 3, 4, 5] * 12, 1, 2])
    assert after.trust(0) > before.trust(0)


@given(TOKENS, st.integers(0, 300), st.integers(1, 12))
def test_every_match_is_a_real_occurrence(tokens: list[int], from_token: int, count: int) -> None:
    """Every guess follows an earlier occurrence of the same pair of tokens, and continues as the tokens there."""
    matcher = matcher_of(tokens, from_token=min(from_token, len(tokens)))
    if matcher.trust(0) == 0:
        return
    guess = matcher.guess(array(tokens), count).tolist()
    whole = tokens + guess
    places = [place for place in range(2, len(tokens)) if whole[place : place + count] == guess]
    assert any(tokens[place - 2 : place] == tokens[-2:] for place in places)
    assert 0 < matcher.trust(0) <= 1


@pytest.mark.parametrize("num_between", [1, 100, 1000, 8000])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_repeat_is_found_far_back(num_between: int, at_once: bool) -> None:
    """However the tokens came: a whole prompt is indexed at once, later tokens one by one."""
    tokens = [1, 2, 3, 4, *np.random.default_rng(0).integers(10, 40_000, num_between).tolist(), 1, 2, 3, 4]
    matcher = matcher_of(tokens, from_token=len(tokens) if at_once else 0)
    assert matcher.guess(array(tokens), 1).tolist() == [tokens[4]]


def test_many_tokens_at_once_are_indexed_without_learning() -> None:
    tokens = [token for number in range(_MAX_STEPS) for token in (1, 2, 100 + number)] + [1, 2]
    assert matcher_of(tokens, from_token=len(tokens)).trust(0) > 2 * matcher_of(tokens).trust(0)


def test_a_matcher_of_a_long_context_stays_small() -> None:
    matcher = TokenMatcher(1_000_000)
    assert sum(table.nbytes for table in matcher._tables) <= 2**19
