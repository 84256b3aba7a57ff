"""The tables of a store, and their version."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from headrace.core.errors import SettingsError
from headrace.platform.state.records import Fenced

CHANNEL: Final = "headrace_records"
"""PostgreSQL's channel on which writers announce writes; the payload is the id of the writing store object."""
_SETUP_LOCK: Final = 7_233_428_921
"""Key of PostgreSQL's advisory lock under which tables are created."""

_METADATA: Final = sa.MetaData()
RECORDS: Final = sa.Table(
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
    sa.Index("headrace_records_by_time", "kind", "created_s", "name"),
)
COUNTER: Final = sa.Table(
    "headrace_store",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("term", sa.BigInteger, nullable=False, server_default="0"),
)
"""One row: the revision of the newest write, and the term of the newest leader."""


SCHEMA_VERSION: Final = 3
"""Version of the tables; every kind of record has its own schema version."""


def set_up(engine: sa.Engine, shown: str) -> None:
    """Create the tables under a lock, unless they exist. Raises `SettingsError`: they are of another version."""
    with creating(engine, _METADATA) as connection:
        version = connection.execute(sa.select(COUNTER.c.schema_version)).scalar_one_or_none()
        if version is None:
            connection.execute(sa.insert(COUNTER).values(id=1, schema_version=SCHEMA_VERSION, revision=0, term=0))
        else:
            check_version(version, shown)


def check_version(version: int, shown: str) -> None:
    """Raise `SettingsError` if another version of Headrace wrote the tables of a store, or of a copy of one."""
    if version != SCHEMA_VERSION:
        raise SettingsError(
            f"The store {shown} has schema version {version}; this Headrace expects version {SCHEMA_VERSION}. "
            "Start the version of Headrace that wrote it, or choose another data folder."
        )


def check_term(connection: sa.Connection, term: int) -> None:
    """Raise `Fenced` if a term is over, and let no other begin before the transaction ends; in PostgreSQL only."""
    if connection.dialect.name != "postgresql":  # one machine, whose other processes the kernel has ended
        return
    newest = connection.execute(sa.select(COUNTER.c.term).with_for_update(read=True)).scalar_one()
    if newest != term:
        raise Fenced(f"Another platform leads since term {newest}; this write is of term {term}.")


@contextmanager
def creating(engine: sa.Engine, tables: sa.MetaData) -> Iterator[sa.Connection]:
    """Create tables that do not exist, in a transaction that excludes other processes."""
    with engine.connect() as connection:
        connection.execution_options(headrace_is_writing=True)
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SETUP_LOCK)))
            tables.create_all(connection)
            yield connection
