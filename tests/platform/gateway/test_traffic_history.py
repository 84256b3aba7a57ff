"""The last hour's traffic, as the console's charts show it, with quantiles of durations from bins."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.gateway.traffic_history import (
    GROWTH,
    LONGEST_S,
    MAX_VARIANTS,
    SHORTEST_S,
    LatencySketch,
    TrafficHistory,
)

NOW_S = 1_790_000_000.0


def recorded(*requests: tuple[float, int], first_byte_s: float | None = 0.05) -> TrafficHistory:
    """Record requests, given by their age in seconds and status."""
    history = TrafficHistory()
    for age_s, status in sorted(requests, reverse=True):
        history.record("e", "AllTraffic", status, first_byte_s, 0.2, NOW_S - age_s)
    return history


def test_an_endpoint_without_requests_has_an_empty_series() -> None:
    series = TrafficHistory().series("unknown", since_s=NOW_S - 60, now_s=NOW_S)
    assert series["requests"] == [0] * 13
    assert series["first_byte_ms"]["p50"] == [None] * 13
    assert series["variants"] == {}


def test_a_request_counts_in_the_bucket_of_its_end() -> None:
    series = recorded((0, 200), (12, 200), (12, 200)).series("e", since_s=NOW_S - 20, now_s=NOW_S)
    assert series["bucket_s"] == 5
    assert series["start_s"] == NOW_S - 20
    assert series["requests"] == [0, 2, 0, 0, 1]
    assert series["variants"] == {"AllTraffic": [0, 2, 0, 0, 1]}


def test_long_ranges_have_long_buckets_and_reach_back_an_hour() -> None:
    series = recorded((0, 200), (3000, 200), (4000, 200)).series("e", since_s=NOW_S - 86_400, now_s=NOW_S)
    assert series["bucket_s"] == 60
    assert len(series["requests"]) == 61
    assert sum(series["requests"]) == 2


def test_refusals_failures_and_responses_are_counted_separately() -> None:
    series = recorded(*((0, status) for status in (200, 400, 413, 429, 424, 499, 500, 503))).series(
        "e", since_s=NOW_S, now_s=NOW_S
    )
    assert (series["requests"], series["refused"], series["failed"]) == ([8], [3], [3])


def test_failed_requests_do_not_change_the_latencies() -> None:
    history = recorded((0, 200))
    history.record("e", "", 429, None, 1e-4, NOW_S)
    history.record("e", "AllTraffic", 424, 60.0, 60.0, NOW_S)
    series = history.series("e", since_s=NOW_S, now_s=NOW_S)
    assert 47 < series["first_byte_ms"]["p99"][0] < 53
    assert 190 < series["total_ms"]["p99"][0] < 210


def test_a_response_without_a_first_byte_still_has_a_duration() -> None:
    series = recorded((0, 200), first_byte_s=None).series("e", since_s=NOW_S, now_s=NOW_S)
    assert series["first_byte_ms"]["p50"] == [None]
    assert 190 < series["total_ms"]["p50"][0] < 210


def test_rates_cover_one_minute_and_omit_idle_endpoints() -> None:
    history = recorded(*((age_s, 200) for age_s in range(60)), (30, 500), (500, 200))
    history.record("idle", "v", 200, 0.1, 0.1, NOW_S - 500)
    rates = history.rates(["e", "idle", "unknown"], now_s=NOW_S)
    assert list(rates) == ["e"]
    assert rates["e"]["requests_per_s"] == 61 / 60
    assert rates["e"]["failed_per_s"] == 1 / 60
    assert 47 < rates["e"]["first_byte_p50_ms"] < 53
    assert history.requests_per_s(now_s=NOW_S) == 61 / 60


def test_the_longest_idle_endpoint_is_evicted_first() -> None:
    history = TrafficHistory(max_endpoints=2)
    for name in ("a", "b", "a", "c"):
        history.record(name, "v", 200, 0.1, 0.1, NOW_S)
    known = [name for name in "abc" if sum(history.series(name, since_s=NOW_S, now_s=NOW_S)["requests"])]
    assert known == ["a", "c"]


def test_requests_of_too_many_variants_still_count_for_the_endpoint() -> None:
    history = TrafficHistory()
    for number in range(MAX_VARIANTS + 5):
        history.record("e", f"v{number:02}", 200, 0.1, 0.1, NOW_S)
    series = history.series("e", since_s=NOW_S, now_s=NOW_S)
    assert len(series["variants"]) == MAX_VARIANTS
    assert series["requests"] == [MAX_VARIANTS + 5]


def test_a_clock_set_back_does_not_bring_old_counts_back() -> None:
    history = recorded((0, 200))
    earlier_s = NOW_S - 7200
    history.record("e", "v", 200, 0.1, 0.1, earlier_s)
    assert sum(history.series("e", since_s=earlier_s - 300, now_s=earlier_s)["requests"]) == 1


@given(
    ages_s=st.lists(st.floats(0, 5000), max_size=60),
    now_s=st.floats(0, 4e9),
    look_back_s=st.floats(-100, 10_000),
)
def test_every_request_in_range_is_counted_exactly_once(ages_s: list[float], now_s: float, look_back_s: float) -> None:
    now_s += 5000
    history = TrafficHistory()
    times_s = sorted(now_s - age_s for age_s in ages_s)
    for time_s in times_s:
        history.record("e", "v", 200, 0.1, 0.1, time_s)
    series = history.series("e", since_s=now_s - look_back_s, now_s=now_s)
    length = len(series["requests"])
    end_s = series["start_s"] + length * series["bucket_s"]
    assert 1 <= length <= 121
    assert series["start_s"] <= now_s < end_s
    if 0 <= look_back_s <= 3600:
        assert series["start_s"] <= now_s - look_back_s
    assert sum(series["requests"]) == sum(time_s >= series["start_s"] for time_s in times_s)
    assert all(len(values) == length for values in (series["failed"], series["total_ms"]["p95"]))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([200, 404, 500]), st.floats(0, 3000), st.integers(0, 2))),
    st.floats(10, 3600),
)
def test_merged_histories_are_that_of_one_gateway_with_all_requests(
    requests: list[tuple[str, int, float, int]], look_back_s: float
) -> None:
    now_s, parts, whole = 10_000.0, [TrafficHistory() for _ in range(3)], TrafficHistory()
    for variant, status, age_s, gateway in sorted(requests, key=lambda request: -request[2]):
        for history in (parts[gateway], whole):
            history.record("e", variant, status, 0.01 * (status % 7 + 1), 1.0, now_s - age_s)
    since_s = now_s - look_back_s
    snapshots = [part.snapshot(["e", "unknown"], since_s=since_s, now_s=now_s) for part in parts]
    merged = TrafficHistory.merged(json.loads(json.dumps(snapshots)))
    assert merged.series("e", since_s=since_s, now_s=now_s) == whole.series("e", since_s=since_s, now_s=now_s)
    assert parts[0].snapshot(None, since_s=since_s, now_s=now_s).keys() <= {"e"}


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
