"""Series in PostgreSQL: what several machines measure adds up, within bounds, and a lost database stops nothing."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.series.buffered import PRUNE_S
from headrace.platform.cloudwatch.series.database import DatabaseSeries
from tests.postgresql import new_database, postgresql_server

__all__ = ["new_database", "postgresql_server"]

T0 = 1_700_000_000.0 // 3600 * 3600
M = Metric(namespace="AWS/SageMaker", name="Invocations", dimensions=(("EndpointName", "é"), ("VariantName", "v")))

Open = Callable[..., DatabaseSeries]


class Clock:
    """A clock that stands still until it is moved."""

    now_s = T0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(new_database: Callable[[], str], clock: Clock) -> Iterator[Open]:
    """Opens the series of one database, as each machine does."""
    where = new_database()
    with contextlib.ExitStack() as stack:

        def open_series(*, max_bytes: int = 2**30, max_series: int = 100) -> DatabaseSeries:
            series = DatabaseSeries(where, max_bytes=max_bytes, max_series=max_series, clock=clock)
            stack.callback(series.close)
            return series

        yield open_series


def read(series: DatabaseSeries, metric: Metric = M, period_s: int = 60) -> list[Point]:
    return list(series.read(metric, start_s=T0, end_s=T0 + 7200, period_s=period_s))


def test_measurements_of_all_machines_add_up(opened: Open) -> None:
    machines = [opened() for _ in range(3)]
    for number, series in enumerate(machines):
        for value in range(10):
            series.put(M, value * 10 + number, now_s=T0 + value, unit="Count")
    with ThreadPoolExecutor() as threads:
        list(threads.map(DatabaseSeries.flush, machines))
    machines[0].put(M, 1000, now_s=T0 + 1)
    for series in machines[1:]:
        (point,) = read(series)
        assert (point.count, point.minimum, point.maximum, point.unit) == (30, 0, 92, "Count")
        assert sorted(value for value, _ in point.values) == sorted(v * 10 + n for v in range(10) for n in range(3))
        assert [point.count for point in read(series, period_s=10)] == [30]
    assert read(machines[0])[0].maximum == 1000, "what is not flushed counts too"
    machines[0].flush()
    assert read(machines[1])[0].count == 31


def test_metrics_are_listed_by_namespace_name_and_time(opened: Open) -> None:
    other = Metric(namespace="Own", name="Depth", dimensions=())
    series = opened()
    series.put(M, 1, now_s=T0)
    series.put(other, 1, now_s=T0 + 100)
    series.flush()
    second = opened()
    assert second.list() == [M, other]
    assert second.list(namespace="Own") == second.list(name="Depth") == second.list(since_s=T0 + 50) == [other]
    assert second.list(namespace="Own", name="Invocations") == []


def test_points_expire_and_large_series_shorten_the_retention(opened: Open, clock: Clock) -> None:
    series = opened()
    series.put(M, 1, now_s=T0)
    series.flush()
    clock.now_s += 4 * 3600.0
    series.flush()
    assert read(series, period_s=10) == [], "the finest are kept for three hours"
    assert len(read(series)) == 1
    clock.now_s = T0 + 500 * 86400
    series.flush()
    assert opened().list() == []

    small = opened(max_bytes=10_000)
    start_s = clock.now_s
    for minute in range(800):
        small.put(M, 1, now_s=start_s + minute * 60)
    clock.now_s += 800 * 60
    for _ in range(20):
        clock.now_s += PRUNE_S
        small.flush()
    kept = small.read(M, start_s=start_s, end_s=clock.now_s, period_s=60)
    assert 100 < len(kept) < 300
    assert kept[-1].start_s == start_s + 799 * 60


def test_a_series_beyond_the_maximum_replaces_an_idle_one_only(opened: Open) -> None:
    metrics = [Metric(namespace="n", name=str(number), dimensions=()) for number in range(4)]
    series = opened(max_series=2)
    for metric, at_s in ((metrics[0], T0), (metrics[1], T0 + 3600)):
        series.put(metric, 1, now_s=at_s)
        series.flush()
    with capture_logs() as logs:
        for metric in metrics[2:]:
            series.put(metric, 1, now_s=T0 + 3601)
            series.flush()
        series.put(metrics[1], 1, now_s=T0 + 3601)
        series.flush()
    assert {metric.name for metric in opened().list()} == {"1", "2"}
    assert sum(point.count for point in read(series, metrics[1])) == 2
    assert [log["event"] for log in logs] == ["metrics.file_failed"]


def test_measurements_stay_in_memory_while_the_database_fails(opened: Open, clock: Clock) -> None:
    series = opened()
    series.put(M, 1, now_s=T0)
    series.flush()
    with capture_logs() as logs:
        rename(series, "headrace_points", "away")
        for _ in range(2):
            series.put(M, 1, now_s=T0)
            clock.now_s += PRUNE_S
            series.flush()
        assert sum(point.count for point in read(series)) == 2, "what is in memory"
        rename(series, "away", "headrace_points")
        series.flush()
    assert sum(point.count for point in read(opened())) == 3
    assert len([log for log in logs if log["event"] == "metrics.file_failed"]) == 1


def rename(series: DatabaseSeries, old: str, new: str) -> None:
    with series._engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))


def test_a_database_that_is_not_there_leaves_the_series_in_memory(clock: Clock, tmp_path: object) -> None:
    series = DatabaseSeries(f"postgresql://user@/none?host={tmp_path}", max_bytes=2**20, clock=clock)
    series.put(M, 1, now_s=T0)
    with capture_logs() as logs:
        series.flush()
        assert sum(point.count for point in read(series)) == 1
        assert series.list() == [M]
        series.close()
    assert len(logs) == 1
