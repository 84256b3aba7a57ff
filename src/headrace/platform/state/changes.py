"""
The listeners that a store calls after each write, and the writes of other processes, which are reported to them.

PostgreSQL announces them (LISTEN, NOTIFY). The newest revision is also read every second, because a connection pooler,
such as PgBouncer in transaction mode, delivers no notifications. For an SQLite file, a thread polls
`PRAGMA data_version`, a read of shared memory: start it only where other processes write.
Source: https://www.postgresql.org/docs/current/sql-notify.html, https://www.sqlite.org/pragma.html#pragma_data_version
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from headrace.core.telemetry import get_logger
from headrace.platform.state.database import engine_of, first_line, is_in_memory, is_sqlite, url_of
from headrace.platform.state.schema import CHANNEL, COUNTER


class Listeners:
    """Functions to call after writes to a store; any thread may use it."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        """Identifies the writes of this process among those of others."""
        self.has_others = True
        """False while no other platform is known to write: only commands do, and an SQLite file is polled less."""
        self._functions: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Register a listener; return a function that unregisters it."""
        token = object()
        with self._lock:
            self._functions[token] = listener

        def end() -> None:
            with self._lock:
                self._functions.pop(token, None)

        return end

    def call_uncertain(self) -> None:
        """Report a write that failed: it may be committed, now or in a moment, and only its answer lost."""
        self.id = uuid.uuid4().hex  # so that the announcement of the write counts as that of another process
        self.call()

    def call(self) -> None:
        with self._lock:
            listeners = tuple(self._functions.values())
        for listener in listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 -- the write is committed; its caller must not see an error
                get_logger().exception("store.listener_failed")


_POLL_S: Final = 0.05
_ALONE_POLL_S: Final = 0.5
"""Seconds between polls while only commands write, such as `headrace keys create`."""
_REVISION_S: Final = 1.0
"""Seconds between reads of the newest revision."""
_MAX_RETRY_S: Final = 2.0


@contextmanager
def followed(where: str | Path, listeners: Listeners) -> Iterator[None]:
    """Call `listeners` after writes of other processes, from a thread, until the block ends."""
    url = url_of(where)
    if is_in_memory(url):
        yield
        return
    engine, ended = engine_of(url, poolclass=NullPool), threading.Event()
    follow = _poll if is_sqlite(url) else _listen
    thread = threading.Thread(
        target=_keep_following, args=(follow, engine, listeners, ended), name="store-changes", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        engine.dispose()


_Follow = Callable[[sa.Engine, Listeners, threading.Event], None]


def _keep_following(follow: _Follow, engine: sa.Engine, listeners: Listeners, ended: threading.Event) -> None:
    """Follow until `ended`; after an error, reconnect and report a write: some may have been missed."""
    retry_s = _POLL_S
    while not ended.is_set():
        began_s = time.monotonic()
        try:
            follow(engine, listeners, ended)
        except Exception as error:  # noqa: BLE001 -- the edge of the thread: any error of a database or its driver
            get_logger().warning("store.changes_interrupted", reason=first_line(error))
            engine.dispose()
        retry_s = _POLL_S if time.monotonic() - began_s > _MAX_RETRY_S else min(2 * retry_s, _MAX_RETRY_S)
        ended.wait(retry_s)


def _listen(engine: sa.Engine, listeners: Listeners, ended: threading.Event) -> None:
    import psycopg

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        session = connection.connection.driver_connection
        assert isinstance(session, psycopg.Connection)
        revision = None
        writers: set[str] = set()
        while not ended.is_set():
            newest = connection.execute(sa.select(COUNTER.c.revision)).scalar_one()
            if writers - {listeners.id} or (newest != revision and not writers):
                listeners.call()
            revision = newest
            writers = {notice.payload for notice in session.notifies(timeout=_REVISION_S, stop_after=1)}


def _poll(engine: sa.Engine, listeners: Listeners, ended: threading.Event) -> None:
    with engine.connect() as connection:
        session = connection.connection.driver_connection
        assert session is not None
        version = None
        while not ended.wait(_POLL_S if listeners.has_others else _ALONE_POLL_S):
            newest = session.execute("PRAGMA data_version").fetchone()
            if newest != version:
                version = newest
                listeners.call()
