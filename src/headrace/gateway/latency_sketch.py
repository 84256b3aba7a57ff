"""Quantiles of durations in bounded memory: counts in bins of exponentially growing width. Pure."""

import math
from array import array
from collections.abc import Iterable, Iterator

SHORTEST_S = 1e-4
LONGEST_S = 1e3
GROWTH = 1.1
"""
Ratio of the widths of two adjacent bins.

The relative error of a quantile is at most `sqrt(GROWTH) - 1`, for durations from `SHORTEST_S` to `LONGEST_S`; others
are clamped to these.
"""

_LOG_GROWTH = math.log(GROWTH)
_LAST_BIN = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_GROWTH) - 1


class LatencySketch:
    """
    The distribution of one kind of duration.

    Only the bins between the shortest and the longest duration seen are kept, at most 170 of four bytes.
    Source: the bins are those of DDSketch (Masson et al. 2019), with fixed ends.
    """

    __slots__ = ("_counts", "_first")

    def __init__(self) -> None:
        self._first = 0
        self._counts = array("I")

    def __len__(self) -> int:
        return sum(self._counts)

    def add(self, duration_s: float) -> None:
        """Count one duration."""
        self._count(_bin_of(duration_s), 1)

    def merge(self, other: "LatencySketch") -> None:
        """Add all durations of another sketch."""
        for index, count in other.bins():
            self._count(index, count)

    def bins(self) -> Iterator[tuple[int, int]]:
        """Yield each bin that is not empty, shortest first, with its number of durations."""
        for offset, count in enumerate(self._counts):
            if count:
                yield self._first + offset, count

    @classmethod
    def of(cls, bins: Iterable[tuple[int, int]]) -> "LatencySketch":
        """Return a sketch with these `bins`."""
        sketch = cls()
        for index, count in bins:
            sketch._count(index, count)
        return sketch

    def quantile(self, share: float) -> float | None:
        """
        Return the duration, seconds, that `share` (0 to 1) of all durations do not exceed.

        Returns:
            The duration; None if the sketch is empty.
        """
        rank = math.ceil(share * len(self))
        seen = 0
        for index, count in self.bins():
            seen += count
            if seen >= rank:
                return SHORTEST_S * math.exp(_LOG_GROWTH * (index + 0.5))
        return None

    def _count(self, index: int, count: int) -> None:
        counts = self._counts
        if not counts:
            self._first = index
        if index < self._first:
            self._counts = counts = array("I", bytes(counts.itemsize * (self._first - index))) + counts
            self._first = index
        missing = index - self._first + 1 - len(counts)
        if missing > 0:
            counts.frombytes(bytes(counts.itemsize * missing))
        counts[index - self._first] += count


def _bin_of(duration_s: float) -> int:
    if not duration_s > SHORTEST_S:  # NaN too
        return 0
    if duration_s >= LONGEST_S:
        return _LAST_BIN
    return min(int(math.log(duration_s / SHORTEST_S) / _LOG_GROWTH), _LAST_BIN)
