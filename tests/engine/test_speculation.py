"""Drafting pays or does not happen."""

from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import SamplingParams
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import RowPrices, can_pay, draft, draft_length


class Trusted:
    """A matcher that is trusted as told."""

    def __init__(self, *trusts: float) -> None:
        self._trusts = trusts

    def trust(self, depth: int) -> float:
        return self._trusts[depth]


def learned(*, fixed_s: float, row_s: float, rows: tuple[int, ...]) -> RowPrices:
    prices = RowPrices()
    for count in rows * 7:
        prices.observe(rows=count, attended=100 * count, seconds=fixed_s + row_s * count)
    return prices


def test_before_anything_was_measured_rows_are_cheap_for_one_and_dear_for_many() -> None:
    prices = RowPrices()
    assert can_pay(prices.price(rows=1, attended=100))
    assert not can_pay(prices.price(rows=64, attended=6400))


def test_steps_of_one_row_say_nothing_about_a_second() -> None:
    assert learned(fixed_s=0.0, row_s=0.01, rows=(1,)).price(rows=1, attended=100) == RowPrices().price(
        rows=1, attended=100
    )


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_price_is_the_share_of_a_step_times_its_sequences(rows: int) -> None:
    prices = learned(fixed_s=0.010, row_s=0.001, rows=(1, 2, 4, 8, 16, 64))
    assert prices.price(rows=rows, attended=100 * rows) == pytest.approx(rows / (10 + rows), rel=0.1)


def test_where_a_row_costs_as_much_as_a_step_nobody_drafts() -> None:
    assert not can_pay(learned(fixed_s=0.0, row_s=0.01, rows=(1, 2, 4)).price(rows=1, attended=100))


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8), st.floats(0.01, 1.5), st.integers(1, 8))
def test_a_draft_always_promises_more_tokens_a_second(trusts: list[float], price: float, most: int) -> None:
    count = draft_length(Trusted(*trusts), price=price, most=most)
    yields = [sum(list(accumulate(trusts, mul))[:length]) + 1 for length in range(most + 1)]
    speeds = [tokens / (1 + price * length) for length, tokens in enumerate(yields)]
    assert count <= most
    assert speeds[count] >= speeds[0]
    assert count <= max(length for length in range(most + 1) if speeds[length] == max(speeds))
    if price * 1.25 < trusts[0]:
        assert count > 0


def test_drafts_are_longer_where_trust_is_higher_and_rows_are_cheaper() -> None:
    sure, unsure = Trusted(*[0.95] * 8), Trusted(*[0.5] * 8)
    assert draft_length(sure, price=0.08, most=8) == 8
    assert 0 < draft_length(unsure, price=0.08, most=8) < 4
    assert draft_length(sure, price=0.5, most=8) < 3
    assert draft_length(unsure, price=0.5, most=8) == 0


def test_a_draft_lies_behind_the_known_tokens_and_leaves_them_alone() -> None:
    tokens = np.full(40, -1, np.int32)
    tokens[:12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    sequence = Sequence(
        order=0,
        tokens=tokens,
        num_tokens=12,
        num_prompt_tokens=9,
        max_total_tokens=40,
        params=SamplingParams(),
        root_hash=b"",
    )
    count = draft(sequence, price=0.01, most=5)
    assert count > 0
    assert tokens[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert tokens[12 : 12 + count].tolist() == [4, 5, 6, 7, 8][:count]
    assert (tokens[12 + count :] == -1).all()
    assert sequence.num_tokens == 12
