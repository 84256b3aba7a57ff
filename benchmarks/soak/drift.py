"""The drift of a series: the robust slope of its medians per window. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

NUM_WINDOWS = 24
"""Windows after the warm-up: enough for a robust slope, and each has several samples."""
GOAL_SHARE = 0.02
_CONFIDENCE = 0.95

Point = tuple[float, float]
"""A time in seconds, and a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The change of a series from the end of the warm-up to the end of the run, by its slope."""

    level: float
    """Median of the windows."""
    change: float
    """Slope times the time between the first and the last window."""
    at_least: float
    """Lower end of the 95 % interval of the change."""
    at_most: float

    @property
    def share(self) -> float:
        return self.change / self.level if self.level else math.copysign(math.inf, self.change) if self.change else 0.0

    def is_growth(self, *, goal_share: float = GOAL_SHARE, resolution: float = 0.0) -> bool:
        """
        Return whether the series grows: by the goal or more, by more than `resolution`, and not by chance.

        `resolution` is the smallest change that means anything, in the unit of the series: one descriptor, a page.
        """
        return self.change >= goal_share * self.level and self.change > resolution and self.at_least > 0


def window_medians(points: Sequence[Point], *, from_s: float, to_s: float, count: int = NUM_WINDOWS) -> list[Point]:
    """Return the middle and the median of each window that has points."""
    width_s = (to_s - from_s) / count
    windows: list[list[float]] = [[] for _ in range(count)]
    for time_s, value in points:
        if from_s <= time_s <= to_s and width_s > 0:
            windows[min(count - 1, int((time_s - from_s) / width_s))].append(value)
    return [(from_s + (index + 0.5) * width_s, median(values)) for index, values in enumerate(windows) if values]


def drift(medians: Sequence[Point]) -> Drift | None:
    """Return the drift of window medians (Theil-Sen, with Sen's interval), or None for fewer than three."""
    count = len(medians)
    if count < 3:
        return None
    slopes = sorted(
        (after - before) / (after_s - before_s)
        for index, (before_s, before) in enumerate(medians)
        for after_s, after in medians[index + 1 :]
    )
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    reach = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * deviation
    low = max(0, round((len(slopes) - reach) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    span_s = medians[-1][0] - medians[0][0]
    return Drift(
        level=median(value for _, value in medians),
        change=median(slopes) * span_s,
        at_least=slopes[low] * span_s,
        at_most=slopes[high] * span_s,
    )
