"""Series in memory."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.series.memory import MemorySeries

T0 = 1_700_000_000.0 // 3600 * 3600


def metric(name: str = "Invocations", **dimensions: str) -> Metric:
    return Metric(namespace="AWS/SageMaker", name=name, dimensions=tuple(sorted(dimensions.items())))


def counts(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [(point.start_s - T0, point.total) for point in points]


def test_measurements_are_read_in_periods_aligned_to_1970() -> None:
    series = MemorySeries()
    for second in (0, 5, 12, 65, 3700):
        series.put(metric(), 1.0, now_s=T0 + second)

    def read(period_s: int) -> list[tuple[float, float]]:
        return counts(series.read(metric(), start_s=T0, end_s=T0 + 7200, period_s=period_s))

    assert read(10) == read(1) == [(0, 2), (10, 1), (60, 1), (3700, 1)]
    assert read(30) == [(0, 3), (60, 1), (3690, 1)]
    assert read(60) == [(0, 3), (60, 1), (3660, 1)]
    assert read(300) == [(0, 4), (3600, 1)]
    assert read(3600) == [(0, 4), (3600, 1)]


def test_a_range_begins_with_the_period_that_contains_its_start_and_excludes_its_end() -> None:
    series = MemorySeries()
    for second in (0, 60, 120):
        series.put(metric(), 1.0, now_s=T0 + second)
    assert counts(series.read(metric(), start_s=T0 + 59, end_s=T0 + 120, period_s=60)) == [(0, 1), (60, 1)]


def test_late_measurements_count_in_their_own_period() -> None:
    series = MemorySeries()
    series.put(metric(), 1.0, now_s=T0 + 600)
    series.put(metric(), 5.0, now_s=T0, count=2, unit="Count")
    (first, _) = series.read(metric(), start_s=T0, end_s=T0 + 700, period_s=60)
    assert (first.total, first.count, first.values, first.unit) == (10, 2, ((5.0, 2.0),), "Count")


def test_a_statistic_set_is_kept_unchanged() -> None:
    series = MemorySeries()
    series.put_point(metric(), Point(start_s=T0 + 3, count=10, total=50, minimum=1, maximum=9, unit="Seconds"))
    series.put(metric(), 20.0, now_s=T0 + 4, unit="Seconds")
    (point,) = series.read(metric(), start_s=T0, end_s=T0 + 10, period_s=10)
    assert (point.count, point.total, point.minimum, point.maximum, point.values) == (11, 70, 1, 20, ())


@pytest.mark.parametrize(("value", "count"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan)])
def test_values_that_are_not_numbers_are_dropped(value: float, count: float) -> None:
    series = MemorySeries()
    series.put(metric(), value, now_s=T0, count=count)
    assert not series.list()
    assert series.num_refused == 1


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_aggregated_points_that_are_not_numbers_are_dropped(number: float) -> None:
    series = MemorySeries()
    point = Point(start_s=T0, count=1, total=1, minimum=1, maximum=1)
    points = [
        replace(point, start_s=number),
        replace(point, count=number),
        replace(point, total=number),
        replace(point, minimum=number),
        replace(point, maximum=number),
        replace(point, values=((number, 1.0),)),
    ]
    for bad in points:
        series.put_point(metric(), bad)
    assert not series.list()
    assert series.num_refused == len(points)


def test_fine_points_expire_before_coarse_ones() -> None:
    series = MemorySeries()
    for ten_seconds in range(2000):
        series.put(metric(), 1.0, now_s=T0 + 10 * ten_seconds)
    fine = series.read(metric(), start_s=T0, end_s=T0 + 20_000, period_s=10)
    assert 1080 <= len(fine) <= 1080 * 1.1 + 1
    assert fine[-1].start_s == T0 + 19_990
    assert sum(point.count for point in series.read(metric(), start_s=T0, end_s=T0 + 20_000, period_s=60)) == 2000


def test_beyond_the_maximum_number_of_points_the_finest_are_dropped() -> None:
    series = MemorySeries(max_points=500)
    for ten_seconds in range(1000):
        series.put(metric(), 1.0, now_s=T0 + 10 * ten_seconds)
        series.list()
    assert sum(point.count for point in series.read(metric(), start_s=T0, end_s=T0 + 10_000, period_s=3600)) == 1000
    held = series.take()[metric()]
    assert sum(map(len, held.tiers)) <= 500


def test_a_series_beyond_the_maximum_replaces_an_idle_one_only() -> None:
    series = MemorySeries(max_series=2)
    series.put(metric("a"), 1.0, now_s=T0)
    series.put(metric("b"), 1.0, now_s=T0 + 3000)
    series.put(metric("c"), 1.0, now_s=T0 + 3000)
    assert [listed.name for listed in series.list()] == ["a", "b"]
    assert series.num_refused == 1
    series.put(metric("c"), 1.0, now_s=T0 + 3700)
    assert [listed.name for listed in series.list()] == ["b", "c"], "a was idle for more than an hour"


def test_metrics_are_listed_by_namespace_name_and_time_of_last_measurement() -> None:
    series = MemorySeries()
    series.put(metric("b", EndpointName="x"), 1.0, now_s=T0)
    series.put(metric("b"), 1.0, now_s=T0)
    series.put(metric("a"), 1.0, now_s=T0 + 100)
    series.put(Metric(namespace="mine", name="a"), 1.0, now_s=T0)
    assert [(m.namespace, m.name, m.dimensions) for m in series.list(name="a")] == [
        ("AWS/SageMaker", "a", ()),
        ("mine", "a", ()),
    ]
    assert [m.dimensions for m in series.list(namespace="AWS/SageMaker", name="b")] == [(), (("EndpointName", "x"),)]
    assert [m.name for m in series.list(since_s=T0 + 50)] == ["a"]


def test_taking_series_and_giving_them_back_changes_nothing() -> None:
    series = MemorySeries()
    series.put(metric(), 1.0, now_s=T0)
    taken = series.take()
    assert not series.list()
    series.put(metric(), 2.0, now_s=T0)
    series.give_back(taken)
    (point,) = series.read(metric(), start_s=T0, end_s=T0 + 60, period_s=60)
    assert (point.count, point.total, point.values) == (2, 3, ((1.0, 1.0), (2.0, 1.0)))


def test_a_long_queue_is_folded_without_a_reader() -> None:
    series = MemorySeries()
    for number in range(20_000):
        series.put(metric(), 1.0, now_s=T0 + number)
    assert len(series._queue) <= 4096


def test_concurrent_threads_lose_no_measurements() -> None:
    series, num, rounds = MemorySeries(), 4, 3000

    def measure() -> None:
        for _ in range(rounds):
            series.put(metric(), 1.0, now_s=T0)

    threads = [threading.Thread(target=measure) for _ in range(num)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        series.read(metric(), start_s=T0, end_s=T0 + 1, period_s=60)
    for thread in threads:
        thread.join()
    (point,) = series.read(metric(), start_s=T0, end_s=T0 + 1, period_s=60)
    assert point.count == num * rounds
