"""
Series in a file of their own (SQLite): what was measured is collected in memory and written every few seconds.

kill -9 loses those few seconds. The file is worth less than the platform that runs: one that is damaged is laid aside
and begun anew, and one that cannot be written (a full disk) is tried again later, while what was measured meanwhile
stays in memory, within bounds.
"""

import asyncio
import json
import math
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.cloudwatch.metrics.buckets import Bucket, together
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.metrics.retention import TIERS, Tier, tier_of, whole_period
from headrace.cloudwatch.series.memory import IDLE_S, MAX_SERIES, Held, MemorySeries
from headrace.core.telemetry import get_logger

_T = TypeVar("_T")

FLUSH_S: Final = 5.0
"""Between two writes; so much is lost by kill -9."""
PRUNE_S: Final = 600.0
"""Between two searches for what is too old."""
_FORM: Final = 1
_SHRINK: Final = 0.8
"""What is kept is so much shorter after each look that finds the file too large; it grows back where there is room."""
_MIN_POINTS: Final = 360
"""That a series keeps of each length, however large the file is: alarms look at fewer."""
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS series(
  id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, dimensions TEXT NOT NULL,
  unit TEXT NOT NULL, newest_s REAL NOT NULL, UNIQUE(namespace, name, dimensions));
CREATE TABLE IF NOT EXISTS points(
  series INTEGER NOT NULL, period_s INTEGER NOT NULL, number INTEGER NOT NULL, count REAL NOT NULL, total REAL NOT NULL,
  minimum REAL NOT NULL, maximum REAL NOT NULL, measured BLOB NOT NULL,
  PRIMARY KEY(series, period_s, number)) WITHOUT ROWID;
PRAGMA user_version = {_FORM};
"""
_COLUMNS: Final = "number, count, total, minimum, maximum, measured"


class FileSeries:
    """A `StatisticSink` and a `SeriesReader` for any thread. Reading waits for the disk; measuring never does."""

    def __init__(
        self, path: Path, *, max_bytes: int, max_series: int = MAX_SERIES, clock: Callable[[], float] = time.time
    ) -> None:
        """
        Open the file, or make it.

        Args:
            path: of the file.
            max_bytes: how large it may become, about; then points are kept for a shorter time.
            max_series: how many different metrics are kept.
            clock: seconds since 1970.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._max_series = max_series
        self._clock = clock
        self._new = MemorySeries(max_series=max_series)
        """What was measured since the last write."""
        self._lock = threading.Lock()
        self._share = 1.0
        """Of the time that CloudWatch keeps points, as far as the file has room."""
        self._pruned_s = -math.inf
        self._fault = ""
        self._file: sqlite3.Connection | None = None
        with self._lock:
            self._guarded(lambda _: None)

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        """Measure `value`, `count` times."""
        self._new.put(metric, value, now_s=now_s, count=count, unit=unit)

    def put_point(self, metric: Metric, point: Point) -> None:
        """Take what was put together elsewhere (a statistic set); it counts in the periods that hold its start."""
        self._new.put_point(metric, point)

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """The points of [start_s, end_s), oldest first; the first one may begin before `start_s`, which it holds."""
        period_s = whole_period(period_s)
        tier_s = TIERS[tier_of(period_s)].period_s
        begin_s = start_s // period_s * period_s

        def written(file: sqlite3.Connection) -> list[Point]:
            return _read(file, metric, tier_s, int(begin_s // tier_s), math.ceil(end_s / tier_s))

        with self._lock:
            old = self._guarded(written) or []
            new = self._new.read(metric, start_s=begin_s, end_s=end_s, period_s=tier_s)
        return together([*old, *new], period_s=period_s)

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        """The metrics that are kept and were measured at `since_s` or later, by namespace, name and dimensions."""
        with self._lock:
            old = self._guarded(lambda file: _list(file, namespace, name, since_s)) or []
            new = self._new.list(namespace=namespace, name=name, since_s=since_s)
        return sorted({*old, *new}, key=lambda metric: (metric.namespace, metric.name, metric.dimensions))

    async def run(self) -> None:
        """Write every few seconds, until cancelled; then `close`."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await asyncio.to_thread(self.flush)
            except Exception:  # noqa: BLE001 -- an edge: no bug in here may stop the platform
                get_logger().exception("metrics.crashed")

    def flush(self) -> None:
        """Write what was measured."""
        with self._lock:
            taken = self._new.take()
            if taken and self._guarded(lambda file: self._write(file, taken)) is None:
                self._new.give_back(taken)
            if self._clock() - self._pruned_s >= PRUNE_S:
                self._pruned_s = self._clock()
                self._guarded(self._prune)

    def close(self) -> None:
        """Write the rest and let go of the file; what is measured later is kept in memory only."""
        self.flush()
        with self._lock:
            self._close_file()

    def _guarded(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Do something with the file; None if that is not possible now. The lock is held."""
        try:
            if self._file is None:
                self._file = _opened(self._path)
            done = work(self._file)
        except sqlite3.Error as error:
            self._note(str(error))
            if isinstance(error, _Foreign) or _is_damage(error):
                self._lay_aside()
            else:
                self._roll_back()
            return None
        except OSError as error:
            self._note(error.strerror or str(error))
            return None
        self._fault = ""
        return done

    def _note(self, fault: str) -> None:
        """Log a fault once for as long as it is the same."""
        if fault != self._fault:
            self._fault = fault
            get_logger().error("metrics.file_failed", path=str(self._path), reason=fault)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._file is not None:
                self._file.rollback()

    def _lay_aside(self) -> None:
        """Begin anew; the damaged file stays beside the new one, until the next one is damaged."""
        self._close_file()
        with suppress(OSError):
            self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
        for ending in ("-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + ending).unlink()
        get_logger().warning("metrics.begun_anew", path=str(self._path))

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _write(self, file: sqlite3.Connection, taken: Mapping[Metric, Held]) -> bool:
        with file:
            file.execute("BEGIN IMMEDIATE")
            for metric, held in taken.items():
                number = self._series_id(file, metric, held)
                if number is not None:
                    for tier in range(len(TIERS)):
                        _merge(file, number, TIERS[tier].period_s, held.points(tier))
        return True

    def _series_id(self, file: sqlite3.Connection, metric: Metric, held: Held) -> int | None:
        """The number of a series, made if it is new; None if there are too many."""
        row = file.execute(
            "UPDATE series SET unit = ?, newest_s = max(newest_s, ?) "
            "WHERE namespace = ? AND name = ? AND dimensions = ? RETURNING id",
            (held.unit, held.newest_s, *_key(metric)),
        ).fetchone()
        if row is not None:
            return int(row[0])
        (num_series,) = file.execute("SELECT count(*) FROM series").fetchone()
        if num_series >= self._max_series and not _make_room(file, held.newest_s):
            self._note(f"there are {num_series} metrics already, which is all that are kept; new ones are dropped")
            return None
        made = file.execute(
            "INSERT INTO series(namespace, name, dimensions, unit, newest_s) VALUES(?, ?, ?, ?, ?)",
            (*_key(metric), held.unit, held.newest_s),
        )
        return made.lastrowid

    def _prune(self, file: sqlite3.Connection) -> bool:
        """Drop what is too old; where the file is too large, more of it."""
        num_pages, num_free, page_bytes = (
            file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        size = (num_pages - num_free) * page_bytes
        if size > self._max_bytes:
            self._share *= _SHRINK
        elif size < self._max_bytes / 2:
            self._share = min(1.0, self._share / _SHRINK)
        now_s = self._clock()
        with file:
            file.execute("BEGIN IMMEDIATE")
            for tier in TIERS:
                before = int((now_s - self._kept_s(tier)) // tier.period_s)
                file.execute("DELETE FROM points WHERE period_s = ? AND number < ?", (tier.period_s, before))
            file.execute("DELETE FROM series WHERE newest_s < ?", (now_s - self._kept_s(TIERS[-1]),))
        file.execute("PRAGMA incremental_vacuum").fetchall()
        return True

    def _kept_s(self, tier: Tier) -> float:
        return max(tier.kept_s * self._share, min(tier.kept_s, tier.period_s * _MIN_POINTS))


class _Foreign(sqlite3.DatabaseError):
    """Another program's file, or one of a newer Headrace."""


def _opened(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    file = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        (form,) = file.execute("PRAGMA user_version").fetchone()
        (num_tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _check_form(form, is_new=not num_tables)
        if not num_tables:
            file.execute("PRAGMA auto_vacuum=INCREMENTAL")
        file.execute("PRAGMA journal_mode=WAL").fetchall()
        file.execute("PRAGMA synchronous=NORMAL")
        file.executescript(_SCHEMA)
    except BaseException:
        file.close()
        raise
    return file


def _check_form(form: int, *, is_new: bool) -> None:
    if form != _FORM and (form or not is_new):
        raise _Foreign(f"it has the form {form}; this Headrace reads the form {_FORM}")


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _key(metric: Metric) -> tuple[str, str, str]:
    return metric.namespace, metric.name, json.dumps(metric.dimensions)


def _read(file: sqlite3.Connection, metric: Metric, period_s: int, first: int, end: int) -> list[Point]:
    rows = file.execute(
        f"SELECT unit, {_COLUMNS} FROM points JOIN series ON series.id = points.series "  # noqa: S608 -- names of ours
        "WHERE namespace = ? AND name = ? AND dimensions = ? AND period_s = ? AND number >= ? AND number < ?",
        (*_key(metric), period_s, first, end),
    )
    return [_point(row[1:], period_s, row[0]) for row in rows]


def _list(file: sqlite3.Connection, namespace: str | None, name: str | None, since_s: float) -> list[Metric]:
    rows = file.execute(
        "SELECT namespace, name, dimensions FROM series "
        "WHERE newest_s >= ? AND (? IS NULL OR namespace = ?) AND (? IS NULL OR name = ?)",
        (since_s, namespace, namespace, name, name),
    )
    return [
        Metric(namespace=found[0], name=found[1], dimensions=tuple((key, value) for key, value in json.loads(found[2])))
        for found in rows
    ]


def _merge(file: sqlite3.Connection, series: int, period_s: int, points: Sequence[Point]) -> None:
    for point in points:
        number, bucket = int(point.start_s // period_s), Bucket()
        row = file.execute(
            f"SELECT {_COLUMNS} FROM points WHERE series = ? AND period_s = ? AND number = ?",  # noqa: S608
            (series, period_s, number),
        ).fetchone()
        if row is not None:
            bucket.merge(_point(row, period_s, point.unit))
        bucket.merge(point)
        measured = array("d", [number for pair in bucket.values() for number in pair]).tobytes()
        file.execute(
            f"INSERT OR REPLACE INTO points(series, period_s, {_COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (series, period_s, number, bucket.count, bucket.total, bucket.minimum, bucket.maximum, measured),
        )


def _point(row: Sequence[Any], period_s: int, unit: str) -> Point:
    number, count, total, minimum, maximum, measured = row
    flat = array("d")
    flat.frombytes(measured[: len(measured) // 16 * 16])
    return Point(
        start_s=number * period_s,
        count=count,
        total=total,
        minimum=minimum,
        maximum=maximum,
        values=tuple(zip(flat[::2], flat[1::2], strict=True)),
        unit=unit,
    )


def _make_room(file: sqlite3.Connection, now_s: float) -> bool:
    """Forget the series that was not measured for the longest time, if that is long."""
    row = file.execute("SELECT id, newest_s FROM series ORDER BY newest_s LIMIT 1").fetchone()
    if row is None or row[1] > now_s - IDLE_S:
        return False
    file.execute("DELETE FROM points WHERE series = ?", (row[0],))
    file.execute("DELETE FROM series WHERE id = ?", (row[0],))
    return True
