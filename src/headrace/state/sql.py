"""
Records in a database: SQLite in one file (or in memory, for tests), or PostgreSQL by URL.

Every method is one transaction. Writers take turns at one row, the counter of revisions, so that revisions become
visible in the order of their numbers. SQLite commits with `synchronous=FULL` into its write-ahead log: what a method
has returned survives kill -9 and a power cut.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import sqlalchemy as sa

from headrace.core.errors import SettingsError, Unavailable
from headrace.core.telemetry import get_logger
from headrace.state.database import engine_of, first_line, shown_url, url_of
from headrace.state.records import (
    AlreadyExists,
    AnyKind,
    Conflict,
    Json,
    Kind,
    Record,
    StoredRecord,
    Unreadable,
    copy_part,
    decode_record,
    encode_part,
)

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

SCHEMA_VERSION: Final = 2
"""Version of the tables; every kind of record has its own schema version."""
_SETUP_LOCK: Final = 7_233_428_921
"""Key of PostgreSQL's advisory lock under which tables are created."""

_METADATA: Final = sa.MetaData()
_RECORDS: Final = sa.Table(
    "headrace_records",
    _METADATA,
    sa.Column("uid", sa.String, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("modified_s", sa.Double, nullable=False),
    sa.Column("deleting_s", sa.Double),
    sa.Column("schema_version", sa.Integer, nullable=False, server_default="1"),
    sa.UniqueConstraint("kind", "name"),
)
_COUNTER: Final = sa.Table(
    "headrace_store",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
_NEWEST: Final = sa.select(_COUNTER.c.revision)


def open_store(where: str | Path, *, now_s: Callable[[], float] = time.time) -> "SqlStore":
    """
    Open a store, and create it if it does not exist.

    Args:
        where: a file for SQLite, or a URL: `sqlite:///file`, `sqlite://` (in memory), `postgresql://user@host/name`.
        now_s: the clock for `created_s`, `modified_s` and `deleting_s`.

    Raises:
        SettingsError: the store cannot be opened; the message says why and how to fix it.
    """
    url = url_of(where)
    engine, shown = engine_of(url), shown_url(url)
    try:
        _set_up(engine, shown)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError):
            raise SettingsError(
                f"The store {shown} cannot be opened: {first_line(error)}. "
                "Check that the file (or the database server) exists, belongs to Headrace and is writable."
            ) from error
        raise
    return SqlStore(engine, shown=shown, now_s=now_s)


class SqlStore:
    """A `Store` on a database; any thread may use it."""

    def __init__(self, engine: sa.Engine, *, shown: str, now_s: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._shown = shown
        self._now_s = now_s
        self._listeners: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()

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
            row = {**_envelope_columns(record), **_part_columns(kind, record.spec, record.status)}
            try:
                write.execute(sa.insert(_RECORDS).values(kind=kind.name, created_s=now_s, **row))
            except sa.exc.IntegrityError as error:
                raise AlreadyExists(f"A {kind} called {name!r} already exists.") from error
        return record

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable | None:
        """Return the record with a name, or None."""
        wanted = sa.select(_RECORDS).where(_RECORDS.c.kind == kind.name, _RECORDS.c.name == name)
        with self._reading() as connection:
            row = connection.execute(wanted).one_or_none()
        return None if row is None else _decode(kind, row)

    def list(self, kind: Kind[SpecT, StatusT]) -> Sequence[Record[SpecT, StatusT] | Unreadable]:
        """Return all records of a kind, ordered by time of creation, then by name."""
        wanted = sa.select(_RECORDS).where(_RECORDS.c.kind == kind.name)
        with self._reading() as connection:
            rows = connection.execute(wanted).all()
        records = (_decode(kind, row) for row in rows)
        return sorted(records, key=lambda record: (record.created_s, record.name))

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

        Raises:
            Conflict: `record.revision` is not the newest, or the record was removed.
        """
        with self._writing() as write:
            row = write.read(record.uid)
            if row is None or row.revision != record.revision:
                raise Conflict(f"The {record.kind} {record.name!r} was written or removed since it was read.")
            old = _decode(record.kind, row)
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
                return old
            changes |= {"revision": write.next_revision(), "modified_s": now_s}
            write.execute(sa.update(_RECORDS).where(_RECORDS.c.uid == old.uid).values(**changes))
            written = write.read(old.uid)
            assert written is not None
            return _decode(record.kind, written)

    def remove(self, record: StoredRecord) -> None:
        """Remove a record; do nothing if its `uid` does not exist. Raises `Conflict` if it was written since."""
        with self._writing() as write:
            old = write.read(record.uid)
            if old is None:
                return
            if old.revision != record.revision:
                raise Conflict(f"The {old.kind} {record.name!r} was written since it was read.")
            write.next_revision()
            write.execute(sa.delete(_RECORDS).where(_RECORDS.c.uid == record.uid))

    def revision(self) -> int:
        """Return the newest revision of the store: the same number means that nothing has changed."""
        with self._reading() as connection:
            return int(connection.execute(_NEWEST).scalar_one())

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each write through this object, in the writing thread; return how to unsubscribe."""
        token = object()
        with self._lock:
            self._listeners[token] = listener

        def end() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return end

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator["_Write"]:
        with self._translated(), self._engine.connect() as connection:
            connection.execution_options(headrace_is_writing=True)
            with connection.begin():
                write = _Write(connection)
                yield write
        if write.is_written:
            self._tell()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the database to Headrace's."""
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise Unavailable(
                f"The store {self._shown} failed: {first_line(error)}. Earlier writes are safe. "
                "Check its disk (is it full?) or that the database server runs, then try again."
            ) from error

    def _tell(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners.values())
        for listener in listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 -- the write is committed; its caller must not see an error
                get_logger().exception("store.listener_failed")


class _Write:
    """A transaction that excludes all other writers."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._newest = int(connection.execute(_NEWEST.with_for_update()).scalar_one())
        self.is_written = False

    def next_revision(self) -> int:
        """Increment the revision counter for this write."""
        self._newest += 1
        self.is_written = True
        self._connection.execute(sa.update(_COUNTER).values(revision=self._newest))
        return self._newest

    def read(self, uid: str) -> "sa.Row[Any] | None":
        """Read the current row of a record."""
        return self._connection.execute(sa.select(_RECORDS).where(_RECORDS.c.uid == uid)).one_or_none()

    def execute(self, statement: sa.Executable) -> None:
        """Run a statement that returns nothing."""
        self._connection.execute(statement)


def _set_up(engine: sa.Engine, shown: str) -> None:
    """Create or upgrade the tables, under a lock that excludes other processes."""
    with engine.connect() as connection:
        connection.execution_options(headrace_is_writing=True)
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SETUP_LOCK)))
            _METADATA.create_all(connection)
            version = connection.execute(sa.select(_COUNTER.c.schema_version)).scalar_one_or_none()
            if version is None:
                connection.execute(sa.insert(_COUNTER).values(id=1, schema_version=SCHEMA_VERSION, revision=0))
            elif version > SCHEMA_VERSION:
                raise SettingsError(
                    f"The store {shown} has schema version {version}; this Headrace expects version {SCHEMA_VERSION}. "
                    "Start the version of Headrace that wrote it, or choose another data folder."
                )
            elif version < SCHEMA_VERSION:
                _upgrade(connection)


def _upgrade(connection: sa.Connection) -> None:
    """Upgrade tables from version 1 to 2: add the schema version of records, which is 1 for existing ones."""
    connection.exec_driver_sql(f"ALTER TABLE {_RECORDS.name} ADD COLUMN schema_version INTEGER DEFAULT 1 NOT NULL")
    connection.execute(sa.update(_COUNTER).values(schema_version=SCHEMA_VERSION))


def _envelope_columns(record: StoredRecord) -> Json:
    return {
        "uid": record.uid,
        "name": record.name,
        "revision": record.revision,
        "tags": json.dumps(record.tags),
        "modified_s": record.modified_s,
        "deleting_s": record.deleting_s,
    }


def _part_columns(kind: AnyKind, spec: object, status: object) -> Json:
    return {"spec": encode_part(spec), "status": encode_part(status), "schema_version": kind.version}


def _decode(kind: Kind[SpecT, StatusT], row: "sa.Row[Any]") -> Record[SpecT, StatusT] | Unreadable:
    envelope = {
        "name": row.name,
        "uid": row.uid,
        "revision": row.revision,
        "tags": json.loads(row.tags),
        "created_s": row.created_s,
        "modified_s": row.modified_s,
        "deleting_s": row.deleting_s,
    }
    return decode_record(kind, version=row.schema_version, spec=row.spec, status=row.status, envelope=envelope)
