"""
The exclusive lease on a database: one platform holds it, and a second platform on the same database refuses to start.

Two reconcilers on the same records would each treat the other's workers as orphans. Reading, and writing specs (such as
access keys), needs no lease.

In PostgreSQL it is a session-level advisory lock, which the server releases when the session ends; it does not work
through a pooler that shares sessions (PgBouncer's transaction mode). For SQLite it is a kernel lock on a file beside
the database.
Source: https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
"""

import fcntl
import os
import time
from pathlib import Path
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from headrace.core.errors import SettingsError, Unavailable
from headrace.state.database import engine_of, first_line, is_in_memory, is_sqlite, shown_url, url_of

_KEY: Final = 7_233_428_922
PATIENCE_S: Final = 5.0
"""Time for the PostgreSQL server to notice that the session of a killed platform has ended."""
_POLL_S: Final = 0.1
_KEEPALIVE: Final = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""A lost machine keeps the lock for half a minute instead of the default two hours."""


class DatabaseLease(Protocol):
    """An exclusive lease that is held."""

    def check(self) -> None:
        """
        Verify the lease, and acquire it again if the connection was lost.

        Raises:
            SettingsError: another platform has acquired it: stop acting.
            Unavailable: the database does not answer, so no platform can act on it.
        """
        ...

    def release(self) -> None:
        """Release the lease."""
        ...


def acquire_database_lease(where: str | Path, *, patience_s: float = PATIENCE_S) -> DatabaseLease:
    """
    Acquire the lease on the database of a store.

    Args:
        where: a file or a URL, as for `open_store`.
        patience_s: time to retry in PostgreSQL.

    Raises:
        SettingsError: another platform holds it, or the database cannot be opened.
    """
    url = url_of(where)
    if is_in_memory(url):
        return _Unshared()
    if is_sqlite(url):
        return _FileLock(Path(str(url.database)))
    lock = _AdvisoryLock(url)
    try:
        lock.take(patience_s=patience_s)
    except BaseException:
        lock.release()
        raise
    return lock


class _Unshared:
    """The lease on an in-memory database, which no other process can reach."""

    def check(self) -> None:
        """Do nothing: it cannot be lost."""

    def release(self) -> None:
        """Do nothing: no lock is held."""


class _FileLock:
    """A lease as a kernel lock of this process on a file."""

    def __init__(self, database: Path) -> None:
        # NOTE: not the database file itself: closing a descriptor of it would drop SQLite's own locks.
        path = database.with_name(f"{database.name}.lock")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"The store's lock {path} cannot be created: {error.strerror}.") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise SettingsError(_taken(str(database))) from error

    def check(self) -> None:
        """Do nothing: the kernel keeps the lock until this process ends."""

    def release(self) -> None:
        """Close the lock file, which releases the lock."""
        os.close(self._descriptor)


class _AdvisoryLock:
    """A lease as an advisory lock of PostgreSQL on a connection that stays open."""

    def __init__(self, url: sa.URL) -> None:
        self._shown = shown_url(url)
        self._engine = engine_of(url, poolclass=NullPool)
        self._connection: sa.Connection | None = None

    def take(self, *, patience_s: float = 0.0) -> None:
        """Acquire the lock on a new connection."""
        deadline_s = time.monotonic() + patience_s
        try:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection.exec_driver_sql(_KEEPALIVE)
            while not self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(_KEY))).scalar_one():
                if time.monotonic() > deadline_s:
                    raise SettingsError(_taken(self._shown))
                time.sleep(_POLL_S)
        except sa.exc.DBAPIError as error:
            raise Unavailable(
                f"The store {self._shown} cannot be locked: {first_line(error)}. Check that the database server runs."
            ) from error

    def check(self) -> None:
        """Verify that the connection answers, and so still has its lock; else acquire it again."""
        try:
            if self._connection is not None:
                self._connection.execute(sa.select(1))
                return
        except sa.exc.DBAPIError:
            self.release()
        self.take()

    def release(self) -> None:
        """Close the connection, and with it the lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _taken(shown: str) -> str:
    return (
        f"Another platform uses the store {shown}. A store serves one platform: stop the other one, or start "
        "this one with another database."
    )
