"""Quantiles of durations in little memory: counts in bins that grow by a factor. Pure."""

import math
from array import array
from collections.abc import Iterator

SHORTEST_S = 1e-4
LONGEST_S = 1e3
GROWTH = 1.1
"""Of one bin over the one before."""
RELATIVE_ERROR = math.sqrt(GROWTH) - 1
"""Of a quantile, at most, for durations between the shortest and the longest; others count as these."""

_LOG_GROWTH = math.log(GROWTH)
_LAST_BIN = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_GROWTH) - 1


class LatencySketch:
    """
    Durations of one kind.

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
        """Count all durations of another sketch too."""
        for place, count in other.bins():
            self._count(place, count)

    def bins(self) -> Iterator[tuple[int, int]]:
        """(Bin, durations in it), shortest first, without empty ones."""
        for offset, count in enumerate(self._counts):
            if count:
                yield self._first + offset, count

    def quantile(self, share: float) -> float | None:
        """
        The duration, seconds, that a share of all durations (0 to 1) does not exceed.

        Returns:
            None if there are none.
        """
        wanted = math.ceil(share * len(self))
        seen = 0
        for place, count in self.bins():
            seen += count
            if seen >= wanted:
                return SHORTEST_S * math.exp(_LOG_GROWTH * (place + 0.5))
        return None

    def _count(self, place: int, count: int) -> None:
        counts = self._counts
        if not counts:
            self._first = place
        if place < self._first:
            self._counts = counts = array("I", bytes(counts.itemsize * (self._first - place))) + counts
            self._first = place
        missing = place - self._first + 1 - len(counts)
        if missing > 0:
            counts.frombytes(bytes(counts.itemsize * missing))
        counts[place - self._first] += count


def _bin_of(duration_s: float) -> int:
    if not duration_s > SHORTEST_S:  # also what is not a number
        return 0
    if duration_s >= LONGEST_S:
        return _LAST_BIN
    return min(int(math.log(duration_s / SHORTEST_S) / _LOG_GROWTH), _LAST_BIN)
