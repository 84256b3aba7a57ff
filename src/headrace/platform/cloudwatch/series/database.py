"""
Series in the PostgreSQL database of a platform on several machines, each of which adds what it has measured.

A flush merges its points under a lock, with a few statements however many they are: the database may be a network away.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from headrace.platform.cloudwatch.metrics.metric import TIERS, Bucket, Metric, Point
from headrace.platform.cloudwatch.series.buffered import BufferedSeries, packed_values, stored_point
from headrace.platform.cloudwatch.series.memory import IDLE_S, MAX_SERIES, SeriesData
from headrace.platform.state.database import engine_of, first_line, shown_url, url_of
from headrace.platform.state.schema import creating

_T = TypeVar("_T")

_WAIT_S: Final = 5
"""Timeout of a statement: readers wait for the database, too."""
_FLUSH_LOCK: Final = 7_233_428_922
"""Key of the advisory lock under which points are merged."""
_POINT_BYTES: Final = 100
"""Approximate size of a stored point without its values."""

_METADATA: Final = sa.MetaData()
_SERIES: Final = sa.Table(
    "headrace_series",
    _METADATA,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("namespace", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("dimensions", sa.String, nullable=False),
    sa.Column("unit", sa.String, nullable=False),
    sa.Column("newest_s", sa.Double, nullable=False),
    sa.UniqueConstraint("namespace", "name", "dimensions"),
)
_POINTS: Final = sa.Table(
    "headrace_points",
    _METADATA,
    sa.Column("series", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("period_s", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.Double, nullable=False),
    sa.Column("total", sa.Double, nullable=False),
    sa.Column("minimum", sa.Double, nullable=False),
    sa.Column("maximum", sa.Double, nullable=False),
    sa.Column("measured", sa.LargeBinary, nullable=False),
)
_MEASURED: Final = tuple(_POINTS.c[name] for name in ("number", "count", "total", "minimum", "maximum", "measured"))
_PUT_SERIES: Final = sa.text(
    "INSERT INTO headrace_series (namespace, name, dimensions, unit, newest_s) "
    "SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:names AS text[]), CAST(:dimensions AS text[]), "
    "CAST(:units AS text[]), CAST(:newest_s AS float8[])) "
    "ON CONFLICT (namespace, name, dimensions) DO UPDATE SET unit = excluded.unit, "
    "newest_s = greatest(headrace_series.newest_s, excluded.newest_s) RETURNING id, namespace, name, dimensions"
)
_READ_POINTS: Final = sa.text(
    "SELECT p.series, p.period_s, p.number, p.count, p.total, p.minimum, p.maximum, p.measured FROM headrace_points p "
    "JOIN unnest(CAST(:series AS int8[]), CAST(:period_s AS int8[]), CAST(:number AS int8[])) "
    "AS wanted(series, period_s, number) USING (series, period_s, number)"
)
_PUT_POINTS: Final = sa.text(
    "INSERT INTO headrace_points (series, period_s, number, count, total, minimum, maximum, measured) "
    "SELECT * FROM unnest(CAST(:series AS int8[]), CAST(:period_s AS int8[]), CAST(:number AS int8[]), "
    "CAST(:count AS float8[]), CAST(:total AS float8[]), CAST(:minimum AS float8[]), CAST(:maximum AS float8[]), "
    "CAST(:measured AS bytea[])) "
    "ON CONFLICT (series, period_s, number) DO UPDATE SET count = excluded.count, total = excluded.total, "
    "minimum = excluded.minimum, maximum = excluded.maximum, measured = excluded.measured"
)

_Place = tuple[int, int, int]
"""Series, seconds of the period, and its number."""


class DatabaseSeries(BufferedSeries):
    """Series in a database, which all machines of a platform share."""

    def __init__(
        self, where: str, *, max_bytes: int, max_series: int = MAX_SERIES, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare the series in a database; the first use connects, and creates the tables."""
        super().__init__(max_bytes=max_bytes, max_series=max_series, clock=clock)
        url = url_of(where)
        self._engine = engine_of(url, num_kept=1, wait_s=_WAIT_S)
        self._shown = shown_url(url)
        self._is_set_up = False

    def _stored(self, metric: Metric, period_s: int, first: int, end: int) -> Sequence[Point]:
        number = _POINTS.c.number
        wanted = (
            sa.select(_SERIES.c.unit, *_MEASURED)
            .join(_SERIES, _SERIES.c.id == _POINTS.c.series)
            .where(_is(metric), _POINTS.c.period_s == period_s, number >= first, number < end)
        )

        def read(connection: sa.Connection) -> list[Point]:
            return [stored_point(row[1:], period_s, row.unit) for row in connection.execute(wanted)]

        return self._guarded(read) or ()

    def _stored_metrics(self, namespace: str | None, name: str | None, since_s: float) -> Sequence[Metric]:
        given = [column == text for column, text in ((_SERIES.c.namespace, namespace), (_SERIES.c.name, name)) if text]
        wanted = sa.select(_SERIES).where(_SERIES.c.newest_s >= since_s, *given)

        def read(connection: sa.Connection) -> list[Metric]:
            return [_metric(row) for row in connection.execute(wanted)]

        return self._guarded(read) or ()

    def _write(self, taken: Mapping[Metric, SeriesData]) -> bool:
        def write(connection: sa.Connection) -> bool:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_FLUSH_LOCK)))
            ids = self._put_series(connection, taken)
            new: dict[_Place, Point] = {}
            for metric, number in ids.items():
                for tier, points in enumerate(map(taken[metric].points, range(len(TIERS)))):
                    period_s = TIERS[tier].period_s
                    new |= {(number, period_s, int(point.start_s // period_s)): point for point in points}
            _merge(connection, new)
            return True

        return bool(self._guarded(write))

    def _put_series(self, connection: sa.Connection, taken: Mapping[Metric, SeriesData]) -> Mapping[Metric, int]:
        """Return the ids of series, creating those that do not exist; not of new ones beyond the maximum."""
        num_series = connection.execute(sa.select(sa.func.count()).select_from(_SERIES)).scalar_one()
        kept = list(taken)
        if num_series + len(kept) > self._max_series:
            known = {_metric(row) for row in connection.execute(sa.select(_SERIES))}
            new = [metric for metric in kept if metric not in known]
            newest_s = max(data.newest_s for data in taken.values())
            room = self._max_series - num_series
            room += _make_room(connection, len(new) - room, newest_s) if len(new) > room else 0
            if len(new) > room:
                self._note_full(self._shown, num_series)
            kept = [metric for metric in kept if metric in known] + new[: max(0, room)]
        rows = connection.execute(
            _PUT_SERIES,
            {
                "namespaces": [metric.namespace for metric in kept],
                "names": [metric.name for metric in kept],
                "dimensions": [json.dumps(metric.dimensions) for metric in kept],
                "units": [taken[metric].unit for metric in kept],
                "newest_s": [float(taken[metric].newest_s) for metric in kept],
            },
        )
        return {_metric(row): row.id for row in rows}

    def _prune(self) -> None:
        def prune(connection: sa.Connection) -> None:
            values = sa.func.coalesce(sa.func.sum(sa.func.octet_length(_POINTS.c.measured)), 0)
            num_points, num_bytes = connection.execute(sa.select(sa.func.count(), values).select_from(_POINTS)).one()
            self._adapt_to(num_points * _POINT_BYTES + float(num_bytes))
            now_s = self._clock()
            for tier in TIERS:
                before = int((now_s - self._kept_s(tier)) // tier.period_s)
                is_old = sa.and_(_POINTS.c.period_s == tier.period_s, _POINTS.c.number < before)
                connection.execute(sa.delete(_POINTS).where(is_old))
            connection.execute(sa.delete(_SERIES).where(_SERIES.c.newest_s < now_s - self._kept_s(TIERS[-1])))

        self._guarded(prune)

    def _disconnect(self) -> None:
        self._engine.dispose()

    def _guarded(self, work: Callable[[sa.Connection], _T]) -> _T | None:
        """Do work in a transaction, or return None if that is not possible now."""
        try:
            if not self._is_set_up:
                with creating(self._engine, _METADATA):
                    self._is_set_up = True
            with self._engine.begin() as connection:
                done = work(connection)
        except sa.exc.SQLAlchemyError as error:
            self._note(self._shown, first_line(error))
            return None
        self._note(self._shown, "")
        return done


def _is(metric: Metric) -> sa.ColumnElement[bool]:
    is_named = sa.and_(_SERIES.c.namespace == metric.namespace, _SERIES.c.name == metric.name)
    return sa.and_(is_named, _SERIES.c.dimensions == json.dumps(metric.dimensions))


def _metric(row: Any) -> Metric:
    dimensions = tuple((key, value) for key, value in json.loads(row.dimensions))
    return Metric(namespace=row.namespace, name=row.name, dimensions=dimensions)


def _merge(connection: sa.Connection, new: Mapping[_Place, Point]) -> None:
    """Merge points into the stored ones."""
    places = {"series": [place[0] for place in new], "period_s": [place[1] for place in new]}
    places["number"] = [place[2] for place in new]
    buckets = {place: Bucket() for place in new}
    for row in connection.execute(_READ_POINTS, places):
        place = (row.series, row.period_s, row.number)
        buckets[place].merge(stored_point(row[2:], row.period_s, new[place].unit))
    for place, bucket in buckets.items():
        bucket.merge(new[place])
    merged = list(buckets.values())
    sums = ("count", "total", "minimum", "maximum")  # floats: the driver sends no list with an integer, too
    columns = {name: [float(getattr(bucket, name)) for bucket in merged] for name in sums}
    connection.execute(_PUT_POINTS, {**places, **columns, "measured": [packed_values(b.values()) for b in merged]})


def _make_room(connection: sa.Connection, num_wanted: int, now_s: float) -> int:
    """Delete the series that have been idle for longest; return how many, at most `num_wanted`."""
    idle = sa.select(_SERIES.c.id).where(_SERIES.c.newest_s <= now_s - IDLE_S).order_by(_SERIES.c.newest_s)
    ids = connection.execute(idle.limit(num_wanted)).scalars().all()
    connection.execute(sa.delete(_POINTS).where(_POINTS.c.series.in_(ids)))
    connection.execute(sa.delete(_SERIES).where(_SERIES.c.id.in_(ids)))
    return len(ids)
