"""Reports between members."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.host.peers import ASYNC, QUARANTINE, Peers, Report
from headrace.platform.state.coordination import Coordination, Member
from tests.platform.state.leases import long_leases
from tests.waiting import WAIT_S

__all__ = ["long_leases"]

pytestmark = pytest.mark.usefixtures("long_leases")


class Reporter:
    """A member with its reports."""

    def __init__(self, name: str, coordination: Coordination) -> None:
        self.name = name
        self.own = Report()
        self.loads: Mapping[str, int] = {}
        self.held: Mapping[str, int] = {}
        self.num_quarantines = 0
        self.num_accepted = 0
        self.coordination = coordination
        self.peers = Peers(
            coordination=coordination,
            read_own=lambda: self.own,
            on_reports=self._take,
            on_quarantine=self._quarantined,
            on_async=self._accepted,
            on_keys=self._count,
        )
        self.keys: list[Mapping[str, Sequence[int]]] = []

    def _take(self, loads: Mapping[str, int], held: Mapping[str, int]) -> None:
        self.loads, self.held = dict(loads), dict(held)

    def _count(self, keys: Sequence[Mapping[str, Sequence[int]]]) -> None:
        self.keys = list(keys)

    def _quarantined(self) -> None:
        self.num_quarantines += 1

    async def _accepted(self) -> None:
        self.num_accepted += 1

    def beat(self) -> None:
        self.peers.set_standing(self.coordination.heartbeat())


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Callable[[str], Reporter]]:
    with contextlib.ExitStack() as stack:

        def make(name: str, url: str = "") -> Reporter:
            member = Member(id=name, url=url, host="host", data_dir="", version="1")
            coordination = Coordination(str(tmp_path / "store.db"), member)
            stack.callback(coordination.close)
            coordination.open(term=0)
            return Reporter(name, coordination)

        yield make


async def test_a_report_whose_post_was_stored_and_failed_is_posted_again(
    reporter: Callable[[str], Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its load is over by then: the next report equals the last one that was posted for certain."""
    a, b = members = reporter("a"), reporter("b")
    for member in members * 2:
        member.beat()
        await member.peers.exchange()
    post = a.coordination.post

    def post_without_answer(bulletins: Mapping[str, bytes]) -> None:
        post(bulletins)
        raise Unavailable("The connection broke.")

    a.own = Report(workers={"w1": 2})
    monkeypatch.setattr(a.coordination, "post", post_without_answer)
    with pytest.raises(Unavailable):
        await a.peers.exchange()
    monkeypatch.undo()
    await b.peers.exchange()
    assert b.loads == {"w1": 2}
    a.own = Report()
    for member in members:
        await member.peers.exchange()
    assert b.loads == {}


async def test_a_member_that_missed_a_report_gets_it_again(
    reporter: Callable[[str], Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = reporter("a"), reporter("b")
    for member in (a, b, a):
        member.beat()
    a.own = Report(workers={"w1": 2})
    await a.peers.exchange()
    b.coordination.read()  # lost on the way
    await a.peers.exchange()
    await b.peers.exchange()
    assert b.loads == {}
    monkeypatch.setattr("headrace.platform.host.peers.REPEAT_S", 0.0)
    await a.peers.exchange()
    await b.peers.exchange()
    assert b.loads == {"w1": 2}


async def test_each_member_knows_the_requests_of_all_others(reporter: Callable[[str], Reporter]) -> None:
    a, b, c = members = reporter("a"), reporter("b"), reporter("c")
    a.own = Report(workers={"w1": 2, "w2": 1}, held={"e": 3})
    b.own = Report(workers={"w1": 5})
    for _ in range(2):
        for member in members:
            member.beat()
            await member.peers.exchange()
    assert (a.loads, a.held) == ({"w1": 5}, {})
    assert (b.loads, b.held) == ({"w1": 2, "w2": 1}, {"e": 3})
    assert (c.loads, c.held) == ({"w1": 7, "w2": 1}, {"e": 3})


async def test_the_counts_of_keys_come_from_other_machines_only(reporter: Callable[..., Reporter]) -> None:
    a, b, c = members = reporter("a", "http://one"), reporter("b", "http://one"), reporter("c", "http://two")
    for number, member in enumerate(members):
        member.own = Report(keys={"K": [1, number, 0, 0, 0, 0]})
    for _ in range(2):
        for member in members:
            member.beat()
            await member.peers.exchange()
    assert a.keys == b.keys == [c.own.keys]
    assert c.keys == [a.own.keys, b.own.keys]


async def test_only_changes_are_posted_and_idle_members_say_so(reporter: Callable[[str], Reporter]) -> None:
    a, b = reporter("a"), reporter("b")
    a.beat(), b.beat()
    assert not await a.peers.exchange()
    a.own = Report(workers={"w": 1})
    assert await a.peers.exchange()
    assert await a.peers.exchange()
    assert [found.number for found in b.coordination.read()] == [1]


async def test_a_member_that_is_gone_has_no_load(reporter: Callable[[str], Reporter]) -> None:
    a, b = reporter("a"), reporter("b")
    a.beat(), b.beat()
    a.own = Report(workers={"w": 1})
    await a.peers.exchange()
    await b.peers.exchange()
    assert b.loads == {"w": 1}
    a.coordination.leave()
    b.beat()
    assert b.loads == {}


async def test_events_are_reported_once(reporter: Callable[[str], Reporter]) -> None:
    a, b = reporter("a"), reporter("b")
    a.beat(), b.beat()
    a.peers.tell(QUARANTINE)
    a.peers.tell(ASYNC)
    for _ in range(2):
        await a.peers.exchange()
        await b.peers.exchange()
    assert (a.num_quarantines, b.num_quarantines) == (0, 1)
    assert (a.num_accepted, b.num_accepted) == (0, 1)


async def test_an_event_during_an_exchange_is_posted_at_once(reporter: Callable[[str], Reporter]) -> None:
    a, b = reporter("a"), reporter("b")
    for member in (b, a, b):
        member.beat()
    a.peers.idle_s = 10 * WAIT_S
    accepted = iter([lambda: a.peers.tell(ASYNC)])
    a.peers.on_reports = lambda _loads, _held: next(accepted, lambda: None)()  # the last step of an exchange
    running = asyncio.create_task(a.peers.run())
    async with asyncio.timeout(WAIT_S):
        while not b.num_accepted:
            await b.peers.exchange()
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
