"""
When a sequence drafts tokens, and how many: prompt lookup, verified by the step that would run anyway.

A decoding sequence may bring drafted tokens to a step. Each is one row more; those rows draw what plain decoding would
have drawn, so the drafted tokens that agree are tokens for the price of a row, and the rest is as if it had not been.
A row must bring more than it costs: `RowPrices` knows what a row costs, the sequence's `TokenMatcher` what it brings.
Where rows are dear (many sequences) or nothing repeats, nobody drafts. Pure: no clock here.
"""

from headrace.engine.latency import StepTimeModel
from headrace.engine.sequence import Sequence
from headrace.engine.token_match import TokenMatcher

_MARGIN = 1.25
"""A drafted row must bring so many times what it costs: prices and trust are estimates."""
_ASSUMED_FREE_ROWS = 10
"""Until it was measured: a step costs what so many rows cost, plus its rows."""


class RowPrices:
    """
    What one more row costs, in tokens.

    A step of ten sequences yields ten tokens. If a row more makes it last a twentieth longer, it must bring half a
    token to be worth its time: its price is 0.5. Learned from steps without prompt chunks: there every token has a row.
    """

    def __init__(self) -> None:
        self._times = StepTimeModel()
        self._fewest_rows = 0
        self._most_rows = 0

    def observe(self, *, rows: int, attended: int, seconds: float) -> None:
        """Learn from a measured step in which every token had a row."""
        self._times.observe(tokens=rows, attended=attended, seconds=seconds)
        self._fewest_rows = min(self._fewest_rows or rows, rows)
        self._most_rows = max(self._most_rows, rows)

    def price(self, *, rows: int, attended: int) -> float:
        """Return the tokens that one more row must bring to a step of `rows` sequences to be worth its time."""
        if self._most_rows < 2 * self._fewest_rows or not self._most_rows:
            return rows / (rows + _ASSUMED_FREE_ROWS)
        base_s = self._times.predict_s(tokens=rows, attended=attended)
        more_s = self._times.predict_s(tokens=rows + 1, attended=attended + attended // rows)
        return rows * (more_s / base_s - 1)


def can_pay(price: float) -> bool:
    """Whether a row at this price could pay at all: the best it can bring is one token."""
    return price * _MARGIN < 1


def draft(sequence: Sequence, *, price: float, most: int) -> int:
    """
    Write the tokens that are worth verifying behind the known ones of a sequence; return how many, `most` at most.

    `sequence.tokens` must have room for them. They are a guess: `num_tokens` does not change.
    """
    if sequence.matcher is None:
        sequence.matcher = TokenMatcher(sequence.max_total_tokens)
    matcher, tokens, known = sequence.matcher, sequence.tokens, sequence.num_tokens
    matcher.follow(tokens, known)
    count = draft_length(matcher, price=price, most=most)
    if count:
        tokens[known : known + count] = matcher.guess(tokens, count)
    return count


def draft_length(matcher: TokenMatcher, *, price: float, most: int) -> int:
    """Return the length that makes the most tokens a second: a row more must bring more than the step does so far."""
    count, reach = 0, 1.0
    tokens, cost = 1.0, 1.0  # expected of the step for this sequence, and what it costs
    while count < most:
        reach *= matcher.trust(count)
        if reach * cost <= _MARGIN * price * tokens:
            break
        count += 1
        tokens += reach
        cost += price
    return count
