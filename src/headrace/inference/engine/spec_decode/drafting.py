"""
The number of draft tokens of a sequence: prompt lookup, verified by the step that runs anyway.

A decoding sequence may add draft tokens to a step, one logit row each. Those rows draw what plain decoding would have
drawn: the draft tokens that agree are accepted, the rest are discarded. A row must yield more tokens than it costs:
`RowCostModel` estimates the cost, the sequence's `TokenMatcher` the acceptance probability. With many sequences, whose
rows are expensive, or without repeats there are no drafts. Pure: no clock.
"""

from headrace.inference.engine.spec_decode.token_match import Int32, TokenMatcher

_MARGIN = 1.5
"""Tokens that a draft row must yield for each token that it costs: both are estimates."""
_MOST_TO_WATCH = 0.6
"""Above this required yield matchers are not even updated: with 8 sequences that cost more than drafts gained."""
_ASSUMED_FREE_ROWS = 10
"""Prior: the fixed cost of a step, in rows."""
_ASSUMED_WEIGHT = 32.0
"""Weight of the prior: 32 pairs of steps that differ in one row, or 2 pairs that differ in four."""
_MAX_ROW_COST = 2.0
"""Pairs of steps that differ by more than this per row are outliers."""
_MEMORY = 0.998
"""Decay per step: after a thousand steps without drafts most of a wrong cost is forgotten and drafting is retried."""


class RowCostModel:
    """
    The cost of one more logit row, in tokens, by the number of sequences in the step.

    A step of ten sequences yields ten tokens. If one more row makes the step a twentieth longer, the row must yield
    half a token to pay off: its cost is 0.5.

    Learned from pairs of consecutive steps with equally many sequences, no prompt chunk and different numbers of rows,
    so that neither a slow phase of the machine nor longer contexts are taken for the cost of rows.
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
            limit = _MAX_ROW_COST * abs(more) / sequences
            slope += min(max(change, -limit), limit) * more
            weight += more * more
        self._evidence[key] = slope, weight
        self._latest = sequences, rows, seconds

    def row_cost(self, *, sequences: int) -> float:
        """Return the tokens that one more row must yield in a step of `sequences` to pay off."""
        slope, weight = self._evidence.get(sequences.bit_length(), (0.0, 0.0))
        slope += _ASSUMED_WEIGHT / (sequences + _ASSUMED_FREE_ROWS)
        return max(0.0, sequences * slope / (weight + _ASSUMED_WEIGHT))


def drafting_pays(row_cost: float) -> bool:
    """Return whether rows are cheap enough for drafting, and for updating matchers, to pay off."""
    return row_cost * _MARGIN < _MOST_TO_WATCH


def draft(matcher: TokenMatcher, tokens: Int32, num_tokens: int, *, row_cost: float, most: int) -> int:
    """Write up to `most` draft tokens after the `num_tokens` known ones, as many as pay off; return their number."""
    matcher.follow(tokens, num_tokens)
    count = draft_length(matcher, row_cost=row_cost, most=most)
    if count:
        tokens[num_tokens : num_tokens + count] = matcher.guess(tokens, count)
    return count


def draft_length(matcher: TokenMatcher, *, row_cost: float, most: int) -> int:
    """Return the draft length that yields the most tokens per second."""
    count, reach = 0, 1.0
    tokens, cost = 1.0, 1.0  # expected yield of the step for this sequence, and its cost
    while count < most:
        reach *= matcher.trust(count)
        if reach * cost <= _MARGIN * row_cost * tokens:
            break
        count += 1
        tokens += reach
        cost += row_cost
    return count
