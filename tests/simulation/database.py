"""
The database of all members: the real store, coordination and blobs over one SQLite database in memory.

A transaction is indivisible, as both databases promise. Between two of them a function may be interrupted; a message to
the database or its answer may be late, or lost, also after the commit. A process may die at each statement and on both
sides of a commit. The writes of the others are announced late, twice, or only with the next look.
"""

import random
import sqlite3
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from headrace.platform.state import blobs, coordination_tables
from headrace.platform.state.records import Fenced
from headrace.platform.state.schema import COUNTER, RECORDS, creating, set_up
from tests.simulation.loop import OUTSIDE, PROCESS, Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.threads import Killed

TERM: Final[ContextVar[int | None]] = ContextVar("term", default=None)
"""The term whose leader's loops run in this context."""
MISSED_S: Final = 1.0
"""A write whose announcement was lost is found by the next look at the revision, after at most this time."""
SHARE_LONG: Final = 0.1
LONG_S: Final = 3.0
"""Longest time between two transactions of a function: its thread waits for the processor."""
VERY_LONG_S: Final = 15.0
"""The same after the commit of an invocation, which a leader may look for and end meanwhile."""
ACT_S: Final = 1.0
"""A process that was stopped notices within this time that its lease is over."""
_BLOB_WRITES: Final = ("INSERT INTO headrace_blobs", "DELETE FROM headrace_blobs")
_LOST: Final = "server closed the connection unexpectedly"


@dataclass(slots=True)
class Database:
    """The database of one simulation, and its faults."""

    loop: SimulatedLoop
    network: Network
    rng: random.Random
    late: random.Random
    """Draws which answers to commits are late."""
    on_commit: Callable[[Process], None]
    """Called after each commit that has written records, in its middle for all others."""
    announce: dict[Process, Callable[[], None]] = field(default_factory=dict)
    """Process → what tells its listeners of a write."""
    dies_after: dict[Process, int] = field(default_factory=dict)
    """Process → statements and ends of transactions until it dies."""
    stalls: dict[Process, float] = field(default_factory=dict)
    """Leader → how long its process is stopped from its next transaction on, if that can be interrupted."""
    hangs: dict[Process, float] = field(default_factory=dict)
    """Process → how long its next transaction hangs that is none of a leader's loop, if it can be interrupted."""
    failing_until_s: float = 0.0
    """Until then, some transactions fail: the disk, or the connection."""
    term: int = 0
    term_began_s: float = 0.0
    leaders: dict[int, str] = field(default_factory=dict)
    """Term → the process that began it."""
    findings: list[str] = field(default_factory=list)
    on_death: Callable[[Process], None] = lambda _: None
    on_blobs: Callable[[], None] = lambda: None
    """Called after each commit that has written blobs."""
    is_written: bool = False
    """The transaction has written records."""
    is_blob_written: bool = False
    is_term_written: bool = False
    num_commits: int = 0
    read: dict[tuple[int, str], Any] = field(default_factory=dict)
    """Number of commits, and what was read → the result."""

    def step(self, process: Process) -> None:
        """Let the process die here, if its time has come."""
        if process.is_dead and not self.loop.is_closing:
            raise Killed
        left = self.dies_after.get(process)
        if left is None:
            return
        self.dies_after[process] = left - 1
        if left <= 1:
            del self.dies_after[process]
            self.on_death(process)
            raise Killed

    def begin(self, process: Process) -> None:
        """Let time pass before a transaction, or fail it."""
        if self.loop.is_closing:
            raise Killed
        self.loop.pause_function(self._pause_s(process))
        cut_s = self.network.cut_from_database.get(process, 0.0) - self.loop.now_s
        if cut_s > 0 and (not self.loop.pause_function(min(cut_s, 1.0)) or cut_s > 1.0):
            raise sqlite3.OperationalError("connection refused")
        if self.loop.now_s < self.failing_until_s and self.rng.random() < 0.3:
            raise sqlite3.OperationalError("disk I/O error")
        self.step(process)
        self.is_written = self.is_blob_written = self.is_term_written = False

    def _pause_s(self, process: Process) -> float:
        """Draw the delay of a transaction, usually a short one; stop the process if it is due."""
        if process in self.stalls and TERM.get() is not None and self.loop.strand is not None:
            process.is_paused = True
            self.loop.call_later(self.stalls.pop(process), self.loop.resume, process, context=self.network.context)
        if process in self.hangs and TERM.get() is None and self.loop.strand is not None:
            return self.hangs.pop(process)
        if self.rng.random() < SHARE_LONG:
            return self.rng.uniform(0.1, LONG_S)
        return self.network.database_delay_s(process)

    def committed(self, process: Process) -> None:
        """Tell the others of a commit; then the answer may be late or lost."""
        if self.is_written or self.is_term_written:
            self._check_term(process)
        if self.is_written:
            self.num_commits += 1
            self.on_commit(process)
            for other, tell in self.announce.items():
                if other is not process:
                    self._announce(other, tell)
        if self.is_blob_written:
            self.on_blobs()
        if self.late.random() < SHARE_LONG:
            self.loop.pause_function(self.late.uniform(0.1, VERY_LONG_S if self.is_blob_written else LONG_S))
        self.step(process)
        if self.loop.now_s < self.network.cut_from_database.get(process, 0.0) or (
            self.loop.now_s < self.failing_until_s and self.rng.random() < 0.1
        ):
            raise sqlite3.OperationalError(_LOST)

    def _announce(self, process: Process, tell: Callable[[], None]) -> None:
        """Announce a write to a process: usually soon, sometimes twice, and at the latest with its next look."""
        chance, context = self.rng.random(), self.loop.context_of(process)
        delay_s = self.network.delay_s() if chance > 0.1 else self.rng.uniform(0.0, MISSED_S)
        delay_s += max(0.0, self.network.cut_from_database.get(process, 0.0) - self.loop.now_s)
        self.loop.call_later(delay_s, tell, context=context)
        if chance > 0.95:
            self.loop.call_later(self.rng.uniform(0.0, MISSED_S), tell, context=self.loop.context_of(process))

    def is_over(self, term: int | None, process: Process) -> bool:
        """Return whether the term of a process is over, for longer than the process needs to notice."""
        since_s = max(self.term_began_s, process.continued_s)
        return term is not None and term < self.term and self.loop.now_s - since_s > ACT_S

    def _check_term(self, process: Process) -> None:
        """Note a write of a leader whose term is over, and a term with two leaders."""
        (term,) = CONNECTION.execute("SELECT term FROM headrace_store").fetchone()
        if term < self.term:
            self.findings.append(f"Term {term} began after term {self.term}.")
        written_in = TERM.get()
        if term > self.term:
            self.term, self.term_began_s = term, self.loop.now_s
        if written_in is None:
            return
        if written_in != term:
            self.findings.append(f"{process.name} wrote for its term {written_in} in term {term}.")
        if self.leaders.setdefault(written_in, process.name) != process.name:
            self.findings.append(f"{process.name} and {self.leaders[written_in]} lead in term {written_in}.")


_current: Database | None = None
CONNECTION: Final = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
"""The database, which outlives a simulation: the next one empties it."""


class _Connection:
    """A connection to the one database; at most one of them has a transaction."""

    def __getattr__(self, name: str) -> Any:
        return getattr(CONNECTION, name)

    def commit(self) -> None:
        """Commit, unless the process dies before."""
        database, process = _current, PROCESS.get()
        if database is None or process is OUTSIDE:
            CONNECTION.commit()
            return
        try:
            database.step(process)
        except Killed:
            CONNECTION.rollback()  # as a server does; SQLAlchemy has ended the transaction on its side
            raise
        CONNECTION.commit()
        database.committed(process)

    def close(self) -> None:
        pass


def _enter() -> None:
    """Let time pass before a transaction, or fail it as SQLAlchemy does."""
    database, process = _current, PROCESS.get()
    if database is not None and process is not OUTSIDE:
        try:
            database.begin(process)
        except sqlite3.OperationalError as error:
            raise sa.exc.OperationalError("BEGIN", {}, error) from error


def read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a method of a store that reads once after each commit, for all members.

    Every call takes its time, and may fail, as a transaction does.
    """

    def reading(store: Any, *args: Any) -> Any:
        database = _current
        if database is None:
            return read(store, *args)
        key = (database.num_commits, f"{read.__name__} {' '.join(map(str, args))}")
        if key not in database.read:
            found = read(store, *args)
            database.read[database.num_commits, key[1]] = found  # other members may have written meanwhile
            return found
        with store._translated():
            _enter()
        return database.read.get((database.num_commits, key[1]), database.read[key])

    return reading


def _on_begin(connection: sa.Connection) -> None:
    _enter()
    is_writing = connection.get_execution_options().get("headrace_is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _on_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    database = _current
    if database is None or statement.startswith("BEGIN"):
        return
    if statement.startswith("UPDATE headrace_store SET revision"):
        database.is_written = True
    elif statement.startswith("UPDATE headrace_store SET term"):
        database.is_term_written = True
    elif statement.startswith(_BLOB_WRITES):
        database.is_blob_written = True
    if not statement.startswith("SELECT"):
        database.step(PROCESS.get())


def _make_engine() -> sa.Engine:
    engine = sa.create_engine("sqlite://", poolclass=QueuePool, pool_size=200, creator=_Connection)
    sa.event.listen(engine, "begin", _on_begin)
    sa.event.listen(engine, "before_cursor_execute", _on_statement)
    set_up(engine, "memory")
    for tables in (coordination_tables.TABLES, blobs._METADATA):
        with creating(engine, tables):
            pass
    return engine


ENGINE: Final = _make_engine()
"""One engine for all simulations of this process, because it keeps the statements that it has compiled."""


def check_term(connection: sa.Connection, term: int) -> None:
    """Refuse blobs of a term that is over, as with PostgreSQL: members of several machines share these blobs."""
    newest = connection.execute(sa.select(COUNTER.c.term)).scalar_one()
    if newest != term:
        raise Fenced(f"Another platform leads since term {newest}; this write is of term {term}.")


def open_database(database: Database | None) -> None:
    """Empty the database, and let `database` decide about the transactions from now on."""
    global _current  # noqa: PLW0603 -- the engine's events have no other place to find it
    _current = None
    if CONNECTION.in_transaction:
        CONNECTION.rollback()
    with ENGINE.begin() as connection:
        for table in (RECORDS, blobs._BLOBS, *coordination_tables.TABLES.sorted_tables):
            connection.execute(sa.delete(table))
        connection.execute(sa.update(COUNTER).values(revision=0, term=0))
    _current = database
