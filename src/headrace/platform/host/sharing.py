"""Sharing of a database and a folder between the processes of a platform."""

import hashlib
import json
import os
import secrets
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from headrace import __version__
from headrace.core.errors import SettingsError
from headrace.core.processes import host_id
from headrace.platform.cluster.machines import Presence
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.batches import BatchGateway
from headrace.platform.gateway.key_usage import KeyCounts, KeyUsages
from headrace.platform.gateway.metrics import render
from headrace.platform.host.channel import Channel
from headrace.platform.host.console import TRAFFIC
from headrace.platform.host.folders import Address, DataFolder
from headrace.platform.host.membership import Leading, Membership, Shared
from headrace.platform.host.operations import KINDS
from headrace.platform.host.peers import ASYNC, QUARANTINE, Peers, Report, Siblings, share_responses
from headrace.platform.host.supervisor import Child
from headrace.platform.state.changes import followed
from headrace.platform.state.coordination import HEARTBEAT_S, LEASE_S, Coordination, Home, Member, Standing
from headrace.platform.state.database import is_sqlite, url_of
from headrace.platform.state.store import Store
from headrace.serving.http.tls import client_context
from headrace.serving.settings.platform_settings import PlatformSettings

_AGREED: Final = ("account", "cluster", "region", "require_keys", "s3_endpoint", "strict")
"""Settings that must be the same for all platforms on a database."""
_SPREAD: Final = "advertise"
"""Name among the agreed settings; its value differs between machines, so that only its presence is agreed."""

_RIVAL_S: Final = LEASE_S + HEARTBEAT_S
"""Time in which a platform that had this one's address has gone, if it was killed."""

METRICS: Final = "metrics"
"""The question for a process's page of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The folder and the coordination that a process shares with the others of its platform."""

    folder: DataFolder
    """The folder that this process was started with."""
    home: DataFolder
    """
    The folder of the workers, the embedded S3 server and the metrics: that of the first platform on a database.

    In a spread platform, the folder of the platform on this machine.
    """
    coordination: Coordination | None = None
    """None: this platform has its database for itself."""
    secret: str = field(default="", repr=False)
    """The secret of the members of a spread platform; empty: it is on one machine."""
    namespace: str = ""
    """The name of a spread platform on a Ray cluster; empty: the one in `home`."""
    tls: ssl.SSLContext | None = None
    """Whom to trust at other machines; None: they do not speak TLS."""


@contextmanager
def join(
    settings: PlatformSettings,
    where: str | Path,
    folder: DataFolder,
    store: Store,
    address: Address,
    *,
    child: Child | None = None,
) -> Iterator[Sharing]:
    """
    Join the platforms on a database; `Coordination.leave` is the caller's.

    Without a supervisor, of which this process is a `child`, no other process uses a file of SQLite. Raises
    `SettingsError` if they run on another machine, with other settings, or write records of a newer form.
    """
    is_own = is_sqlite(url_of(where))
    if is_own and child is None:
        yield Sharing(folder=folder, home=folder)
        return
    member = Member(
        id=child.member_id if child is not None else secrets.token_hex(8),
        url=advertised_url(settings.advertise, address.url),
        host=host_id(),
        data_dir=str(folder.root),
        version=__version__,
        forms={name: kind.version for name, kind in KINDS.items()},
    )
    agreed = agreed_settings(settings)
    coordination = Coordination(
        str(folder.members if is_own else where), member, agreed=agreed, is_spread=settings.is_spread
    )
    try:
        home, deadline_s = coordination.open(term=store.term()), time.monotonic() + _RIVAL_S
        while home.rival is not None and time.monotonic() < deadline_s:  # it may have just ended here
            time.sleep(HEARTBEAT_S)
            home = coordination.open(term=store.term())
        if child is not None and child.predecessor:
            coordination.bury(child.predecessor)
        _check_home(home, member, agreed=agreed, is_spread=settings.is_spread)
        shared = folder if settings.is_spread else DataFolder(Path(home.data_dir))
        if not os.access(shared.root, os.W_OK | os.X_OK):
            raise SettingsError(
                f"database is used by a platform with the folder {shared.root}, which this user cannot write. Start "
                "this platform as the same user, or choose another database.",
                name="database",
            )
        secret = coordination.agree("secret of members", secrets.token_urlsafe) if settings.is_spread else ""
        namespace = coordination.agree("ray namespace", folder.cluster_namespace) if settings.is_spread else ""
        tls = client_context(address.ca_bundle) if settings.is_spread else None
        with followed(where, store.listeners):
            yield Sharing(
                folder=folder, home=shared, coordination=coordination, secret=secret, namespace=namespace, tls=tls
            )
    finally:
        coordination.close()


def _check_home(home: Home, member: Member, *, agreed: str, is_spread: bool) -> None:
    """Raise `SettingsError` if a member may not join the platform that it found."""
    theirs, ours = json.loads(home.agreed), json.loads(agreed)
    if theirs.get(_SPREAD, False) != is_spread:
        others = "without it" if is_spread else "with it, on several machines"
        raise SettingsError(
            f"advertise is {'set' if is_spread else 'not set'}, and another platform on this database runs {others}. "
            f"Start this one {'without' if is_spread else 'with'} --advertise, or stop the other one first.",
            name="advertise",
        )
    if not is_spread and home.host != member.host:
        raise SettingsError(
            f"database is used by a platform on another machine or in another container (its folder there is "
            f"{home.data_dir}). Start all of them with --advertise to share a database between machines; or start "
            "this one there, stop the other one, or choose another database.",
            name="database",
        )
    if home.rival is not None:
        raise SettingsError(
            f"advertise is {member.machine}, and the platform with the folder {home.rival.data_dir} on another machine "
            "or in another container advertises the same. Start each with the address of its own machine.",
            name="advertise",
        )
    if home.newer is not None:
        newer = home.newer
        raise SettingsError(
            f"The platform at {newer.url} uses these records, and it is a newer Headrace ({newer.version}; this "
            f"one is {__version__}), which writes records that this one cannot read. Start version "
            f"{newer.version}, or stop the newer one and restore a backup that is older.",
            name="database",
        )
    if home.agreed != agreed:
        name = next(name for name in _AGREED if theirs.get(name) != ours[name])
        raise SettingsError(
            f"{name} is {ours[name]!r}, and another platform on this database has {theirs.get(name)!r}. Platforms "
            "that share a database need the same settings: start this one with that value, or with another "
            "database."
        )


def advertised_url(advertise: str | None, own_url: str) -> str:
    """Return the URL of a platform at an advertised address, whose port is its own by default; its own without one."""
    if advertise is None:
        return own_url
    own, netloc = urlsplit(own_url), advertise
    if urlsplit(f"//{advertise}").port is None:
        netloc = f"{advertise}:{own.port}"
    return f"{own.scheme}://{netloc}"


def agreed_settings(settings: PlatformSettings) -> str:
    """Return the settings in which all platforms on a database agree, in JSON."""
    # Earlier versions, which may run during an upgrade, do not know that a platform may be spread.
    return json.dumps(
        {name: getattr(settings, name) for name in _AGREED} | ({_SPREAD: True} if settings.is_spread else {})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """This process's ties to the other processes of its platform; only a membership if there can be none."""

    membership: Membership
    peers: Peers | None = None
    links: "Links | None" = None

    @property
    def machine(self) -> tuple[str, bool]:
        """The name of this machine and whether it leads; see `Links.machine`."""
        return ("", False) if self.links is None else self.links.machine

    async def ask(self, question: str, argument: object) -> Sequence[Any]:
        """Return the answers of the other processes to a question."""
        return () if self.links is None else await self.links.ask(question, argument)


def usages_of(sharing: Sharing) -> KeyUsages:
    """Return the counters of access keys, in the folder that all processes of the platform share."""
    if sharing.coordination is None:
        return KeyUsages(sharing.home.key_usage)
    return KeyUsages(sharing.home.key_usage, owner=_owner_of(sharing.coordination.member.id))


def _owner_of(member_id: str) -> int:
    """Return the number of a member among the counters; not 0."""
    return int.from_bytes(hashlib.blake2b(member_id.encode(), digest_size=7).digest(), "big") + 1


@dataclass(slots=True, kw_only=True)
class Links:
    """The ways by which this process asks the others of its platform."""

    siblings: Siblings
    channel: Channel | None = None
    """None: the platform is on one machine."""
    standing: Standing | None = None
    """The members, as the last heartbeat has shown them."""

    async def ask(self, question: str, argument: object) -> Sequence[Any]:
        """Return the answers of the other processes, also on other machines, to a question."""
        return await (self.channel or self.siblings).ask(question, argument)

    @property
    def machine(self) -> tuple[str, bool]:
        """The name of this machine, empty if the platform is on one only, and whether a process here leads."""
        standing = self.standing
        if self.channel is None or standing is None:
            return "", False
        name = self.channel.own.machine
        return name, any(member.id == standing.leader and member.machine == name for member in standing.members)

    async def close(self) -> None:
        if self.channel is not None:
            await self.channel.close()
        await self.siblings.close()

    def set_standing(self, standing: Standing) -> None:
        self.standing = standing
        if self.channel is not None:
            self.channel.set_standing(standing)
        else:
            self.siblings.set_members(standing.members)


def make_links(sharing: Sharing) -> Links | None:
    """Return the links to the other processes; None if there can be none."""
    if sharing.coordination is None:
        return None
    own = sharing.coordination.member
    siblings = Siblings(folder=sharing.home.sockets, own_id=own.id)
    if not sharing.secret:
        return Links(siblings=siblings)
    return Links(siblings=siblings, channel=Channel(siblings=siblings, own=own, secret=sharing.secret, tls=sharing.tls))


def _make_peers(
    coordination: Coordination, gateway: Gateway, batches: BatchGateway, leading: Leading, links: Links
) -> Peers:
    """Make the task that reports this process's loads to the other members, and takes theirs."""

    async def look_for_accepted() -> None:
        batches.look()
        await gateway.look_for_async()

    def read_own() -> Report:
        keys = gateway.key_usages.own() if links.channel is not None else {}
        return Report(
            workers=gateway.own_loads(),
            held=gateway.own_held(),
            readings=dict(leading.readings),
            keys={key: list(counts) for key, counts in keys.items()},
        )

    def count_elsewhere(keys: Sequence[KeyCounts]) -> None:
        gateway.key_usages.elsewhere = keys

    return Peers(
        coordination=coordination,
        read_own=read_own,
        on_reports=gateway.set_others,
        on_quarantine=leading.look_at_workers,
        on_async=look_for_accepted,
        on_keys=count_elsewhere,
    )


def make_members(
    sharing: Sharing,
    store: Store,
    gateway: Gateway,
    batches: BatchGateway,
    leading: Leading,
    *,
    links: Links | None,
    presence: Presence | None,
) -> Members:
    """Connect the gateway and the leader's loops with each other and, if there may be others, with those of theirs."""
    coordination = sharing.coordination
    if coordination is None or links is None:
        gateway.on_quarantine(leading.look_at_workers)
        return Members(membership=Membership(store))

    def on_quarantine() -> None:
        leading.look_at_workers()
        peers.tell(QUARANTINE)

    def traffic(argument: list[Any]) -> object:
        names, since_s = argument
        return gateway.history.snapshot(names, since_s=since_s, now_s=time.time())

    def on_standing(standing: Standing) -> None:
        store.listeners.has_others = len(standing.members) > 1
        peers.set_standing(standing)
        links.set_standing(standing)
        if presence is not None:
            presence.update(member.machine for member in standing.members)
        gateway.key_usages.live = frozenset(_owner_of(member.id) for member in standing.members)

    peers = _make_peers(coordination, gateway, batches, leading, links)
    answers = links.siblings.answers
    answers |= {TRAFFIC: traffic, METRICS: lambda _: render(gateway.metrics).decode()}
    gateway.on_quarantine(on_quarantine)
    gateway.on_accepted_for_others(partial(peers.tell, ASYNC))
    batches.on_change(partial(peers.tell, ASYNC))
    if gateway.responses is not None:
        share_responses(gateway.responses, links.ask, answers)
    own = coordination.member

    def is_heir(member: Member) -> bool:
        """Return whether a member goes on with the workers: those of a machine need another one there."""
        return presence is None or member.machine == own.machine

    membership = Shared(coordination, on_standing=on_standing, is_heir=is_heir)
    if presence is not None:
        membership.is_isolated = presence.take_isolation
    return Members(membership=membership, peers=peers, links=links)
