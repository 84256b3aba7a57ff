"""
Blobs: bytes by space and key, in parts, for what is too large, too short-lived or too often written for a record.

With PostgreSQL the table is beside the records, so that all machines of a platform have it; with SQLite it is a file of
its own, because each write to the file of the records makes all processes read them again. A write that has returned
survives kill -9 and a power cut. Writes of several threads that arrive together share a transaction, and so the wait
for the disk. All methods block on SQL.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Final

import msgspec
import sqlalchemy as sa

from headrace.core.errors import Unavailable
from headrace.platform.state.database import engine_of, first_line, is_sqlite, shown_url, url_of
from headrace.platform.state.schema import check_term, creating

_METADATA: Final = sa.MetaData()
_BLOBS: Final = sa.Table(
    "headrace_blobs",
    _METADATA,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("part", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
_KEYS_AT_ONCE: Final = 500
"""Keys in one statement: SQLite takes at most 32,766 parameters, and PostgreSQL plans long lists slowly."""

_WAIT_S: Final = 5
"""Timeout of a statement: a request must know soon that its machine was cut off from the database."""
_THREADS: Final = 8
_ROWS_AT_ONCE: Final = 100
_ATTEMPTS: Final = 50
"""Attempts at a change whose key another process has written in the same moment; it has made progress with each."""

_Change = Callable[[sa.Connection], None]


class _Write:
    """A change that waits for its transaction, of the term of a leader or of none."""

    def __init__(self, change: _Change, term: int | None) -> None:
        self.change = change
        self.term = term
        self.is_done = False
        self.error: Exception | None = None


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table, as a backup has it."""

    space: str
    key: str
    part: int
    content: bytes


def open_blobs(where: str | Path, file: Path) -> "Blobs":
    """
    Open the blobs of the platform with the store `where`, in `file` if that is SQLite; create what does not exist.

    Raises `SettingsError` if the file cannot be created, `Unavailable` if the database fails.
    """
    url = url_of(where)
    url = url_of(file) if is_sqlite(url) else url
    blobs = Blobs(engine_of(url, num_kept=2, wait_s=_WAIT_S), shown=shown_url(url))
    try:
        blobs.set_up()
    except BaseException:
        blobs.close()
        raise
    return blobs


class Blobs:
    """The blobs of one database. Any thread may use it."""

    def __init__(self, engine: sa.Engine, *, shown: str) -> None:
        self._engine = engine
        self._shown = shown
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")
        """Threads for callers in an event loop: a database that hangs must not occupy those of other work."""
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()

    def set_up(self) -> None:
        with self._translated(), creating(self._engine, _METADATA):
            pass

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        self._engine.dispose()

    def put(self, space: str, key: str, *parts: bytes, term: int | None = None) -> None:
        """
        Store a blob in place of the one with its key; a reader finds all of the old parts, or all of the new.

        This and the other writes raise `Fenced` if `term`, that of a leader, is over.
        """
        rows = [_row(space, key, number, part) for number, part in enumerate(parts)]

        def change(connection: sa.Connection) -> None:
            connection.execute(sa.delete(_BLOBS).where(_is(space), _BLOBS.c.key == key))
            connection.execute(sa.insert(_BLOBS), rows)

        self._write(change, term)

    def append(self, space: str, key: str, part: bytes, *, term: int | None = None) -> None:
        """Add a part at the end of a blob, which need not exist."""
        written: list[int] = []  # by transactions whose end is unknown

        def change(connection: sa.Connection) -> None:
            of_key = sa.select(_BLOBS).where(_is(space), _BLOBS.c.key == key)
            rows = connection.execute(of_key.where(_BLOBS.c.part.in_(written))) if written else ()
            if any(bytes(row.content) == part for row in rows):
                return  # it was committed, and the database's answer was lost
            last = of_key.with_only_columns(sa.func.max(_BLOBS.c.part))
            before = connection.execute(last).scalar_one()
            number = 0 if before is None else before + 1
            connection.execute(sa.insert(_BLOBS), [_row(space, key, number, part)])
            written.append(number)

        self._write(change, term)

    def delete(self, space: str, *keys: str, term: int | None = None) -> None:
        """Delete blobs; those that do not exist are ignored."""

        def change(connection: sa.Connection) -> None:
            for some in _in_pieces(keys):
                connection.execute(sa.delete(_BLOBS).where(_is(space), _BLOBS.c.key.in_(some)))

        self._write(change, term)

    def keys(self, space: str, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted by their code points."""
        wanted = sa.select(_BLOBS.c.key).where(_is(space), _BLOBS.c.part == 0, _begins_with(prefix))
        with self._reading() as connection:
            return sorted(connection.execute(wanted).scalars())

    def count(self, space: str) -> int:
        wanted = sa.select(sa.func.count()).select_from(_BLOBS).where(_is(space), _BLOBS.c.part == 0)
        with self._reading() as connection:
            return int(connection.execute(wanted).scalar_one())

    def read(self, space: str, key: str, *, part: int = 0) -> bytes | None:
        return self.read_many(space, (key,), part=part).get(key)

    def read_many(self, space: str, keys: Collection[str], *, part: int = 0) -> Mapping[str, bytes]:
        """Return one part of each blob that exists, by key."""
        found: dict[str, bytes] = {}
        with self._reading() as connection:
            for some in _in_pieces(keys):
                is_one = (_is(space), _BLOBS.c.part == part, _BLOBS.c.key.in_(some))
                rows = connection.execute(sa.select(_BLOBS.c.key, _BLOBS.c.content).where(*is_one))
                found.update((row.key, bytes(row.content)) for row in rows)
        return found

    def parts(self, space: str, key: str, *, first: int = 0, limit: int | None = None) -> Sequence[bytes]:
        """Return the parts of a blob from one on, in order, at most `limit`."""
        is_wanted = (_is(space), _BLOBS.c.key == key, _BLOBS.c.part >= first)
        wanted = sa.select(_BLOBS.c.content).where(*is_wanted).order_by(_BLOBS.c.part).limit(limit)
        with self._reading() as connection:
            return [bytes(content) for content in connection.execute(wanted).scalars()]

    def copy_to(self, file: IO[bytes]) -> None:
        """Write a snapshot of all blobs in lines of JSON, few of them in memory."""
        wanted, encoder = (
            sa.select(_BLOBS).order_by(_BLOBS.c.space, _BLOBS.c.key, _BLOBS.c.part),
            msgspec.json.Encoder(),
        )
        with self._reading() as connection:
            for row in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(wanted).mappings():
                file.write(encoder.encode(_Row(**row)) + b"\n")

    def replace_by(self, lines: Iterable[bytes]) -> None:
        """Replace all blobs by those of a copy."""
        left = (msgspec.json.decode(line, type=_Row) for line in lines)

        def change(connection: sa.Connection) -> None:
            connection.execute(sa.delete(_BLOBS))
            while some := [msgspec.structs.asdict(row) for row in islice(left, _ROWS_AT_ONCE)]:
                connection.execute(sa.insert(_BLOBS), some)

        self._write(change)

    def _write(self, change: _Change, term: int | None = None) -> None:
        """Make a change durable, together with those of other threads that wait for the same lock."""
        write = _Write(change, term)
        self._waiting.append(write)
        with self._lock:
            if not write.is_done:
                self._commit([self._waiting.popleft() for _ in range(len(self._waiting))])
        if write.error is not None:
            raise write.error

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Commit changes in one transaction; if that fails, each in its own, so that only the cause of it fails."""
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    self._execute(writes)
                    break
                except sa.exc.IntegrityError:
                    if len(writes) > 1 or attempt == _ATTEMPTS - 1:
                        raise
        except Exception as error:  # noqa: BLE001 -- raised in the thread of the write
            if len(writes) == 1:
                writes[0].error = self._unavailable(error) if isinstance(error, sa.exc.SQLAlchemyError) else error
            else:
                for write in writes:
                    self._commit([write])
        for write in writes:
            write.is_done = True

    def _execute(self, writes: Sequence[_Write]) -> None:
        with self._engine.connect() as connection:
            connection.execution_options(headrace_is_writing=True)
            with connection.begin():
                for term in {write.term for write in writes if write.term is not None}:
                    check_term(connection, term)
                for write in writes:
                    write.change(connection)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"The store {self._shown} failed: {first_line(error)}. Try again.")


def _row(space: str, key: str, part: int, content: bytes) -> dict[str, object]:
    return {"space": space, "key": key, "part": part, "content": content}


def _is(space: str) -> sa.ColumnElement[bool]:
    return _BLOBS.c.space == space


def _in_pieces(keys: Collection[str]) -> Iterator[Sequence[str]]:
    listed = list(keys)
    return (listed[start : start + _KEYS_AT_ONCE] for start in range(0, len(listed), _KEYS_AT_ONCE))


def _begins_with(prefix: str) -> sa.ColumnElement[bool]:
    return _BLOBS.c.key.startswith(prefix, autoescape=True) if prefix else sa.true()
