"""Quantiles of durations from bins."""

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.traffic_history import GROWTH, LONGEST_S, SHORTEST_S, LatencySketch

RELATIVE_ERROR = math.sqrt(GROWTH) - 1
DURATIONS = st.lists(st.floats(SHORTEST_S, LONGEST_S), min_size=1, max_size=200)


def sketch_of(durations_s: list[float]) -> LatencySketch:
    sketch = LatencySketch()
    for duration_s in durations_s:
        sketch.add(duration_s)
    return sketch


def test_an_empty_sketch_has_no_quantile() -> None:
    assert LatencySketch().quantile(0.5) is None
    assert len(LatencySketch()) == 0


@given(durations_s=DURATIONS, share=st.floats(0, 1))
def test_a_quantile_is_within_the_stated_error(durations_s: list[float], share: float) -> None:
    exact = sorted(durations_s)[max(math.ceil(share * len(durations_s)) - 1, 0)]
    estimate = sketch_of(durations_s).quantile(share)
    assert estimate is not None
    assert abs(estimate / exact - 1) <= RELATIVE_ERROR + 1e-9


@given(first=DURATIONS, second=DURATIONS)
def test_merged_sketches_equal_the_sketch_of_all_durations(first: list[float], second: list[float]) -> None:
    merged = sketch_of(first)
    merged.merge(sketch_of(second))
    together = sketch_of(first + second)
    assert len(merged) == len(together) == len(first) + len(second)
    for share in (0.0, 0.1, 0.5, 0.95, 1.0):
        assert merged.quantile(share) == together.quantile(share)


@given(duration_s=st.floats())
def test_any_float_is_accepted(duration_s: float) -> None:
    estimate = sketch_of([duration_s]).quantile(0.5)
    assert estimate is not None
    assert SHORTEST_S <= estimate <= LONGEST_S * (1 + 2 * RELATIVE_ERROR)
