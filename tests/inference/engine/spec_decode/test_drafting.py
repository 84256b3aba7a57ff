"""Sequences draft only where it pays off."""

import random
from collections.abc import Callable
from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.engine.spec_decode.drafting import RowCostModel, draft, draft_length, drafting_pays
from headrace.inference.engine.spec_decode.token_match import TokenMatcher


class Trusted:
    """A matcher that is trusted as told."""

    def __init__(self, *trusts: float) -> None:
        self._trusts = trusts

    def trust(self, depth: int) -> float:
        return self._trusts[depth]


def learned(
    costs: RowCostModel, *, sequences: int, seconds_of: Callable[[int, int], float], num_steps: int = 400
) -> None:
    """Steps that draft now and then; `seconds_of` gets the rows and the number of the step."""
    rng = random.Random(1)
    for number in range(num_steps):
        rows = sequences + (rng.randint(1, 6) if rng.random() < 0.4 else 0)
        costs.observe(sequences=sequences, rows=rows, seconds=seconds_of(rows, number))


def test_by_default_rows_are_cheap_for_one_sequence_and_expensive_for_many() -> None:
    assert drafting_pays(RowCostModel().row_cost(sequences=1))
    assert not drafting_pays(RowCostModel().row_cost(sequences=64))


@pytest.mark.parametrize("sequences", [1, 4, 8, 20])
def test_the_cost_of_a_row_is_its_share_of_the_step_times_the_sequences(sequences: int) -> None:
    costs = RowCostModel()
    learned(costs, sequences=sequences, seconds_of=lambda rows, _: 0.010 + 0.0005 * (rows - sequences))
    assert costs.row_cost(sequences=sequences) == pytest.approx(sequences * 0.05, rel=0.15)


def test_noise_slow_phases_and_growing_contexts_do_not_change_the_cost_of_rows() -> None:
    rng, costs = random.Random(2), RowCostModel()

    def seconds_of(rows: int, number: int) -> float:
        disturbed = 3.0 if rng.random() < 0.02 else 1.0
        spell = 1.8 if number // 50 % 2 else 1.0
        return (1 + 0.06 * (rows - 8)) * spell * disturbed * (1 + number / 1000) * rng.gauss(1, 0.08)

    learned(costs, sequences=8, seconds_of=seconds_of, num_steps=1000)
    assert costs.row_cost(sequences=8) == pytest.approx(0.48, abs=0.15)


def test_drafting_stops_when_a_row_costs_a_whole_step_and_is_retried_later() -> None:
    costs = RowCostModel()
    learned(costs, sequences=1, seconds_of=lambda rows, _: 0.01 * rows)
    assert not drafting_pays(costs.row_cost(sequences=1))
    for _ in range(4000):
        costs.observe(sequences=1, rows=1, seconds=0.01)
    assert drafting_pays(costs.row_cost(sequences=1))


def test_costs_are_learned_separately_for_small_and_large_steps() -> None:
    costs = RowCostModel()
    learned(costs, sequences=1, seconds_of=lambda rows, _: 0.01 * rows)
    assert costs.row_cost(sequences=8) == RowCostModel().row_cost(sequences=8)


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8), st.floats(0.01, 1.5), st.integers(1, 8))
def test_a_draft_always_raises_the_expected_tokens_per_second(trusts: list[float], row_cost: float, most: int) -> None:
    count = draft_length(Trusted(*trusts), row_cost=row_cost, most=most)
    yields = [sum(list(accumulate(trusts, mul))[:length]) + 1 for length in range(most + 1)]
    speeds = [tokens / (1 + row_cost * length) for length, tokens in enumerate(yields)]
    assert count <= most
    assert speeds[count] >= speeds[0]
    assert count <= max(length for length in range(most + 1) if speeds[length] == max(speeds))
    if row_cost * 1.5 < trusts[0]:
        assert count > 0


def test_drafts_grow_with_trust_and_cheaper_rows() -> None:
    sure, unsure = Trusted(*[0.95] * 8), Trusted(*[0.5] * 8)
    assert draft_length(sure, row_cost=0.08, most=8) == 8
    assert 0 < draft_length(unsure, row_cost=0.08, most=8) < 4
    assert draft_length(sure, row_cost=0.5, most=8) < 3
    assert draft_length(unsure, row_cost=0.5, most=8) == 0


def test_a_draft_is_written_after_the_known_tokens() -> None:
    tokens = np.full(40, -1, np.int32)
    tokens[:12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    count = draft(TokenMatcher(40), tokens, 12, row_cost=0.01, most=5)
    assert count > 0
    assert tokens[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert tokens[12 : 12 + count].tolist() == [4, 5, 6, 7, 8][:count]
    assert (tokens[12 + count :] == -1).all()
