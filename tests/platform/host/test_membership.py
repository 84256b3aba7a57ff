"""When a member leads, and when it stops."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.host.membership import STAND_BACK_S, Membership, Shared
from headrace.platform.state.coordination import LEASE_S, Coordination, Displaced, Member, Standing
from headrace.platform.state.records import Fenced
from headrace.platform.state.store import open_store
from tests.waiting import WAIT_S

ME = Member(id="me", url="http://me", host="host", data_dir="/data", version="1")


class ScriptedCoordination:
    """Answers heartbeats with the leader that the test sets."""

    member = ME

    def __init__(self) -> None:
        self.leader = "me"
        self.term = 0
        self.is_candidate = True
        self.members: tuple[Member, ...] = (ME,)
        self.failure: Exception | None = None
        self.answering = threading.Event()
        self.answering.set()
        self.num_beats = 0
        self.on_beat: Callable[[], None] = lambda: None

    def heartbeat(self, *, is_candidate: bool, is_leading: bool) -> Standing:
        self.is_candidate = is_candidate
        self.term += not is_leading
        self.on_beat()
        self.answering.wait(WAIT_S)
        self.num_beats += 1
        if self.failure is not None:
            raise self.failure
        return Standing(term=self.term, leader=self.leader, members=self.members)

    def leave(self) -> bool:
        raise self.failure or Unavailable("away")


class Leader:
    """Records whether the loops run."""

    def __init__(self) -> None:
        self.is_leading = False
        self.terms: list[int] = []
        self.failure: Exception | None = None

    async def __call__(self, term: int) -> None:
        self.terms.append(term)
        self.is_leading = True
        try:
            if self.failure is not None:
                raise self.failure
            await asyncio.Event().wait()
        finally:
            self.is_leading = False


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def running(shared: Shared, leader: Leader) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(shared.run(leader))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def member_of(scripted: ScriptedCoordination, clock: Clock | None = None) -> Shared:
    return Shared(cast("Coordination", cast("Any", scripted)), heartbeat_s=0.001, clock=clock or Clock())


async def until(fact: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not fact():
            await asyncio.sleep(0.001)


async def test_a_member_leads_while_it_has_the_lease() -> None:
    scripted, leader = ScriptedCoordination(), Leader()
    async with running(member_of(scripted), leader):
        await until(lambda: leader.is_leading)
        scripted.leader = "other"
        await until(lambda: not leader.is_leading)
        scripted.leader = "me"
        await until(lambda: leader.is_leading)
    assert (leader.is_leading, len(leader.terms)) == (False, 2)


async def test_a_leader_that_is_cut_off_from_most_machines_stands_back_for_a_while() -> None:
    scripted, leader, clock = ScriptedCoordination(), Leader(), Clock()
    shared, isolated = member_of(scripted, clock), [True]
    async with running(shared, leader):
        await until(lambda: leader.is_leading)
        shared.is_isolated = lambda: isolated.pop() if isolated else False
        await until(lambda: not isolated)
        assert scripted.is_candidate, "there is no other member"
        scripted.members = (ME, replace(ME, id="other"))
        isolated.append(True)
        await until(lambda: not scripted.is_candidate)
        clock.now_s += STAND_BACK_S
        await until(lambda: scripted.is_candidate)


async def test_a_failing_database_ends_the_term_only_when_the_lease_is_over() -> None:
    scripted, leader, clock = ScriptedCoordination(), Leader(), Clock()
    async with running(member_of(scripted, clock), leader):
        await until(lambda: leader.is_leading)
        scripted.failure = Unavailable("away")
        before = scripted.num_beats
        await until(lambda: scripted.num_beats > before + 3)
        assert leader.is_leading
        clock.now_s += 10.0
        await until(lambda: not leader.is_leading)
        scripted.failure = None
        await until(lambda: leader.is_leading)


async def test_the_term_ends_with_the_lease_and_not_with_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.platform.host.membership.LEASE_S", 0.1)
    scripted, leader = ScriptedCoordination(), Leader()
    shared = member_of(scripted)
    shared.clock = time.monotonic
    async with running(shared, leader):
        await until(lambda: leader.is_leading)
        scripted.failure, shared.heartbeat_s = Unavailable("away"), 10 * WAIT_S
        await until(lambda: not leader.is_leading)


async def test_the_lease_counts_from_before_the_heartbeat() -> None:
    """The database begins it before the answer, which may take longer than the lease."""
    scripted, leader, clock = ScriptedCoordination(), Leader(), Clock()

    def take_long() -> None:
        clock.now_s += LEASE_S + 1.0

    scripted.on_beat = take_long
    async with running(member_of(scripted, clock), leader):
        await until(lambda: scripted.num_beats > 3)
    assert not leader.terms


@pytest.mark.parametrize("late_s", [0.0, 10.0])
async def test_a_heartbeat_without_an_answer_ends_the_term_and_the_next_one_is_another(late_s: float) -> None:
    """Also if its lease is valid when the answer comes: what it wrote in the term may still be on its way."""
    scripted, leader, clock = ScriptedCoordination(), Leader(), Clock()
    async with running(member_of(scripted, clock), leader):
        await until(lambda: leader.is_leading)
        scripted.answering.clear()
        clock.now_s += 10.0
        await until(lambda: not leader.is_leading)
        clock.now_s += late_s - 10.0
        scripted.answering.set()
        await until(lambda: leader.is_leading)
    assert leader.terms == [1, 2]


async def test_a_loop_that_fails_stops_the_platform() -> None:
    scripted, leader = ScriptedCoordination(), Leader()
    leader.failure = RuntimeError("a bug")
    async with running(member_of(scripted), leader) as task:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(RuntimeError, match="a bug"):
                await task


async def test_a_leader_that_was_fenced_serves_on() -> None:
    scripted, leader = ScriptedCoordination(), Leader()
    leader.failure = Fenced("term 2 has begun")
    async with running(member_of(scripted), leader) as task:
        await until(lambda: len(leader.terms) > 1)
        assert not task.done()


async def test_a_member_that_is_displaced_leads_no_more_and_stops_the_platform() -> None:
    scripted, leader = ScriptedCoordination(), Leader()
    shared = member_of(scripted)
    async with running(shared, leader) as task:
        await until(lambda: leader.is_leading)
        assert not shared.is_displaced
        scripted.failure = Displaced("moved")
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Displaced, match="moved"):
                await task
    assert (leader.is_leading, shared.is_displaced) == (False, True)


async def test_a_member_that_cannot_leave_assumes_that_others_go_on() -> None:
    assert await member_of(ScriptedCoordination()).leave()


async def test_the_only_process_of_a_platform_leads_in_a_term_of_its_own() -> None:
    with contextlib.closing(open_store("sqlite://")) as store:
        store.begin_term(4)
        terms: list[int] = []

        async def lead(term: int) -> None:
            terms.append(term)

        await Membership(store).run(lead)
        assert terms == [5]
        assert not await Membership(store).leave()


async def test_a_member_that_resigns_is_no_candidate_while_there_are_others() -> None:
    """Its loops end before the lease is free: the answer to that heartbeat may be lost."""
    scripted, leader, leads_in = ScriptedCoordination(), Leader(), set[tuple[bool, bool]]()
    scripted.on_beat = lambda: leads_in.add((scripted.is_candidate, leader.is_leading))
    shared = member_of(scripted)
    async with running(shared, leader):
        await until(lambda: leader.is_leading)
        shared.resign()
        before = scripted.num_beats
        await until(lambda: scripted.num_beats > before + 2)
        assert scripted.is_candidate, "no other member would lead"
        scripted.members = (ME, replace(ME, id="other"))
        await until(lambda: not scripted.is_candidate)
    assert leads_in == {(True, False), (True, True), (False, False)}


async def test_a_member_steps_back_while_another_one_writes_records_that_it_cannot_read() -> None:
    scripted, leader = ScriptedCoordination(), Leader()
    shared = member_of(scripted)
    newer = replace(ME, id="newer", forms={"endpoint": 2})
    async with running(shared, leader):
        await until(lambda: leader.is_leading)
        scripted.members = (ME, newer)
        await until(lambda: not scripted.is_candidate)
        assert not shared.is_outdated, "it takes the port of this one over"
        scripted.members = (ME, replace(newer, url="http://other"))
        await until(lambda: shared.is_outdated)
        scripted.members = (ME,)
        await until(lambda: scripted.is_candidate)
        assert not shared.is_outdated
