"""
How long will a step take? An online model that keeps running streams smooth while prompts are read in.

    seconds = a + b * tokens + c * attended

`tokens` are those of the step, `attended` is the sum over them of the tokens that they look back at.
The engine's shell feeds measured times; the scheduler asks for the largest prompt chunk that keeps the next step under
a limit. Pure: no clock here.

The samples lie in buckets by (log tokens, log attended), a few recent ones each, and a bucket counts with its median:
one slow step (a page fault, another process) changes nothing, and hours of equal decode steps do not wash out what was
learned about prompts. The fit is least squares of relative errors with non-negative coefficients.

Half of all steps take longer than that. So the chunk is chosen for what nine in ten steps with prompts stayed under
lately: on a quiet machine next to the fit, on a noisy one well above it.
"""

from collections import deque
from math import isfinite, log2, sqrt
from statistics import median

_SAMPLES_PER_BUCKET = 7
_REFIT_EVERY = 16
_FIRST_FITS = 24
_SAFETY = 0.9
_QUANTILE = 0.9
_QUANTILE_RATE = 0.1
_MOST_NOISE = 2.0
_PRIOR_S_PER_TOKEN = 1e-3
_STRETCH = 4
"""A chunk makes a step at most this many times larger than any that was measured."""
_MAX_ATTENDED_COST = 1 / 256
"""Attending to one token costs at most this part of computing one (in theory 1 / (6 * hidden size) or so)."""
_ACTIVE_SETS = ((1,), (3,), (0, 1), (0, 3), (1, 2), (0, 1, 2))
"""
Columns of a fit: 0 a, 1 b, 2 c, 3 b with c at its bound. Tokens always cost something, so that a machine that has only
seen decode steps does not call prompts free.
"""

Sample = tuple[float, float, float]
"""tokens, attended, seconds"""
Row = tuple[float, float, float, float, float]
"""The columns of a fit, then what they should add up to; a bucket with few samples weighs less."""
Coefficients = tuple[float, float, float]


class StepTimeModel:
    """Learns `seconds(tokens, attended)` and inverts it."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], deque[Sample]] = {}
        self._num_samples = 0
        self._most_tokens = 16
        self._noise = 1.0
        self._coefficients: Coefficients = (0.0, _PRIOR_S_PER_TOKEN, 0.0)

    @property
    def coefficients(self) -> Coefficients:
        """The current a (s), b (s per token), c (s per attended token)."""
        return self._coefficients

    def observe(self, *, tokens: int, attended: int, seconds: float, has_chunk: bool = False) -> None:
        """Learn from one measured step; `has_chunk`: a prompt chunk was in it."""
        if tokens <= 0 or seconds <= 0 or not isfinite(seconds):
            return
        if has_chunk and tokens <= self._most_tokens:
            self._follow_noise(seconds / self.predict_s(tokens=tokens, attended=attended))
        key = (int(2 * log2(tokens)), int(log2(attended + 1)))
        bucket = self._buckets.setdefault(key, deque(maxlen=_SAMPLES_PER_BUCKET))
        bucket.append((float(tokens), float(attended), seconds))
        self._num_samples += 1
        self._most_tokens = max(self._most_tokens, tokens)
        if self._num_samples <= _FIRST_FITS or self._num_samples % _REFIT_EVERY == 0:
            self._coefficients = _fit([_row(bucket) for bucket in self._buckets.values()])

    def predict_s(self, *, tokens: int, attended: int) -> float:
        """Return the expected seconds of such a step."""
        a, b, c = self._coefficients
        return a + b * tokens + c * attended

    def largest_chunk_tokens(self, *, tokens: int, attended: int, context: int, limit_s: float) -> int:
        """
        Return how many prompt tokens may be added to a step without passing the limit; 0 if none.

        Args:
            tokens: Tokens that are in the step already.
            attended: Tokens that those look back at, summed.
            context: Tokens before the chunk in its sequence.
            limit_s: Seconds that nine in ten such steps may take.
        """
        a, b, c = self._coefficients
        left_s = limit_s * _SAFETY / self._noise - (a + b * tokens + c * attended)
        if left_s <= 0:
            return 0
        linear, square = b + c * context, c / 2
        if square * left_s < 1e-12 * linear * linear:
            chunk = left_s / linear
        else:
            chunk = (sqrt(linear * linear + 4 * square * left_s) - linear) / (2 * square)
        return max(0, min(int(chunk), _STRETCH * self._most_tokens - tokens))

    def _follow_noise(self, ratio: float) -> None:
        """Move towards the quantile of measured to expected time: up where it was passed, down a little elsewhere."""
        move = _QUANTILE if ratio > self._noise else _QUANTILE - 1
        self._noise = min(max(self._noise + _QUANTILE_RATE * move, 1.0), _MOST_NOISE)


def attended_tokens(context: int, count: int) -> int:
    """Return how many tokens `count` new ones look back at, summed, with `context` tokens before the first."""
    return count * context + count * (count + 1) // 2


def _row(bucket: deque[Sample]) -> Row:
    size = len(bucket)
    tokens, attended = sum(s[0] for s in bucket) / size, sum(s[1] for s in bucket) / size
    weight = sqrt(size)
    scale = weight / median(s[2] for s in bucket)
    return scale, scale * tokens, scale * attended, scale * (tokens + _MAX_ATTENDED_COST * attended), weight


def _fit(rows: list[Row]) -> Coefficients:
    """Return the non-negative coefficients with the least squared relative error (exhaustive over the active sets)."""
    best: Coefficients | None = None
    best_error = float("inf")
    for active in _ACTIVE_SETS:
        solution = _solve(rows, active)
        if solution is None or min(solution) < 0 or solution[2] > 1.001 * _MAX_ATTENDED_COST * solution[1]:
            continue
        error = sum((sum(x * s for x, s in zip(row, solution, strict=False)) - row[4]) ** 2 for row in rows)
        if error < best_error - 1e-9:
            best, best_error = solution, error
    return best if best is not None else (0.0, _PRIOR_S_PER_TOKEN, 0.0)


def _solve(rows: list[Row], active: tuple[int, ...]) -> Coefficients | None:
    """Solve the normal equations of `rows @ x = target` for the active columns; None if they are (nearly) dependent."""
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in active]
    matrix = [
        [sum(row[i] * row[j] for row in rows) / (si * sj) for j, sj in zip(active, scales, strict=True)]
        + [sum(row[i] * row[4] for row in rows) / si]
        for i, si in zip(active, scales, strict=True)
    ]
    size = len(active)
    for pivot in range(size):
        if matrix[pivot][pivot] < 1e-9 * len(rows):
            return None
        for other in range(size):
            if other != pivot:
                factor = matrix[other][pivot] / matrix[pivot][pivot]
                matrix[other] = [x - factor * y for x, y in zip(matrix[other], matrix[pivot], strict=True)]
    solution = [0.0, 0.0, 0.0, 0.0]
    for place, column in enumerate(active):
        solution[column] = matrix[place][size] / matrix[place][place] / scales[place]
    tied = solution[3]
    return solution[0], solution[1] + tied, solution[2] + tied * _MAX_ATTENDED_COST
