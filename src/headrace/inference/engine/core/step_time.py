"""
An online model of step times, which keeps running streams smooth while prompts are prefilled.

    seconds = a + b * tokens + c * attended

`tokens` are the tokens of the step, `attended` the tokens that they attend to, summed.
The engine feeds measured times; the scheduler asks for the largest prompt chunk that keeps the next step under a limit.
Pure: no clock.

Samples are kept in buckets by (log tokens, log attended), a few recent ones each, and a bucket counts with its median:
one slow step (a page fault, another process) changes nothing, and hours of equal decode steps do not displace what was
learned about prompts. The fit is least squares of relative errors with non-negative coefficients.

Half of all steps take longer than the fit. So a chunk counts with the 90th percentile of recent steps with prompts:
close to the fit on a quiet machine, well above it on a noisy one. The rest of the step counts with the fit: a smaller
chunk would not make it any faster, and at a full batch nothing would be left for prompts.
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
"""Largest step planned, as a multiple of the largest one measured."""
_MAX_ATTENDED_COST = 1 / 256
"""Upper bound of the cost of attending to a token, relative to computing one (about 1 / (6 * hidden size))."""
_ACTIVE_SETS = ((1,), (3,), (0, 1), (0, 3), (1, 2), (0, 1, 2))
"""
Columns of a fit: 0 a, 1 b, 2 c, 3 b with c at its bound. Tokens always have a cost, so that prompts are not predicted
to be free before any was measured.
"""

Sample = tuple[float, float, float]
"""Tokens, attended tokens and seconds of one step."""
Row = tuple[float, float, float, float, float]
"""The columns of a fit and its target; a bucket with few samples weighs less."""
Coefficients = tuple[float, float, float]


class StepTimeModel:
    """Learns `seconds(tokens, attended)` and inverts it."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], deque[Sample]] = {}
        self._num_samples = 0
        self._most_tokens = 16
        self._noise = 1.0
        self.coefficients: Coefficients = (0.0, _PRIOR_S_PER_TOKEN, 0.0)
        """The current a (s), b (s per token), c (s per attended token)."""

    def observe(self, *, tokens: int, attended: int, seconds: float, has_chunk: bool = False) -> None:
        """Learn from one measured step; `has_chunk`: it contained a prompt chunk."""
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
            self.coefficients = _fit([_row(bucket) for bucket in self._buckets.values()])

    def predict_s(self, *, tokens: int, attended: int) -> float:
        a, b, c = self.coefficients
        return a + b * tokens + c * attended

    def largest_chunk_tokens(self, *, tokens: int, attended: int, context: int, limit_s: float) -> int:
        """
        Return how many prompt tokens fit into a step within the limit; 0 if none.

        Args:
            tokens: Tokens in the step so far.
            attended: Tokens that those attend to, summed.
            context: Tokens before the chunk in its sequence.
            limit_s: Seconds that the step may take.
        """
        a, b, c = self.coefficients
        left_s = (limit_s * _SAFETY - (a + b * tokens + c * attended)) / self._noise
        if left_s <= 0:
            return 0
        linear, square = b + c * context, c / 2
        if square * left_s < 1e-12 * linear * linear:
            chunk = left_s / linear
        else:
            chunk = (sqrt(linear * linear + 4 * square * left_s) - linear) / (2 * square)
        return max(0, min(int(chunk), _STRETCH * self._most_tokens - tokens))

    def _follow_noise(self, ratio: float) -> None:
        """Track the quantile of measured to expected time by stochastic approximation."""
        move = _QUANTILE if ratio > self._noise else _QUANTILE - 1
        self._noise = min(max(self._noise + _QUANTILE_RATE * move, 1.0), _MOST_NOISE)


def attended_tokens(context: int, count: int) -> int:
    """Return the tokens that `count` new ones attend to, summed, with `context` tokens before the first."""
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
