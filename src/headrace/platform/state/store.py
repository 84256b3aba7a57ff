"""
The store: records in SQLite, in one file (or in memory, for tests), or in PostgreSQL by URL.

API handlers, the reconciler and the gateway share state only here. All methods block on SQL: code on an event loop
calls them in a thread (`asyncio.to_thread`). Every method is one transaction. Writers are serialized by one row, the
revision counter, so that revisions become visible in the order of their numbers. SQLite commits with `synchronous=FULL`
into its write-ahead log: a write that has returned survives kill -9 and a power cut.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import sqlalchemy as sa

from headrace.core.errors import SettingsError, Unavailable
from headrace.platform.state.changes import Listeners
from headrace.platform.state.database import engine_of, first_line, is_sqlite, is_temporary, shown_url, url_of
from headrace.platform.state.records import (
    AlreadyExists,
    AnyKind,
    Conflict,
    Fenced,
    Json,
    Kind,
    LastRecord,
    Record,
    StoredRecord,
    Unreadable,
    copy_part,
    decode_record,
    encode_part,
)
from headrace.platform.state.schema import CHANNEL, COUNTER, RECORDS, set_up
from headrace.platform.state.selection import ALL, Entry, Selection, is_storable, statement

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

# Statements that run often are built once: SQLAlchemy takes longer for that than SQLite for their execution.
_NEWEST: Final = sa.select(COUNTER.c.revision, COUNTER.c.term)
_NEWEST_LOCKED: Final = _NEWEST.with_for_update()
_NEXT_REVISION: Final = sa.update(COUNTER).values(revision=sa.bindparam("next"))
_OF_KIND: Final = sa.select(RECORDS).where(RECORDS.c.kind == sa.bindparam("of_kind"))
_NAMED: Final = _OF_KIND.where(RECORDS.c.name == sa.bindparam("wanted")).limit(1)
_NAMED_IN_ANY_CASE: Final = _OF_KIND.where(sa.func.lower(RECORDS.c.name) == sa.bindparam("wanted")).limit(1)
_COUNT: Final = sa.select(sa.func.count()).select_from(RECORDS).where(RECORDS.c.kind == sa.bindparam("of_kind"))
_BY_UID: Final = sa.select(RECORDS).where(RECORDS.c.uid == sa.bindparam("of_uid"))
_INSERT: Final = sa.insert(RECORDS)
_UPDATE: Final = sa.update(RECORDS).where(RECORDS.c.uid == sa.bindparam("of_uid"))
_BATCH: Final = 16
"""Records that are decoded at once by a listing, which may keep few of them: a record has up to some 100 KB."""
_ENTRY_BATCH: Final = 500


def open_store(where: str | Path, *, now_s: Callable[[], float] = time.time) -> "Store":
    """
    Open a store, and create it if it does not exist.

    Args:
        where: a file for SQLite, or a URL: `sqlite:///file`, `sqlite://` (in memory), `postgresql://user@host/name`.
        now_s: the clock for `created_s`, `modified_s` and `deleting_s`.

    Raises:
        SettingsError: the store cannot be opened; the message says why and how to fix it.
        Unavailable: its database server is down, starting or unreachable.
    """
    url = url_of(where)
    engine, shown = engine_of(url), shown_url(url)
    try:
        set_up(engine, shown)
    except BaseException as error:
        engine.dispose()
        if not isinstance(error, sa.exc.DBAPIError):
            raise
        if not is_sqlite(url) and is_temporary(error):
            raise Unavailable(
                f"The store {shown} cannot be reached: {first_line(error)}. Check that the database server runs there."
            ) from error
        raise SettingsError(
            f"The store {shown} cannot be opened: {first_line(error)}. "
            "Check that the file (or the database server) exists, belongs to Headrace and is writable."
        ) from error
    return Store(engine, shown=shown, now_s=now_s)


class Store:
    """Records by kind and name; see `state.records` for how a kind is declared. Any thread may use it."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        shown: str,
        now_s: Callable[[], float] = time.time,
        listeners: Listeners | None = None,
        term: int | None = None,
    ) -> None:
        self._engine = engine
        self.shown = shown
        """The store's name in messages, without a password."""
        self._now_s = now_s
        self.listeners = listeners or Listeners()
        """Called after each write through this object, and by `state.changes` after writes of other processes."""
        self._term = term

    def fenced(self, term: int) -> "Store":
        """Return this store for a leader: its writes raise `Fenced` once a later term has begun."""
        return Store(self._engine, shown=self.shown, now_s=self._now_s, listeners=self.listeners, term=term)

    def term(self) -> int:
        with self._reading() as connection:
            return int(connection.execute(_NEWEST).one().term)

    def begin_term(self, term: int) -> None:
        """Begin a leader's term: from now on, writes of earlier leaders are refused. Raises `Fenced`."""
        with self._writing() as write:
            if term < write.term:
                raise Fenced(f"Term {term} is over: term {write.term} has begun.")
            write.connection.execute(sa.update(COUNTER).values(term=term))

    def create(
        self,
        kind: Kind[SpecT, StatusT],
        name: str,
        *,
        spec: SpecT,
        status: StatusT | None = None,
        tags: Mapping[str, str] = {},
    ) -> Record[SpecT, StatusT]:
        """Add a record. Raises `AlreadyExists`."""
        now_s = self._now_s()
        with self._writing() as write:
            record = Record(
                kind=kind,
                name=name,
                uid=uuid.uuid4().hex,
                revision=write.next_revision(),
                spec=copy_part(spec, kind.spec),
                status=copy_part(kind.status() if status is None else status, kind.status),
                tags=dict(tags),
                created_s=now_s,
                modified_s=now_s,
            )
            envelope = {name: getattr(record, name) for name in ("uid", "name", "revision", "created_s", "modified_s")}
            row = {**envelope, "tags": json.dumps(record.tags), **_part_columns(kind, record.spec, record.status)}
            try:
                write.connection.execute(_INSERT, {"kind": kind.name, **row})
            except sa.exc.IntegrityError as error:
                raise AlreadyExists(f"A {kind} called {name!r} already exists.") from error
        return record

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable | None:
        return self._first(kind, _NAMED, name)

    def list(self, kind: Kind[SpecT, StatusT]) -> Sequence[Record[SpecT, StatusT] | Unreadable]:
        """
        Return all records of a kind, ordered by time of creation, then by name.

        For loops that need all of them. An API call uses `each` or `entries`, so that its memory has a bound.
        """
        with self._reading() as connection:
            rows = connection.execute(_OF_KIND, {"of_kind": kind.name}).all()
        records = (decode_row(kind, row) for row in rows)
        return sorted(records, key=lambda record: (record.created_s, record.name))

    def find(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable | None:
        """Return the record with a name, ignoring case where no record has the name itself."""
        if (exact := self.get(kind, name)) is not None or not is_storable(name):
            return exact
        return self._first(kind, _NAMED_IN_ANY_CASE, name.lower())

    def _first(
        self, kind: Kind[SpecT, StatusT], statement: "sa.Select[Any]", wanted: str
    ) -> Record[SpecT, StatusT] | Unreadable | None:
        with self._reading() as connection:
            row = connection.execute(statement, {"of_kind": kind.name, "wanted": wanted}).one_or_none()
        return None if row is None else decode_row(kind, row)

    def count(self, kind: AnyKind) -> int:
        with self._reading() as connection:
            return _num_records(connection, kind.name)

    def entries(self, kind: AnyKind, selection: Selection = ALL) -> Iterator[Entry]:
        """Yield the selected records without their contents, a batch at a time."""
        while rows := self._rows((RECORDS.c.name, RECORDS.c.created_s), kind, selection, _ENTRY_BATCH):
            found = [Entry(name=row.name, created_s=row.created_s) for row in rows]
            yield from found
            selection = replace(selection, after=found[-1])

    def each(
        self, kind: Kind[SpecT, StatusT], selection: Selection = ALL
    ) -> Iterator[Record[SpecT, StatusT] | Unreadable]:
        """Yield the selected records, a batch at a time; each batch is a transaction of its own."""
        entries = self.entries(kind, selection)
        while names := [entry.name for entry in islice(entries, _BATCH)]:
            rows = {row.name: row for row in self._rows((RECORDS,), kind, Selection(names=names), _BATCH)}
            yield from (decode_row(kind, rows[name]) for name in names if name in rows)

    def _rows(self, columns: Sequence[Any], kind: AnyKind, selection: Selection, limit: int) -> "Sequence[sa.Row[Any]]":
        query = statement(columns, kind, selection, dialect=self._engine.dialect.name, limit=limit)
        if query is None:
            return ()
        with self._reading() as connection:
            return connection.execute(query).all()

    @overload
    def update(
        self,
        record: Record[SpecT, StatusT],
        *,
        spec: SpecT | None = None,
        status: StatusT | None = None,
        tags: Mapping[str, str] | None = None,
        is_deleting: bool = False,
    ) -> Record[SpecT, StatusT]: ...
    @overload
    def update(
        self, record: Unreadable, *, tags: Mapping[str, str] | None = None, is_deleting: bool = False
    ) -> Unreadable: ...
    def update(
        self,
        record: Record[SpecT, StatusT] | Unreadable,
        *,
        spec: SpecT | None = None,
        status: StatusT | None = None,
        tags: Mapping[str, str] | None = None,
        is_deleting: bool = False,
    ) -> Record[SpecT, StatusT] | Unreadable:
        """
        Write the given parts and keep the others; `is_deleting` sets `deleting_s`, permanently.

        Writing unchanged values has no effect: no new revision, no call of a listener.

        Raises `Conflict`: `record.revision` is not the newest, or the record was removed.
        """
        with self._writing() as write:
            row = write.read(record.uid)
            if row is None or row.revision != record.revision:
                raise Conflict(f"The {record.kind} {record.name!r} was written or removed since it was read.")
            old = decode_row(record.kind, row)
            now_s = self._now_s()
            changes: dict[str, Any] = {}
            if tags is not None and dict(tags) != old.tags:
                changes["tags"] = json.dumps(dict(tags))
            if is_deleting and old.deleting_s is None:
                changes["deleting_s"] = now_s
            if isinstance(old, Record):
                new_spec = old.spec if spec is None else copy_part(spec, old.kind.spec)
                new_status = old.status if status is None else copy_part(status, old.kind.status)
                if (new_spec, new_status) != (old.spec, old.status):
                    changes |= _part_columns(old.kind, new_spec, new_status)
            if not changes:
                return old  # no new revision, so that a loop which writes what it reads does not wake itself
            changes |= {"revision": write.next_revision(), "modified_s": now_s}
            write.connection.execute(_UPDATE, {"of_uid": old.uid, **changes})
            written = write.read(old.uid)
            assert written is not None
            return decode_row(record.kind, written)

    def remove(self, record: StoredRecord, *, keep_last: bool = False) -> None:
        """
        Remove a record; do nothing if its `uid` does not exist.

        Raises:
            Conflict: the record was written since.
            LastRecord: `keep_last` is set and it is the only one of its kind, also if others are being removed.
        """
        with self._writing() as write:
            old = write.read(record.uid)
            if old is None:
                return
            if old.revision != record.revision:
                raise Conflict(f"The {old.kind} {record.name!r} was written since it was read.")
            if keep_last and _num_records(write.connection, old.kind) == 1:
                raise LastRecord(f"The {old.kind} {record.name!r} is the only one.")
            write.next_revision()
            write.connection.execute(sa.delete(RECORDS).where(RECORDS.c.uid == record.uid))

    def revision(self) -> int:
        """Return the newest revision of the store: the same number means that nothing has changed."""
        with self._reading() as connection:
            return int(connection.execute(_NEWEST).one().revision)

    def schema_versions(self) -> dict[str, int]:
        """Return the newest schema version of each kind's records, known kinds and others."""
        newest = sa.func.max(RECORDS.c.schema_version).label("newest")
        wanted = sa.select(RECORDS.c.kind, newest).group_by(RECORDS.c.kind)
        with self._reading() as connection:
            return {row.kind: row.newest for row in connection.execute(wanted)}

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """
        Call `listener` after each write, in the writing thread; return a function that unsubscribes.

        The listener must return quickly. Writes of other processes are reported while `state.changes` follows them.
        """
        return self.listeners.add(listener)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator["_Write"]:
        write: _Write | None = None
        try:
            with self._translated(), self._engine.connect() as connection:
                connection.execution_options(headrace_is_writing=True)
                with connection.begin():
                    write = _Write(connection, self._term, self.listeners.id)
                    yield write
        except Unavailable:
            if write is not None and write.is_written:
                self.listeners.call_uncertain()
            raise
        if write.is_written:
            self.listeners.call()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the database to Headrace's."""
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise Unavailable(
                f"The store {self.shown} failed: {first_line(error)}. Earlier writes are safe. "
                "Check its disk (is it full?) or that the database server runs, then try again."
            ) from error


class _Write:
    """A transaction that excludes all other writers."""

    def __init__(self, connection: sa.Connection, term: int | None, writer: str) -> None:
        self.connection = connection
        newest = connection.execute(_NEWEST_LOCKED).one()
        self._newest, self.term = int(newest.revision), int(newest.term)
        self._writer = writer
        self.is_written = False
        if term is not None and term != self.term:
            raise Fenced(f"Another platform leads since term {self.term}; this write is of term {term}.")

    def next_revision(self) -> int:
        """Increment the revision counter for this write, and announce it to other processes."""
        self._newest += 1
        self.is_written = True
        self.connection.execute(_NEXT_REVISION, {"next": self._newest})
        if self.connection.dialect.name == "postgresql":
            self.connection.execute(sa.select(sa.func.pg_notify(CHANNEL, self._writer)))
        return self._newest

    def read(self, uid: str) -> "sa.Row[Any] | None":
        return self.connection.execute(_BY_UID, {"of_uid": uid}).one_or_none()


def _num_records(connection: sa.Connection, kind: str) -> int:
    return int(connection.execute(_COUNT, {"of_kind": kind}).scalar_one())


def _part_columns(kind: AnyKind, spec: object, status: object) -> Json:
    return {"spec": encode_part(spec), "status": encode_part(status), "schema_version": kind.version}


def decode_row(kind: Kind[SpecT, StatusT], row: Any) -> Record[SpecT, StatusT] | Unreadable:
    names = ("name", "uid", "revision", "created_s", "modified_s", "deleting_s")
    envelope = {"tags": json.loads(row.tags), **{name: getattr(row, name) for name in names}}
    return decode_record(kind, version=row.schema_version, spec=row.spec, status=row.status, envelope=envelope)
