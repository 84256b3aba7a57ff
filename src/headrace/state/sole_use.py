"""
The right to act on a database: one platform has it, and another one that is started on the same database is refused.

Two reconcilers on one set of records would each take the other's workers for lost ones. Reading, and writing what is
wanted (access keys, say), needs no such right.

In PostgreSQL it is a session's advisory lock, which the server takes back when the session ends, however it ends;
it does not work through a pooler that shares sessions (PgBouncer's transaction mode). For a file of SQLite it is a lock
of the kernel on a file beside it.
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
"""For the server to see that a platform which was killed a moment ago is gone."""
_POLL_S: Final = 0.1
_KEEPALIVE: Final = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""A machine that is lost holds the lock for half a minute, not for the two hours of the default."""


class SoleUse(Protocol):
    """The right, taken."""

    def check(self) -> None:
        """
        See that it is still there, and take it again where the connection was lost.

        Raises:
            SettingsError: somebody else has it now: stop acting.
            Unavailable: the database does not answer, so that nobody can act on it.
        """
        ...

    def release(self) -> None:
        """Give it back."""
        ...


def take_sole_use(where: str | Path, *, patience_s: float = PATIENCE_S) -> SoleUse:
    """
    Take the right to act on the database of a store.

    Args:
        where: as for `open_store`.
        patience_s: how long to ask PostgreSQL for it.

    Raises:
        SettingsError: another platform has it, or the database cannot be opened.
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
    """Nobody else can reach it."""

    def check(self) -> None:
        """Nothing can happen to it."""

    def release(self) -> None:
        """Nothing to give back."""


class _FileLock:
    """Held by the kernel for this process."""

    def __init__(self, database: Path) -> None:
        # NOTE: not the file of the database: to close that would drop SQLite's own locks on it.
        path = database.with_name(f"{database.name}.lock")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"The store's lock {path} cannot be made: {error.strerror}.") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise SettingsError(_taken(str(database))) from error

    def check(self) -> None:
        """The kernel keeps it as long as this process lives."""

    def release(self) -> None:
        """Let another platform in."""
        os.close(self._descriptor)


class _AdvisoryLock:
    """Held by PostgreSQL for one connection, which is kept open for it."""

    def __init__(self, url: sa.URL) -> None:
        self._shown = shown_url(url)
        self._engine = engine_of(url, poolclass=NullPool)
        self._connection: sa.Connection | None = None

    def take(self, *, patience_s: float = 0.0) -> None:
        """Take the lock on a new connection."""
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
        """A connection that answers still has its lock."""
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
        f"Another platform works on the store {shown}. One store serves one platform: stop the other one, or start "
        "this one with another database."
    )
