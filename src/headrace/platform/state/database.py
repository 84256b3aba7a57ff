"""Connections to a database: SQLite in a file (or in memory), or PostgreSQL by URL; and the lock on an SQLite file."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, QueuePool

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install

WAIT_S: Final = 30
_IDLE_TRANSACTION_S: Final = 5
"""
Seconds until PostgreSQL ends an idle transaction, whose process was stopped or whose machine is gone: it would block
all other writers. At most the timeout of a statement: a machine that is cut off in a heartbeat must not keep the lease.
"""
_KEEPALIVE_S: Final = 5
"""
Seconds between the kernel's probes of a server that owes an answer. Without them, a query whose server lost its power
or its network would wait for two hours: `tcp_user_timeout` counts only from data, or probes, that are not acknowledged.
Source: https://www.postgresql.org/docs/current/libpq-connect.html, tcp(7)
"""

_SERVER_OPTIONS: Final = {
    "tcp_keepalives_idle": "5s",
    "tcp_keepalives_interval": "2s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "11s",
}
"""
Options by which PostgreSQL ends the connections of a machine that is gone after 11 seconds. By default it keeps them
for two hours, and a few lost machines take all that it allows (100).
"""

_REFUSALS: Final = ("authentication", "does not exist", "pg_hba.conf", "permission denied")
"""Parts of the errors with which PostgreSQL refuses connections until the URL or its configuration changes."""


def url_of(where: str | Path) -> sa.URL:
    """Return the URL of a store given as a file (SQLite) or a URL. Raises `SettingsError`: it is not supported."""
    if isinstance(where, Path) or "://" not in where:
        return sa.URL.create("sqlite", database=str(where))
    try:
        url = sa.make_url(where)
    except (sa.exc.ArgumentError, ValueError):
        raise SettingsError(
            "The store's URL is invalid; expected sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        ) from None
    backend = url.drivername.partition("+")[0]
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise SettingsError(f"The store's URL begins with {backend}://; expected sqlite:// or postgresql://.")
    return url


def shown_url(url: sa.URL) -> str:
    """Return the URL without its password, for messages."""
    return str(url.database) if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite"


def is_in_memory(url: sa.URL) -> bool:
    """Return whether the database exists only in memory, and is lost when its only connection closes."""
    return is_sqlite(url) and url.database in (None, "", ":memory:")


def engine_of(
    url: sa.URL,
    *,
    poolclass: type[sa.Pool] = QueuePool,
    num_kept: int = 5,
    wait_s: int = WAIT_S,
    is_durable: bool = True,
) -> sa.Engine:
    """
    Create the engine of a database without connecting.

    Args:
        url: the URL of the database.
        poolclass: the pool for connections to a database server.
        num_kept: connections to a database server that are kept for the next use: it takes 100 of all processes.
        wait_s: timeout for a lock, a free connection, or the answer of a database.
        is_durable: a write to SQLite is on the disk when it returns.

    Raises `SettingsError`: the file cannot be created, or PostgreSQL's driver is missing.
    """
    if is_sqlite(url):
        return _sqlite(url, wait_s, is_durable=is_durable)
    try:
        return sa.create_engine(
            url,
            poolclass=poolclass,
            pool_pre_ping=True,
            **({} if poolclass is NullPool else {"pool_timeout": wait_s, "pool_size": num_kept}),
            connect_args={
                "connect_timeout": min(10, wait_s),
                "tcp_user_timeout": wait_s * 1000,
                "keepalives_idle": min(_KEEPALIVE_S, wait_s),
                "keepalives_interval": min(_KEEPALIVE_S, wait_s),
                "options": " ".join(f"-c {name}={value}" for name, value in _session_options(wait_s).items()),
            },
        )
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"PostgreSQL needs the package {error.name}, which is not installed: {pip_install('headrace[postgres]')}."
        ) from error


def _session_options(wait_s: int) -> dict[str, str]:
    return {
        **_SERVER_OPTIONS,
        "lock_timeout": f"{wait_s}s",
        "statement_timeout": f"{wait_s}s",
        "idle_in_transaction_session_timeout": f"{min(_IDLE_TRANSACTION_S, wait_s)}s",
    }


def _sqlite(url: sa.URL, wait_s: int, *, is_durable: bool) -> sa.Engine:
    is_memory = is_in_memory(url)
    if url.database is not None and not is_memory:
        _make_file(Path(url.database))
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1 if is_memory else 4,  # an in-memory database is its one connection
        max_overflow=0 if is_memory else 28,
        pool_timeout=wait_s,
        connect_args={"timeout": wait_s, "check_same_thread": False},
    )
    sa.event.listen(engine, "connect", partial(_on_sqlite_connect, is_durable=is_durable))
    sa.event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _make_file(path: Path) -> None:
    """
    Create the database's file, readable by its owner only: records contain secrets.

    NOTE: an existing file is not opened: closing a descriptor of it would drop the locks that SQLite holds for other
    connections of this process, and another process that closes the database would then delete its log.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise SettingsError(f"The store {path} cannot be opened: {error.strerror}. Choose another folder.") from error


def _on_sqlite_connect(connection: Any, _record: object, *, is_durable: bool) -> None:
    connection.isolation_level = None  # `_on_sqlite_begin` issues BEGIN
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'OFF'}")
    cursor.close()


def _on_sqlite_begin(connection: sa.Connection) -> None:
    """Lock immediately when writing: upgrading a read lock later could fail during the transaction."""
    is_writing = connection.get_execution_options().get("headrace_is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def is_temporary(error: sa.exc.DBAPIError) -> bool:
    """Return whether a database server may accept the same connection later: it is down, starting or unreachable."""
    return isinstance(error, sa.exc.OperationalError) and not any(text in str(error.orig) for text in _REFUSALS)


def first_line(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return next(iter(str(original).strip().splitlines()), type(original).__name__).rstrip(".")
