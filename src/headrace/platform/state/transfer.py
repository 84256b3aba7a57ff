"""
Copies of all records, out of a database and into another one, which may be of the other kind.

Reading takes one snapshot, changes nothing and needs no lock: platforms keep writing. Writing replaces all records in
one transaction, and only while no platform uses the database.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import sqlalchemy as sa

from headrace.core.errors import SettingsError
from headrace.platform.state.coordination import end_membership
from headrace.platform.state.database import engine_of, first_line, is_sqlite, shown_url, url_of
from headrace.platform.state.records import AnyKind, Unreadable
from headrace.platform.state.schema import CHANNEL, COUNTER, RECORDS, check_version, creating, set_up
from headrace.platform.state.store import decode_row

_ROWS_AT_ONCE: Final = 1000


class StoredRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record as it is in the database, so that unreadable ones are copied unchanged too."""

    uid: str
    kind: str
    name: str
    revision: int
    spec: str
    """JSON."""
    status: str
    """JSON."""
    tags: str
    """JSON."""
    created_s: float
    modified_s: float
    deleting_s: float | None = None
    schema_version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCopy:
    schema_version: int
    """Schema version of the tables."""
    revision: int
    term: int
    rows: tuple[StoredRow, ...]


def read_copy(where: str | Path) -> StoreCopy:
    """
    Read all records of a store in one snapshot.

    Raises `SettingsError`: there is no store, it cannot be read, or another version of Headrace wrote its tables.
    """
    url = url_of(where)
    if is_sqlite(url) and not Path(str(url.database)).is_file():
        raise _no_store(shown_url(url))
    engine = engine_of(url)
    try:
        with _translated(shown_url(url), "read"), engine.connect() as connection:
            if not is_sqlite(url):
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            if not sa.inspect(connection).has_table(COUNTER.name):
                raise _no_store(shown_url(url))
            counter = connection.execute(sa.select(COUNTER)).one()
            check_version(counter.schema_version, shown_url(url))
            rows = connection.execute(sa.select(RECORDS).order_by(RECORDS.c.revision)).mappings()
            return StoreCopy(
                schema_version=counter.schema_version,
                revision=counter.revision,
                term=counter.term,
                rows=tuple(StoredRow(**row) for row in rows),
            )
    finally:
        engine.dispose()


def write_copy(where: str | Path, copy: StoreCopy, *, is_replacing: bool) -> None:
    """
    Replace all records of a store by those of a copy, in one transaction; without `is_replacing` it must have none.

    Revisions and terms keep growing: an earlier leader that was suspended and resumes cannot write.

    Raises `SettingsError`: a platform uses the database, it has records, or it cannot be written.
    """
    url = url_of(where)
    engine, shown = engine_of(url), shown_url(url)
    try:
        with _translated(shown, "written"):
            set_up(engine, shown)
            with creating(engine, sa.MetaData()) as connection:  # the lock under which a platform starts
                _replace_records(connection, copy, shown, is_replacing=is_replacing)
    finally:
        engine.dispose()


def _replace_records(connection: sa.Connection, copy: StoreCopy, shown: str, *, is_replacing: bool) -> None:
    newest = connection.execute(sa.select(COUNTER.c.revision, COUNTER.c.term).with_for_update()).one()
    num_records = connection.execute(sa.select(sa.func.count()).select_from(RECORDS)).scalar_one()
    if num_records and not is_replacing:
        raise SettingsError(
            f"The store {shown} has {num_records} record{'' if num_records == 1 else 's'}. Restore into an empty one, "
            "or replace them with --replace (save them first with `headrace backup`)."
        )
    term = end_membership(connection, term=max(newest.term, copy.term))
    connection.execute(sa.delete(RECORDS))
    for start in range(0, len(copy.rows), _ROWS_AT_ONCE):
        rows = [msgspec.structs.asdict(row) for row in copy.rows[start : start + _ROWS_AT_ONCE]]
        connection.execute(sa.insert(RECORDS), rows)
    connection.execute(sa.update(COUNTER).values(revision=max(newest.revision, copy.revision) + 1, term=term))
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "restore")))


def schema_versions(rows: Iterable[StoredRow]) -> dict[str, int]:
    """Return the newest schema version of each kind's records."""
    versions: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        versions[row.kind] = max(versions[row.kind], row.schema_version)
    return dict(versions)


def unreadable_rows(rows: Iterable[StoredRow], kinds: Mapping[str, AnyKind]) -> list[Unreadable]:
    """Return the records that cannot be decoded; `kinds` has all their kinds, by name."""
    found = [decode_row(kinds[row.kind], row) for row in rows]
    return [record for record in found if isinstance(record, Unreadable)]


def _no_store(shown: str) -> SettingsError:
    return SettingsError(
        f"The store {shown} does not exist; no platform has used it. Name the platform's folder with --data-dir, or "
        "its database with --database."
    )


@contextmanager
def _translated(shown: str, done: str) -> Iterator[None]:
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        raise SettingsError(
            f"The store {shown} cannot be {done}: {first_line(error)}. "
            "Check that the file (or the database server) exists, and that this user may use it."
        ) from error
