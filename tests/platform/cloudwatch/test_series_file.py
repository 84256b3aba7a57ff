"""Series in a file: what survives, what is bounded, and that a bad file stops nothing."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.series.buffered import PRUNE_S
from headrace.platform.cloudwatch.series.file import FileSeries

T0 = 1_700_000_000.0 // 3600 * 3600
M = Metric(namespace="AWS/SageMaker", name="Invocations", dimensions=(("EndpointName", "e"), ("VariantName", "v")))

Open = Callable[..., FileSeries]


class Clock:
    """Stands still until it is moved."""

    now_s = T0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.sqlite"


@pytest.fixture
def opened(path: Path, clock: Clock) -> Iterator[Open]:
    """Opens the file, and closes it at the end."""
    with contextlib.ExitStack() as stack:

        def open_series(*, max_bytes: int = 2**30, max_series: int = 100) -> FileSeries:
            series = FileSeries(path, max_bytes=max_bytes, max_series=max_series, clock=clock)
            stack.callback(series.close)
            return series

        yield open_series


def total(series: FileSeries, metric: Metric = M, period_s: int = 60, until_s: float = 7200) -> float:
    return sum(point.total for point in series.read(metric, start_s=T0, end_s=T0 + until_s, period_s=period_s))


def test_reading_merges_flushed_and_unflushed_measurements(opened: Open) -> None:
    series = opened()
    series.put(M, 3.0, now_s=T0 + 1, unit="Count")
    series.flush()
    series.put(M, 1.0, now_s=T0 + 2, unit="Count")
    series.put(M, 9.0, now_s=T0 + 61, unit="Count")
    for _ in range(2):
        first, second = series.read(M, start_s=T0, end_s=T0 + 120, period_s=60)
        assert (first.count, first.minimum, first.maximum, first.unit) == (2, 1, 3, "Count")
        assert first.values == ((1.0, 1.0), (3.0, 1.0))
        assert second.total == 9
        assert [p.start_s - T0 for p in series.read(M, start_s=T0, end_s=T0 + 99, period_s=10)] == [0, 60]
        series.flush()


def test_a_closed_file_is_read_again_after_a_restart(opened: Open, path: Path) -> None:
    series = opened()
    series.put(M, 3.0, now_s=T0)
    series.put_point(M, Point(start_s=T0, count=10, total=50, minimum=1, maximum=9))
    series.close()
    again = opened()
    assert again.list() == [M]
    assert [total(again, period_s=period_s) for period_s in (10, 60, 300, 3600)] == [53] * 4
    assert path.stat().st_mode & 0o077 == 0


def test_flushed_and_unflushed_metrics_are_listed_and_filtered(opened: Open) -> None:
    series, other = opened(), Metric(namespace="mine", name="a")
    series.put(M, 1.0, now_s=T0)
    series.flush()
    series.put(other, 1.0, now_s=T0 + 100)
    for _ in range(2):
        assert series.list() == [M, other]
        assert series.list(namespace="mine") == series.list(name="a") == series.list(since_s=T0 + 50) == [other]
        series.flush()


def test_points_expire_by_their_retention(opened: Open, clock: Clock) -> None:
    series = opened()
    series.put(M, 1.0, now_s=T0)
    series.flush()
    for days, kept in ((0.2, [60, 300, 3600]), (16, [300, 3600]), (64, [3600]), (460, [])):
        clock.now_s = T0 + days * 86_400
        series.flush()
        assert [period_s for period_s in (10, 60, 300, 3600) if total(series, period_s=period_s)] == kept
    assert not series.list()


def test_a_file_that_is_too_large_shortens_its_retention(opened: Open, clock: Clock) -> None:
    series = opened(max_bytes=100_000)
    clock.now_s = T0 + 60 * 2000
    for minute in range(2000):
        series.put(M, 1.0, now_s=T0 + 60 * minute)
    for _ in range(60):
        clock.now_s += PRUNE_S
        series.flush()
    assert total(series, period_s=60, until_s=120_000) < 1000
    assert total(series, period_s=3600, until_s=120_000) == 2000


def test_a_series_beyond_the_maximum_replaces_an_idle_one(opened: Open) -> None:
    series = opened(max_series=2)
    names = [Metric(namespace="n", name=name) for name in "abc"]
    for number, metric in enumerate(names):
        series.put(metric, 1.0, now_s=T0 + number)
        series.flush()
    assert series.list() == names[:2]
    series.put(names[2], 1.0, now_s=T0 + 4000)
    series.flush()
    assert series.list() == names[1:]


def test_the_maximum_of_series_is_logged_once_between_two_prunings(opened: Open, clock: Clock) -> None:
    series = opened(max_series=1)
    series.put(M, 1.0, now_s=T0)
    series.flush()

    def refuse() -> int:
        """Flush other metrics; return the number of faults that are logged."""
        with capture_logs() as logs:
            for name in "abc":
                series.put(Metric(namespace="n", name=name), 1.0, now_s=T0)
                series.flush()
        return len([entry for entry in logs if entry["event"] == "metrics.file_failed"])

    assert refuse() == 1
    assert refuse() == 0
    clock.now_s += PRUNE_S
    series.flush()
    assert refuse() == 1


def test_measurements_stay_in_memory_after_an_unexpected_failure(path: Path, clock: Clock) -> None:
    series = FileSeries(path, max_bytes=2**30, clock=clock)
    series.put(M, 3.0, now_s=T0)
    distant = Point(start_s=1e300, count=1, total=1, minimum=1, maximum=1)  # its period has no number in SQLite
    series.put_point(Metric(namespace="n", name="distant"), distant)
    with pytest.raises(OverflowError):
        series.flush()
    assert total(series) == 3
    assert series._new.take().keys() == {M, Metric(namespace="n", name="distant")}
    series.close()


@pytest.mark.parametrize("content", [b"this is not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_set_aside_and_replaced(opened: Open, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    series = opened()
    series.put(M, 1.0, now_s=T0)
    series.flush()
    assert total(series) == 1
    assert path.with_name("metrics.sqlite.damaged").read_bytes() == content
    assert sqlite_total(path) == 1


def test_a_file_that_is_damaged_while_open_is_replaced(opened: Open, path: Path) -> None:
    series = opened()
    for number in range(500):
        series.put(M, 1.0, now_s=T0 + 10 * number)
    series.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    again = opened()
    assert total(again) == 0
    again.put(M, 1.0, now_s=T0)
    again.flush()
    assert total(again) == 1


def test_a_file_of_a_newer_headrace_is_set_aside(opened: Open, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 99")
    series = opened()
    series.put(M, 1.0, now_s=T0)
    series.flush()
    assert sqlite_total(path) == 1
    assert path.with_name("metrics.sqlite.damaged").exists()


def test_measurements_stay_in_memory_while_the_disk_refuses_writes(opened: Open, path: Path) -> None:
    series = opened()
    series.put(M, 1.0, now_s=T0)
    series.flush()
    assert series._file is not None
    pages = series._file.execute("PRAGMA page_count").fetchone()[0]
    series._file.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite says of a full disk, without one
    many = [Metric(namespace="n", name=f"{number:0200}") for number in range(90)]
    for metric in (M, *many):
        series.put(metric, 2.0, now_s=T0)
    series.flush()
    assert total(series) == 3
    assert sqlite_total(path) == 1
    series._file.execute("PRAGMA max_page_count = 100000")
    series.flush()
    assert sqlite_total(path) == 3
    assert len(series.list()) == 91


def test_a_file_that_cannot_be_created_leaves_the_series_in_memory(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "not there"
    series = FileSeries(folder / "metrics.sqlite", max_bytes=2**20, clock=clock)
    series.put(M, 1.0, now_s=T0)
    series.flush()
    assert total(series) == 1
    folder.mkdir()
    series.flush()
    series.close()
    assert sqlite_total(folder / "metrics.sqlite") == 1


def test_kill_9_loses_only_unflushed_measurements(opened: Open, path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from headrace.platform.cloudwatch.metrics.metric import Metric\n"
        "from headrace.platform.cloudwatch.series.file import FileSeries\n"
        f"series = FileSeries(Path(sys.argv[1]), max_bytes=2**30, clock=lambda: {T0})\n"
        f"metric = Metric(namespace='n', name='m')\nfor number in range(100):\n"
        f"    series.put(metric, 1.0, now_s={T0} + number)\n    series.flush()\n"
        "series.put(metric, 1.0, now_s=0)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env=dict(os.environ))
    assert ended.returncode == -signal.SIGKILL
    assert total(opened(), Metric(namespace="n", name="m")) == 100


def sqlite_total(path: Path) -> float:
    """The sum of the metric M that another reader of the file sees."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        query = "SELECT sum(total) FROM points JOIN series ON id = series WHERE period_s = 3600 AND name = ?"
        (found,) = file.execute(query, (M.name,)).fetchone()
    return float(found)
