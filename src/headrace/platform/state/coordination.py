"""
Coordination of the platforms ("members") that share a store: which exist, which one leads, and what they report.

All members serve requests. The leader also runs the loops that act: reconciler, autoscaler, scraper. A member announces
itself with each heartbeat, and the leader's lease is a row that expires; both use the database's clock, so that the
clocks of machines need not agree. Each time a member begins to lead it does so in a later term, which fences the writes
of earlier leaders (`Store.fenced`), its own ones included.

Bulletins carry what changes too often for records: loads and measurements. Each author numbers its own.

In PostgreSQL the tables are beside the records. Processes of one host that share an SQLite store keep the tables in a
separate file, which is not flushed to disk: a restart of the host ends all of these processes.

All methods block on SQL; each is one transaction.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from headrace.core.errors import HeadraceError, SettingsError, Unavailable
from headrace.platform.state.coordination_tables import (
    AGREEMENTS,
    ANNOUNCE,
    BULLETINS,
    GIVE_UP,
    HOME,
    LEADER,
    LEASE,
    LIVE_MEMBERS,
    MEMBERS,
    RENEW,
    REPORTERS,
    TABLES,
    TAKE,
)
from headrace.platform.state.database import engine_of, first_line, is_sqlite, shown_url, url_of
from headrace.platform.state.schema import creating

HEARTBEAT_S: Final = 0.5
"""Seconds between heartbeats."""
LEASE_S: Final = 2.0
"""Seconds since its last heartbeat after which a member counts as gone, and its lease as expired."""
BULLETIN_AGE_S: Final = 60.0
"""Seconds until a bulletin is removed, read or not."""
_WAIT_S: Final = 1
"""Timeout of a statement, so that a member knows before its lease expires that it cannot renew it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A platform on a shared store."""

    id: str
    url: str
    """The member's address for clients on its machine; for those on all machines if the platform is spread."""
    host: str
    """Identifies its machine and PID namespace: members of one host can signal each other's processes."""
    data_dir: str
    version: str
    forms: Mapping[str, int] = field(default_factory=dict)
    """Kind of record → the schema version that the member writes, which is also the newest that it reads."""

    def is_outdated_by(self, other: "Member") -> bool:
        """Return whether the other member writes records that this one cannot read."""
        return any(version > self.forms.get(kind, 0) for kind, version in other.forms.items())

    @property
    def machine(self) -> str:
        """The name of its machine in a spread platform: the address that it advertises."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """
    The folder of the workers, the embedded S3 server and the metrics, which all members of a host share.

    A spread platform has none: each of its machines has a folder of its own.
    """

    host: str
    data_dir: str
    agreed: str
    """The settings in which all members agree, as text."""
    newer: Member | None = None
    """A live member that writes records which this process cannot read."""
    rival: Member | None = None
    """A live member elsewhere that advertises the same address."""


class Displaced(HeadraceError):
    """The platform has moved to another home since this member's last heartbeat, and no longer uses its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    term: int
    leader: str
    """Id of the leader; empty if the lease is free."""
    members: tuple[Member, ...]
    """The live members, this one included, ordered by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulletin:
    member: str
    number: int
    topic: str
    body: bytes


class Coordination:
    """The coordination tables, as one member uses them."""

    def __init__(self, where: str, member: Member, *, agreed: str = "", is_spread: bool = False) -> None:
        """
        Create the engine without connecting.

        `open` compares `agreed`, the settings in which all members agree. A platform that `is_spread` has members on
        several machines, and no home.
        """
        url = url_of(where)
        self.member = member
        self.is_spread = is_spread
        self._agreed = agreed
        self._own_home = ("", "") if is_spread else (member.host, member.data_dir)
        self._engine = engine_of(url, wait_s=_WAIT_S, is_durable=False)
        self._shown = shown_url(url)
        self._is_sqlite = is_sqlite(url)
        self._home: tuple[str, str] | None = None
        """Host and folder of the platform that this member has joined."""
        self._term: int | None = None
        """The term in which this member leads."""
        self._num_posted = 0
        self._read: dict[str, int] = {}
        """Member → number of its bulletin that was read last."""

    def open(self, *, term: int) -> Home:
        """
        Create the tables if they do not exist, and join the members; the folder of the first one is the home.

        A process on another host, with other settings or with older record schemas does not join: the caller compares
        the returned home. The next leader's term is later than `term`, the store's newest.

        Raises `Unavailable`: the database failed.
        """
        with self._translated(), creating(self._engine, TABLES) as connection:
            now_s = self._now_s(connection)
            row = connection.execute(sa.select(LEADER)).one_or_none()
            if row is None:
                empty = {"member": "", "term": term, "expires_s": 0.0, "home_host": "", "home_dir": "", "agreed": ""}
                connection.execute(sa.insert(LEADER).values(id=1, **empty))
            if row is not None and row.term < term:  # the records come from a backup, or from another database
                connection.execute(sa.update(LEADER).values(term=term, member="", expires_s=0.0))
            # The home of live members stays; else that of the last one, if it was this machine's and still exists.
            live = self._live(connection, now_s=now_s)
            newer = next(filter(self.member.is_outdated_by, live), None)
            rival = next(filter(self._is_rival, live), None) if self.is_spread else None
            own_host, own_dir = self._own_home
            home = Home(host=own_host, data_dir=own_dir, agreed=self._agreed)
            if row is not None and live:
                home = Home(host=row.home_host, data_dir=row.home_dir, agreed=row.agreed)
            elif row is not None and row.home_host == home.host and Path(row.home_dir).is_dir():
                home = Home(host=row.home_host, data_dir=row.home_dir, agreed=self._agreed)
            home = replace(home, newer=newer, rival=rival)
            if home.host == own_host and home.agreed == self._agreed and newer is None and rival is None:
                values = {"home_host": home.host, "home_dir": home.data_dir, "agreed": home.agreed}
                connection.execute(sa.update(LEADER).values(**values))
                self._announce(connection, expires_s=now_s + LEASE_S)
                self._home = (home.host, home.data_dir)
            return home

    def _is_rival(self, other: Member) -> bool:
        is_here = (other.host, other.data_dir) == (self.member.host, self.member.data_dir)
        return other.machine == self.member.machine and not is_here

    def agree(self, name: str, make: Callable[[], str]) -> str:
        """Return a value that all members share: the one that the first member made. It is in no backup."""
        with self._translated(), creating(self._engine, TABLES) as connection:
            known = sa.select(AGREEMENTS.c.value).where(AGREEMENTS.c.name == name)
            value = connection.execute(known).scalar_one_or_none()
            if value is None:
                value = make()
                connection.execute(sa.insert(AGREEMENTS).values(name=name, value=value))
            return value

    def close(self) -> None:
        self._engine.dispose()

    def heartbeat(self, *, is_candidate: bool = True, is_leading: bool = True) -> Standing:
        """
        Announce this member, and renew or take the lease; a member that is not a candidate gives up its lease.

        A member that is not leading begins a new term: the writes of its last one may still be on their way.

        Raises:
            Unavailable: the database failed. The lease is lost `LEASE_S` after the start of the last heartbeat.
            Displaced: all members of this host were away, and the platform has another home.
        """
        with self._writing() as connection:
            self._check_home(connection)  # before it counts as live: a displaced member must not come back
            now_s = self._now_s(connection)
            self._announce(connection, expires_s=now_s + LEASE_S)
            self._campaign(connection, now_s=now_s, is_candidate=is_candidate, is_leading=is_leading)
            return self._standing(connection, now_s=now_s)

    def leave(self) -> tuple[Member, ...]:
        """Give up the lease and remove this member; return the other members."""
        with self._writing() as connection:
            now_s = self._now_s(connection)
            self._campaign(connection, now_s=now_s, is_candidate=False, is_leading=False)
            connection.execute(sa.delete(MEMBERS).where(MEMBERS.c.id == self.member.id))
            return self._live(connection, now_s=now_s)

    def bury(self, member_id: str) -> None:
        """
        Remove another member, whose process has ended as its parent knows, and end its lease.

        The next leader begins a new term all the same, which fences what the ended process may have sent before.
        """
        with self._writing() as connection:
            connection.execute(sa.update(LEADER).where(LEADER.c.member == member_id).values(expires_s=0.0))
            connection.execute(sa.delete(MEMBERS).where(MEMBERS.c.id == member_id))

    def others(self) -> tuple[Member, ...]:
        """Return the other live members; one that was killed counts until its heartbeat expires."""
        with self._translated(), self._engine.connect() as connection:
            members = self._live(connection, now_s=self._now_s(connection))
        return tuple(member for member in members if member.id != self.member.id)

    def post(self, bulletins: Mapping[str, bytes]) -> None:
        """Post a bulletin for each topic, and remove old ones."""
        with self._writing() as connection:
            now_s = self._now_s(connection)
            connection.execute(sa.delete(BULLETINS).where(BULLETINS.c.posted_s < now_s - BULLETIN_AGE_S))
            for topic, body in bulletins.items():
                self._num_posted += 1
                row = {"member": self.member.id, "number": self._num_posted, "topic": topic, "body": body}
                connection.execute(sa.insert(BULLETINS).values(**row, posted_s=now_s))

    def read(self) -> Sequence[Bulletin]:
        """Return the bulletins of other members that were posted since the last call, each member's in order."""
        others = sa.select(BULLETINS).where(BULLETINS.c.member != self.member.id)
        unread = [
            sa.not_(sa.and_(BULLETINS.c.member == member, BULLETINS.c.number <= number))
            for member, number in self._read.items()
        ]
        wanted = others.where(*unread).order_by(BULLETINS.c.member, BULLETINS.c.number)
        with self._translated(), self._engine.connect() as connection:
            rows = connection.execute(wanted).all()
            known = set(connection.execute(REPORTERS).scalars())
        self._read = {member: number for member, number in self._read.items() if member in known}
        self._read |= {row.member: row.number for row in rows}
        return [Bulletin(member=row.member, number=row.number, topic=row.topic, body=row.body) for row in rows]

    def _check_home(self, connection: sa.Connection) -> None:
        """Raise `Displaced` if the workers in the routes are elsewhere: here, others listen on their loopback ports."""
        row = connection.execute(HOME).one()
        if self._home is not None and (row.home_host, row.home_dir) != self._home:
            raise Displaced(
                f"Another platform uses the database since this one could not reach it; its folder is {row.home_dir}"
                f"{'' if row.home_host == self.member.host else ' on another machine or in another container'}. This "
                "platform stops, and so do its workers. Start it again when the other one has ended."
            )

    def _announce(self, connection: sa.Connection, *, expires_s: float) -> None:
        member = self.member
        row = {"url": member.url, "host": member.host, "data_dir": member.data_dir, "version": member.version}
        row["forms"] = json.dumps(dict(member.forms))
        renewed = connection.execute(ANNOUNCE, {"own_id": member.id, **row, "expires_s": expires_s})
        if not renewed.rowcount:
            connection.execute(sa.insert(MEMBERS).values(id=member.id, **row, expires_s=expires_s))

    def _campaign(self, connection: sa.Connection, *, now_s: float, is_candidate: bool, is_leading: bool) -> None:
        """Renew the lease, take an expired one, or give it up."""
        own = {"own_id": self.member.id, "own_term": self._term}
        if self._term is not None and not (is_candidate and is_leading):
            connection.execute(GIVE_UP, own)
            self._term = None
        if not is_candidate:
            return
        until_s = now_s + LEASE_S
        if self._term is not None:
            renewed = connection.execute(RENEW, {**own, **_times(now_s), "expires_s": until_s})
            if renewed.rowcount:
                return
        # Either never leader, or suspended for longer than the lease: only a new term makes this member lead.
        taken = connection.execute(TAKE, {"own_id": self.member.id, "until_s": until_s, **_times(now_s)})
        self._term = taken.scalar_one_or_none()

    def _standing(self, connection: sa.Connection, *, now_s: float) -> Standing:
        lease = connection.execute(LEASE, _times(now_s)).one()
        members = self._live(connection, now_s=now_s)
        return Standing(term=lease.term, leader=lease.member if lease.is_live else "", members=members)

    @staticmethod
    def _live(connection: sa.Connection, *, now_s: float) -> tuple[Member, ...]:
        rows = connection.execute(LIVE_MEMBERS, _times(now_s)).mappings()
        return tuple(Member(**{**row, "forms": json.loads(row["forms"])}) for row in rows)

    def _now_s(self, connection: sa.Connection) -> float:
        """Return seconds on the clock that all members share: the database server's, or the kernel's since its boot."""
        if self._is_sqlite:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return _server_s(connection)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            connection.execution_options(headrace_is_writing=True)
            with connection.begin():
                if not self._is_sqlite:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise Unavailable(f"The store {self._shown} failed: {first_line(error)}.") from error


def end_membership(connection: sa.Connection, *, term: int) -> int:
    """
    Begin a new term, later than `term`, for the members of a PostgreSQL database, none of which is live; return it.

    A suspended member that resumes is then no longer the leader. In SQLite there is nothing to do: only one platform
    opens the file, and its members are forgotten when it starts. Under the lock of `creating`, no member joins.

    Raises `SettingsError`: a member is live.
    """
    if not sa.inspect(connection).has_table(LEADER.name):
        return term + 1
    if (member := connection.execute(LIVE_MEMBERS, _times(_server_s(connection))).first()) is not None:
        raise SettingsError(
            f"The platform at {member.url} uses the database. Stop it first: "
            f"`headrace down --data-dir {shlex.quote(member.data_dir)}`."
        )
    newest = connection.execute(sa.select(LEADER.c.term)).scalar_one_or_none() or 0
    new = max(newest, term) + 1
    connection.execute(sa.update(LEADER).values(member="", expires_s=0.0, term=new))
    connection.execute(sa.delete(BULLETINS))
    return new


def _times(now_s: float) -> dict[str, float]:
    """Return the values of `_is_live`."""
    return {"now_s": now_s, "latest_s": now_s + 2 * LEASE_S}


def _server_s(connection: sa.Connection) -> float:
    """Return seconds on the clock of a PostgreSQL server."""
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())
