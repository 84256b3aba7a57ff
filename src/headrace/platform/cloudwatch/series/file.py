"""
Series in a SQLite file of their own.

A damaged file is set aside and replaced, and one that cannot be written (a full disk) is retried at the next flush.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.metrics.metric import TIERS, Bucket, Metric, Point
from headrace.platform.cloudwatch.series.buffered import BufferedSeries, packed_values, stored_point
from headrace.platform.cloudwatch.series.memory import IDLE_S, MAX_SERIES, SeriesData

_T = TypeVar("_T")

_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS series(
  id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, dimensions TEXT NOT NULL,
  unit TEXT NOT NULL, newest_s REAL NOT NULL, UNIQUE(namespace, name, dimensions));
CREATE TABLE IF NOT EXISTS points(
  series INTEGER NOT NULL, period_s INTEGER NOT NULL, number INTEGER NOT NULL, count REAL NOT NULL, total REAL NOT NULL,
  minimum REAL NOT NULL, maximum REAL NOT NULL, measured BLOB NOT NULL,
  PRIMARY KEY(series, period_s, number)) WITHOUT ROWID;
PRAGMA user_version = {_SCHEMA_VERSION};
"""
_CACHE_KIB: Final = 512
"""
Pages that SQLite keeps in memory. With its default of 2 MB the platform's memory grows for half an hour, until the
cache is full: 3.5 MiB for 60 metrics instead of 2.0. A flush takes a fifth more CPU time (26 ms to 32 ms).
"""
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_COLUMNS: Final = "number, count, total, minimum, maximum, measured"


class FileSeries(BufferedSeries):
    """Series in a file, which several processes of a machine share."""

    def __init__(
        self, path: Path, *, max_bytes: int, max_series: int = MAX_SERIES, clock: Callable[[], float] = time.time
    ) -> None:
        """Open or create the file."""
        super().__init__(max_bytes=max_bytes, max_series=max_series, clock=clock)
        self._path = path
        self._file: sqlite3.Connection | None = None
        with self._lock:
            self._guarded(lambda _: None)

    def _stored(self, metric: Metric, period_s: int, first: int, end: int) -> Sequence[Point]:
        return self._guarded(lambda file: _read(file, metric, period_s, first, end)) or ()

    def _stored_metrics(self, namespace: str | None, name: str | None, since_s: float) -> Sequence[Metric]:
        return self._guarded(lambda file: _list(file, namespace, name, since_s)) or ()

    def _guarded(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run a query on the file, or return None if that is not possible now; the caller holds the lock."""
        try:
            if self._file is None:
                self._file = _opened(self._path)
            done = work(self._file)
        except sqlite3.Error as error:
            self._note(str(self._path), str(error))
            if isinstance(error, _ForeignFile) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._replace_file()
            elif self._file is not None:
                with suppress(sqlite3.Error):
                    self._file.rollback()
            return None
        except OSError as error:
            self._note(str(self._path), error.strerror or str(error))
            return None
        self._note(str(self._path), "")
        return done

    def _replace_file(self) -> None:
        """Start a new file; the damaged one is kept beside it until the next one is damaged."""
        self._disconnect()
        with suppress(OSError):
            self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
        for ending in ("-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + ending).unlink()
        get_logger().warning("metrics.file_replaced", path=str(self._path))

    def _disconnect(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _write(self, taken: Mapping[Metric, SeriesData]) -> bool:
        return bool(self._guarded(partial(self._merge_all, taken)))

    def _merge_all(self, taken: Mapping[Metric, SeriesData], file: sqlite3.Connection) -> bool:
        with file:
            file.execute("BEGIN IMMEDIATE")
            for metric, data in taken.items():
                number = self._series_id(file, metric, data)
                if number is not None:
                    for tier in range(len(TIERS)):
                        _merge(file, number, TIERS[tier].period_s, data.points(tier))
        return True

    def _series_id(self, file: sqlite3.Connection, metric: Metric, data: SeriesData) -> int | None:
        """Return the id of a series, creating it if need be; None if there are too many."""
        row = file.execute(
            "UPDATE series SET unit = ?, newest_s = max(newest_s, ?) "
            "WHERE namespace = ? AND name = ? AND dimensions = ? RETURNING id",
            (data.unit, data.newest_s, *_key(metric)),
        ).fetchone()
        if row is not None:
            return int(row[0])
        (num_series,) = file.execute("SELECT count(*) FROM series").fetchone()
        if num_series >= self._max_series and not _make_room(file, data.newest_s):
            self._note_full(str(self._path), num_series)
            return None
        made = file.execute(
            "INSERT INTO series(namespace, name, dimensions, unit, newest_s) VALUES(?, ?, ?, ?, ?)",
            (*_key(metric), data.unit, data.newest_s),
        )
        return made.lastrowid

    def _prune(self) -> None:
        self._guarded(self._prune_file)

    def _prune_file(self, file: sqlite3.Connection) -> None:
        num_pages, num_free, page_bytes = (
            file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        self._adapt_to((num_pages - num_free) * page_bytes)  # free pages are reused, and given back by the vacuum below
        now_s = self._clock()
        with file:
            file.execute("BEGIN IMMEDIATE")
            for tier in TIERS:
                before = int((now_s - self._kept_s(tier)) // tier.period_s)
                file.execute("DELETE FROM points WHERE period_s = ? AND number < ?", (tier.period_s, before))
            file.execute("DELETE FROM series WHERE newest_s < ?", (now_s - self._kept_s(TIERS[-1]),))
        file.execute("PRAGMA incremental_vacuum").fetchall()


class _ForeignFile(sqlite3.DatabaseError):
    """A file of another program, or of a newer Headrace."""


def _opened(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    file = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        (num_tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _check_version(version, is_new=not num_tables)
        if not num_tables:
            file.execute("PRAGMA auto_vacuum=INCREMENTAL")
        file.execute("PRAGMA journal_mode=WAL").fetchall()
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        file.executescript(_SCHEMA)
    except BaseException:
        file.close()
        raise
    return file


def _check_version(version: int, *, is_new: bool) -> None:
    if version != _SCHEMA_VERSION and (version or not is_new):
        raise _ForeignFile(f"its schema version is {version}; this Headrace reads version {_SCHEMA_VERSION}")


def _key(metric: Metric) -> tuple[str, str, str]:
    return metric.namespace, metric.name, json.dumps(metric.dimensions)


def _read(file: sqlite3.Connection, metric: Metric, period_s: int, first: int, end: int) -> list[Point]:
    rows = file.execute(
        f"SELECT unit, {_COLUMNS} FROM points JOIN series ON series.id = points.series "  # noqa: S608 -- constants of this module
        "WHERE namespace = ? AND name = ? AND dimensions = ? AND period_s = ? AND number >= ? AND number < ?",
        (*_key(metric), period_s, first, end),
    )
    return [stored_point(row[1:], period_s, row[0]) for row in rows]


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
            bucket.merge(stored_point(row, period_s, point.unit))
        bucket.merge(point)
        measured = packed_values(bucket.values())
        file.execute(
            f"INSERT OR REPLACE INTO points(series, period_s, {_COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (series, period_s, number, bucket.count, bucket.total, bucket.minimum, bucket.maximum, measured),
        )


def _make_room(file: sqlite3.Connection, now_s: float) -> bool:
    """Delete the series without measurements for the longest time, if it is idle."""
    row = file.execute("SELECT id, newest_s FROM series ORDER BY newest_s LIMIT 1").fetchone()
    if row is None or row[1] > now_s - IDLE_S:
        return False
    file.execute("DELETE FROM points WHERE series = ?", (row[0],))
    file.execute("DELETE FROM series WHERE id = ?", (row[0],))
    return True
