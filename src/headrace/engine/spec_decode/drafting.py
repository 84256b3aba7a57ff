"""
When a sequence drafts tokens, and how many: prompt lookup, verified by the step that would run anyway.

A decoding sequence may bring drafted tokens to a step. Each is one row more; those rows draw what plain decoding would
have drawn, so the drafted tokens that agree are tokens for the price of a row, and the rest is as if it had not been.
A row must bring more than it costs: `RowPrices` knows what a row costs, the sequence's `TokenMatcher` what it brings.
Where rows are dear (many sequences) or nothing repeats, nobody drafts. Pure: no clock here.
"""

from headrace.engine.spec_decode.token_match import Int32, TokenMatcher

_MARGIN = 1.5
"""A drafted row must bring so many times what it costs: prices and trust are estimates."""
_MOST_TO_WATCH = 0.6
"""Where a row must bring more than this nobody even watches for repeats: it cost 8 sequences more than it brought."""
_ASSUMED_FREE_ROWS = 10
"""Until it was measured: a step costs what so many rows cost, plus its rows."""
_ASSUMED_WEIGHT = 32.0
"""What the assumption counts beside measurements: as much as 32 pairs of steps that differ in one row, or 2 in four."""
_MAX_PRICE = 2.0
"""Pairs of steps that differ by more are disturbed."""
_MEMORY = 0.998
"""From step to step: in a thousand steps without drafts most of a wrong price is forgotten, and it is tried again."""


class RowPrices:
    """
    What one more row costs, in tokens, for steps of so many sequences.

    A step of ten sequences yields ten tokens. If a row more makes it last a twentieth longer, it must bring half a
    token to be worth its time: its price is 0.5.

    Learned from neighbours: two steps in a row, of equally many sequences and no prompt chunk, that differ in their
    rows. So neither a slow spell of the machine nor longer contexts pass for the price of rows.
    """

    def __init__(self) -> None:
        self._evidence: dict[int, tuple[float, float]] = {}
        self._latest = (0, 0, 0.0)

    def observe(self, *, sequences: int, rows: int, seconds: float) -> None:
        """Learn from a measured step of decoding sequences only."""
        key = sequences.bit_length()
        slope, weight = self._evidence.get(key, (0.0, 0.0))
        slope, weight = slope * _MEMORY, weight * _MEMORY
        last_sequences, last_rows, last_s = self._latest
        if last_sequences == sequences and last_rows != rows:
            more = rows - last_rows
            change = (seconds - last_s) / (last_s if more > 0 else seconds)
            limit = _MAX_PRICE * abs(more) / sequences
            slope += min(max(change, -limit), limit) * more
            weight += more * more
        self._evidence[key] = slope, weight
        self._latest = sequences, rows, seconds

    def price(self, *, sequences: int) -> float:
        """Return the tokens that one more row must bring to a step of `sequences` to be worth its time."""
        slope, weight = self._evidence.get(sequences.bit_length(), (0.0, 0.0))
        slope += _ASSUMED_WEIGHT / (sequences + _ASSUMED_FREE_ROWS)
        return max(0.0, sequences * slope / (weight + _ASSUMED_WEIGHT))


def can_pay(price: float) -> bool:
    """Whether rows are so cheap that guessing, and watching for what to guess, is likely to pay."""
    return price * _MARGIN < _MOST_TO_WATCH


def draft(matcher: TokenMatcher, tokens: Int32, num_tokens: int, *, price: float, most: int) -> int:
    """Write at most `most` draft tokens behind the `num_tokens` known ones, as many as pay; return their number."""
    matcher.follow(tokens, num_tokens)
    count = draft_length(matcher, price=price, most=most)
    if count:
        tokens[num_tokens : num_tokens + count] = matcher.guess(tokens, count)
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
