"""The reconciler's time: deadlines begin again when the clock jumps; a worker that becomes ready ends a pause."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.launcher import Handle, WorkerPhase
from headrace.platform.control.loops.timing import (
    Clocks,
    DeadlineClock,
    Starting,
    WakeUp,
    starting_among,
    until_one_answers,
)
from headrace.platform.control.model.worker import WORKER, ReplicaSpec, ReplicaStatus
from headrace.platform.control.planning.config import CLOCK_JUMP_S, ReconcilerConfig
from headrace.platform.state.records import Record
from tests.platform.control.support import AWS_SCOPE
from tests.waiting import WAIT_S

START_S = 1_000_000.0


class Machine:
    """A wall clock, and a monotonic one."""

    def __init__(self) -> None:
        self.wall_s = START_S
        self.monotonic_s = 50.0
        clocks = Clocks(lambda: self.wall_s, lambda: self.monotonic_s)
        self.watched = DeadlineClock(ReconcilerConfig(), clocks, aws_scope=AWS_SCOPE)

    def pass_time(self, seconds: float, *, jump_s: float = 0.0) -> None:
        self.wall_s += seconds + jump_s
        self.monotonic_s += seconds

    def waited_s(self, since_s: float) -> float:
        context = self.watched.read()
        assert context.now_s == self.wall_s
        return context.waited_s(since_s)


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_time_that_passes_is_no_jump(steps: list[float]) -> None:
    machine = Machine()
    for seconds in steps:
        machine.pass_time(seconds)
        assert machine.waited_s(START_S) == pytest.approx(machine.wall_s - START_S, abs=1e-6)


@given(st.floats(0, 500), st.floats(1.5, 600), st.floats(0, 500))
def test_deadlines_begin_again_when_the_clock_jumps_forward(before_s: float, jump_s: float, after_s: float) -> None:
    machine = Machine()
    machine.pass_time(before_s, jump_s=jump_s)
    assert machine.waited_s(START_S) == 0.0
    machine.pass_time(after_s)
    assert machine.waited_s(START_S) == pytest.approx(after_s, abs=1e-6)


@given(st.floats(2, 600), st.floats(0, 2000))
def test_a_clock_that_is_set_back_delays_a_deadline_at_most_by_as_much(jump_s: float, after_s: float) -> None:
    machine = Machine()
    machine.pass_time(0.5, jump_s=-jump_s)
    assert -CLOCK_JUMP_S <= machine.waited_s(START_S) <= 1e-6
    machine.pass_time(after_s)
    assert max(-CLOCK_JUMP_S, after_s - jump_s) - 1e-6 <= machine.waited_s(START_S) <= after_s + 1e-6


def test_small_steps_count_for_deadlines_until_they_make_a_jump() -> None:
    machine = Machine()
    machine.pass_time(10.0, jump_s=-0.9 * CLOCK_JUMP_S)
    assert machine.waited_s(START_S) == pytest.approx(10.0 - 0.9 * CLOCK_JUMP_S)
    machine.pass_time(10.0, jump_s=-0.9 * CLOCK_JUMP_S)
    assert machine.waited_s(START_S) == 0.0


def test_a_time_just_ahead_of_the_clock_has_not_been_waited_for() -> None:
    machine = Machine()
    machine.pass_time(100.0)
    assert machine.waited_s(machine.wall_s + 0.5) == pytest.approx(-0.5)


UNREACHABLE = Starting("http://127.0.0.1:1", 0.0)


def worker(phase: WorkerPhase | None, *, deleting_s: float | None = None) -> Record:
    handle = Handle(launcher="local", url="http://127.0.0.1:7", facts={}, token="")
    status = ReplicaStatus(phase=phase, phase_since_s=5.0, handle=handle) if phase else ReplicaStatus()
    spec = ReplicaSpec(endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s")
    return Record(
        kind=WORKER,
        name="w",
        uid="u",
        revision=1,
        spec=spec,
        status=status,
        created_s=0.0,
        modified_s=0.0,
        deleting_s=deleting_s,
    )


@asynccontextmanager
async def server(status: str = "200 OK") -> AsyncIterator[Starting]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    made = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with made:
        yield Starting(f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}", time.time())


def test_only_wanted_workers_that_are_starting_are_polled() -> None:
    records = [worker(phase) for phase in (None, *WorkerPhase)]
    assert starting_among(records) == (Starting("http://127.0.0.1:7", 5.0),)
    assert starting_among([worker(WorkerPhase.STARTING, deleting_s=1.0)]) == ()


async def test_waiting_ends_when_a_starting_worker_answers() -> None:
    async with server() as up, asyncio.timeout(WAIT_S):
        await until_one_answers((UNREACHABLE, up), clock=time.time)


async def test_a_worker_that_is_not_ready_is_polled_less_and_less_often() -> None:
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return 1.0 if asked < 4 else 1e6

    async with server("503 Service Unavailable") as loading:
        waiting = asyncio.ensure_future(until_one_answers((Starting(loading.url, 0.9),), clock=clock))
        while asked < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert asked == 4, "it rests"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_wake_up_ends_the_pause_and_leaves_no_task() -> None:
    changed, rest = asyncio.Event(), WakeUp(clock=time.time)
    before = asyncio.all_tasks()

    async def taken(end: Callable[[], None], pause_s: float = 3600.0) -> None:
        resting = asyncio.ensure_future(rest.wait(changed, pause_s))
        await asyncio.sleep(0)
        end()
        async with asyncio.timeout(WAIT_S):
            await resting
        changed.clear()
        assert asyncio.all_tasks() == before

    rest.starting = (UNREACHABLE,)
    await taken(changed.set)
    await taken(rest.end)
    await taken(lambda: None, pause_s=0.01)
    async with server() as up, asyncio.timeout(WAIT_S):
        rest.starting = (up,)
        await rest.wait(changed, 3600.0)


async def test_a_worker_that_answers_during_a_pass_starts_another_pass() -> None:
    rest = WakeUp(clock=time.time)
    rest.end()
    async with asyncio.timeout(WAIT_S):
        await rest.wait(asyncio.Event(), 3600.0)


async def test_a_cancelled_pause_leaves_no_task() -> None:
    before, rest = asyncio.all_tasks(), WakeUp(clock=time.time)
    rest.starting = (UNREACHABLE,)
    resting = asyncio.ensure_future(rest.wait(asyncio.Event(), 3600.0))
    await asyncio.sleep(0)
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)
    assert asyncio.all_tasks() == before
