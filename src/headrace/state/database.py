"""Connections to a database: SQLite in a file (or in memory), or PostgreSQL by URL."""

import os
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from headrace.core.errors import SettingsError

_WAIT_S: Final = 30
"""Timeout for a lock, a free connection, or the answer of a database."""


def url_of(where: str | Path) -> sa.URL:
    """
    Return the URL of a store given as a file (SQLite) or a URL.

    Raises:
        SettingsError: the URL is invalid or of an unsupported kind.
    """
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
    """Return whether the database is SQLite."""
    return url.get_backend_name() == "sqlite"


def is_in_memory(url: sa.URL) -> bool:
    """Return whether the database exists only in memory, and is lost when its only connection closes."""
    return is_sqlite(url) and url.database in (None, "", ":memory:")


def engine_of(url: sa.URL, *, poolclass: type[sa.Pool] = QueuePool) -> sa.Engine:
    """
    Create the engine of a database without connecting.

    Args:
        url: the URL of the database.
        poolclass: the pool for connections to a database server.

    Raises:
        SettingsError: the file cannot be created, or PostgreSQL's driver is missing.
    """
    if is_sqlite(url):
        return _sqlite(url)
    try:
        return sa.create_engine(
            url,
            poolclass=poolclass,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "options": f"-c lock_timeout={_WAIT_S}s"},
        )
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"PostgreSQL needs the package {error.name}, which is not installed: pip install 'headrace[postgres]'."
        ) from error


def _sqlite(url: sa.URL) -> sa.Engine:
    is_memory = is_in_memory(url)
    if url.database is not None and not is_memory:
        _make_file(Path(url.database))
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1 if is_memory else 4,  # an in-memory database is its one connection
        max_overflow=0 if is_memory else 28,
        pool_timeout=_WAIT_S,
        connect_args={"timeout": _WAIT_S, "check_same_thread": False},
    )
    sa.event.listen(engine, "connect", _on_sqlite_connect)
    sa.event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _make_file(path: Path) -> None:
    """Create the database's file, readable by its owner only: records contain secrets."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise SettingsError(f"The store {path} cannot be opened: {error.strerror}. Choose another folder.") from error


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # `_on_sqlite_begin` issues BEGIN
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _on_sqlite_begin(connection: sa.Connection) -> None:
    """Lock immediately when writing: upgrading a read lock later could fail during the transaction."""
    is_writing = connection.get_execution_options().get("headrace_is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def first_line(error: Exception) -> str:
    """Return the first line of a database error."""
    original = getattr(error, "orig", None) or error
    return next(iter(str(original).strip().splitlines()), type(original).__name__).rstrip(".")
