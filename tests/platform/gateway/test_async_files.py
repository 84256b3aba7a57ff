"""The store of accepted asynchronous invocations; their bodies: inputs wait for room, long responses go to disk."""

import asyncio
from contextlib import ExitStack, closing
from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs

from headrace.platform.gateway.async_files import (
    IN_MEMORY_BYTES,
    PENDING,
    InputRoom,
    ReceivedBody,
)
from headrace.serving.http.body import FREE_BYTES, BodyBudget
from headrace.serving.http.client_connection import ClientResponse, ResponseBroken, ResponseTooLarge
from tests.waiting import WAIT_S

from .async_parts import open_pending, pending


def test_invocations_survive_a_restart_and_unreadable_ones_are_reported_once(tmp_path):
    with closing((store := open_pending(tmp_path)).blobs):
        assert store.unknown(frozenset()) == (set(), [])
        store.save(pending(2))
        store.save(pending(1))
        store.blobs.put(PENDING, "00000", b'{"id": ')
    with closing((store := open_pending(tmp_path)).blobs), capture_logs() as logs:
        without_bodies = [replace(pending(number), body=None) for number in (1, 2)]
        for _ in range(2):
            assert store.unknown(frozenset()) == ({"00000", "00001", "00002"}, without_bodies)
        assert store.unknown(frozenset({"00001"}))[1] == without_bodies[1:]
        assert [(log["event"], log["id"]) for log in logs] == [("async.unreadable", "00000")]
        assert store.body("00001") == b"\x00\xff"
        store.remove("00001")
        store.remove("00001")
        assert store.count() == 2
        with pytest.raises(KeyError):
            store.body("00001")


def test_files_of_earlier_versions_are_moved_once_and_unreadable_ones_set_aside(tmp_path):
    for name, content in (("00001.json", msgspec.json.encode(pending(1))), ("00000.json", b'{"id": ')):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "00003.partial").write_bytes(b"half")
    with closing((store := open_pending(tmp_path)).blobs):
        store.save(pending(1))  # the process that moved it was killed before it removed the file
        assert store.unknown(frozenset()) == ({"00001"}, [replace(pending(1), body=None)])
        assert store.body("00001") == pending(1).body
    assert sorted(path.name for path in tmp_path.iterdir() if "blobs" not in path.name) == [
        "00000.unreadable",
        "00003.partial",
    ]


class Inputs:
    """Inputs that are held until they are let go."""

    def __init__(self, room: InputRoom) -> None:
        self.room = room
        self.held: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, num_bytes: int) -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = task = asyncio.create_task(self._hold(name, num_bytes))
        await settled()
        return task

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settled()

    async def _hold(self, name: str, num_bytes: int) -> None:
        async with self.room.hold(num_bytes):
            self.held.append(name)
            await self._ends[name].wait()
            self.held.remove(name)


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_inputs_fill_half_of_the_budget_and_then_wait_in_order():
    budget = BodyBudget(100)
    inputs = Inputs(InputRoom(budget))
    await inputs.begin("first", FREE_BYTES + 30)
    await inputs.begin("second", FREE_BYTES + 20)
    await inputs.begin("third", FREE_BYTES + 30)
    await inputs.begin("fourth", FREE_BYTES + 1)
    await inputs.begin("small", FREE_BYTES)
    assert inputs.held == ["first", "second", "small"]
    assert inputs.room.num_waiting == 2
    assert budget.held_bytes == 50
    await inputs.end("second")
    assert inputs.held == ["first", "small"], "the fourth does not overtake the third"
    await inputs.end("first")
    assert inputs.held == ["small", "third", "fourth"]
    for name in list(inputs.held):
        await inputs.end(name)
    assert budget.held_bytes == inputs.room.num_waiting == 0


async def test_an_input_above_the_budget_is_held_alone():
    budget = BodyBudget(100)
    inputs = Inputs(InputRoom(budget))
    await inputs.begin("huge", FREE_BYTES + 1000)
    await inputs.begin("next", FREE_BYTES + 1000)
    assert inputs.held == ["huge"]
    await inputs.end("huge")
    assert inputs.held == ["next"]
    await inputs.end("next")
    assert budget.held_bytes == 0


async def test_inputs_wait_for_the_bodies_of_other_requests():
    budget = BodyBudget(100)
    inputs = Inputs(InputRoom(budget))
    with budget.share() as share:
        share.add(FREE_BYTES + 90)
        await inputs.begin("only", FREE_BYTES + 10)
        await inputs.begin("second", FREE_BYTES + 10)
        assert inputs.held == ["only"], "one always proceeds"
    await settled()
    assert inputs.held == ["only", "second"]
    await inputs.end("only")
    await inputs.end("second")


async def test_an_input_that_is_cancelled_while_it_waits_leaves_its_turn():
    budget = BodyBudget(100)
    inputs = Inputs(InputRoom(budget))
    await inputs.begin("first", FREE_BYTES + 50)
    waiting = await inputs.begin("second", FREE_BYTES + 50)
    await inputs.begin("third", FREE_BYTES + 50)
    waiting.cancel()
    await asyncio.wait([waiting])
    await inputs.end("first")
    assert inputs.held == ["third"]
    await inputs.end("third")
    assert budget.held_bytes == inputs.room.num_waiting == 0


class NoFlow:
    """The reading side of no connection."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release(self) -> None: ...


async def received(body: ReceivedBody, *parts: bytes, failure: Exception | None = None) -> None:
    response = ClientResponse(NoFlow())
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(body.read(response))
        for part in parts:
            response.add(part)
            await asyncio.sleep(0)
        if failure is None:
            response.complete()
        else:
            response.fail(failure)


@pytest.mark.parametrize("num_parts", [0, 1, 3, 4, 5, 20])
async def test_a_body_is_what_was_received_in_memory_or_on_disk(tmp_path, num_parts):
    parts = [bytes([number]) * (IN_MEMORY_BYTES // 4) for number in range(num_parts)]
    with ReceivedBody(tmp_path, max_bytes=1 << 30) as body:
        await received(body, *parts)
        content = body.content()
        assert body.num_bytes == sum(map(len, parts))
        assert isinstance(content, bytes) == (num_parts <= 4)
        if not isinstance(content, bytes):
            content.seek(0)
            content = content.read()
        assert content == b"".join(parts)
        assert not list(tmp_path.iterdir()), "the file has no name"


@pytest.mark.parametrize("num_bytes", [IN_MEMORY_BYTES // 2, 4 * IN_MEMORY_BYTES])
async def test_a_body_that_is_too_long_or_incomplete_is_an_error(tmp_path, num_bytes):
    part = b"x" * (num_bytes // 4)
    with ExitStack() as stack:
        body = stack.enter_context(ReceivedBody(tmp_path, max_bytes=num_bytes - 1))
        with pytest.raises(ExceptionGroup) as raised:
            await received(body, *[part] * 4)
        assert raised.group_contains(ResponseTooLarge)
        body = stack.enter_context(ReceivedBody(tmp_path, max_bytes=num_bytes))
        with pytest.raises(ExceptionGroup) as raised:
            await received(body, *[part] * 4, failure=ResponseBroken("reset"))
        assert raised.group_contains(ResponseBroken)
