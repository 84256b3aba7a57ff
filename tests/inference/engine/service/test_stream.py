"""Delivery of chunks: fetched one by one, or fed to a function."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.core.generation import Chunk, Finish, FinishReason
from headrace.inference.engine.service.stream import ChunkStream, deliver
from headrace.inference.engine.service.thread import EngineThread
from tests.inference.engine.support import Gate, make_engine, request, running, thread_of
from tests.waiting import WAIT_S

END = Finish(reason=FinishReason.LENGTH, prompt_tokens=1, output_tokens=1)


def stream_of(num_choices: int = 1) -> ChunkStream:
    stream = ChunkStream(asyncio.get_running_loop())
    stream._num_open = num_choices
    return stream


def chunk(text: str, *, is_last: bool = False) -> Chunk:
    return Chunk(text=text, finish=END if is_last else None)


async def turn() -> None:
    """Let every task that is ready have its turn."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_queued_chunks_are_fed_first_and_later_ones_within_the_delivering_call() -> None:
    stream, seen = stream_of(), []
    stream.put(chunk("a"))
    stream.put(chunk("b"))
    feeding = asyncio.create_task(stream.feed(lambda c: seen.append(c.text) or True))
    await turn()
    assert seen == ["a", "b"]
    stream.put(chunk("c"))
    assert seen == ["a", "b", "c"]
    stream.put(chunk("d", is_last=True))
    assert await feeding
    assert seen == ["a", "b", "c", "d"]


@pytest.mark.parametrize("num_before", [0, 1, 2])
async def test_a_function_can_pause_the_feed(num_before: int) -> None:
    stream, seen = stream_of(), []

    def take(chunk: Chunk) -> bool:
        seen.append(chunk.text)
        return False

    texts = ["a", "b"]
    for text in texts[:num_before]:
        stream.put(chunk(text))
    feeding = asyncio.create_task(stream.feed(take))
    await turn()
    for text in texts[num_before:]:
        stream.put(chunk(text))
    assert not await feeding
    assert seen == ["a"]
    assert not await stream.feed(take)
    stream.put(chunk("c", is_last=True))
    assert await stream.feed(take)
    assert seen == ["a", "b", "c"]


async def test_a_stream_ends_with_the_last_of_its_choices() -> None:
    stream = stream_of(num_choices=2)
    feeding = asyncio.create_task(stream.feed(lambda _: True))
    await turn()
    stream.put(chunk("a", is_last=True))
    await turn()
    assert not feeding.done()
    stream.put(chunk("b", is_last=True))
    assert await feeding


async def test_an_exception_of_the_function_ends_its_own_stream_only() -> None:
    broken, sound, seen = stream_of(), stream_of(), []

    def refuse(_: Chunk) -> bool:
        raise ValueError("not today")

    feeding = asyncio.create_task(broken.feed(refuse))
    other = asyncio.create_task(sound.feed(lambda c: seen.append(c.text) or True))
    await turn()
    deliver([(Owned(broken), chunk("a")), (Owned(sound), chunk("b", is_last=True))])
    with pytest.raises(ValueError, match="not today"):
        await feeding
    assert await other
    assert seen == ["b"]


class Owned:
    """All that `deliver` asks of a choice."""

    def __init__(self, owner: ChunkStream) -> None:
        self.owner = owner


async def test_nothing_is_fed_after_cancellation() -> None:
    stream, seen = stream_of(), []
    feeding = asyncio.create_task(stream.feed(lambda c: seen.append(c.text) or True))
    await turn()
    feeding.cancel()
    stream.put(chunk("a"))
    with pytest.raises(asyncio.CancelledError):
        await feeding
    assert seen == []


@pytest.mark.parametrize("sampling", [{}, {"n": 2, "temperature": 1.0, "seed": 7}, {"best_of": 2, "seed": 7}])
async def test_relay_and_generate_give_the_same_chunks(sampling: dict[str, object]) -> None:
    wanted = request("hello", max_new_tokens=9, ignore_eos=True, **sampling)
    async with running(make_engine()) as engine:
        generated = [c async for c in engine.generate(wanted)]
        relayed: list[Chunk] = []
        pauses = 0

        def take(chunk: Chunk) -> bool:
            relayed.append(chunk)
            return len(relayed) % 3 != 0

        async def drain() -> None:
            nonlocal pauses
            pauses += 1
            await asyncio.sleep(0)

        await engine.relay(wanted, take, drain)
    texts = [[c.text for c in chunks if c.index == 0] for chunks in (generated, relayed)]
    assert texts[0] == texts[1]
    assert len(relayed) == len(generated)
    assert pauses >= len(relayed) // 3 - 1


async def test_a_cancelled_or_failed_relay_frees_its_blocks() -> None:
    async with running(make_engine()) as engine:
        came = asyncio.Event()

        def take(_: Chunk) -> bool:
            came.set()
            return True

        async def drain() -> None: ...

        wanted = request("hello", max_new_tokens=400, ignore_eos=True)
        relaying = asyncio.create_task(engine.relay(wanted, take, drain))
        await came.wait()
        relaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relaying

        def fail(_: Chunk) -> bool:
            raise ValueError("full")

        with pytest.raises(ValueError, match="full"):
            await engine.relay(wanted, fail, drain)
        async with asyncio.timeout(WAIT_S):
            while engine.stats().num_running or engine.stats().num_waiting:
                await asyncio.sleep(0)


class CountedLoop:
    """The event loop, with the round of the engine in which each batch of chunks was handed over."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self.create_future = self._loop.create_future
        self.rounds: list[int] = []

    def call_soon_threadsafe(self, put: Callable[..., object], batch: object) -> None:
        self.rounds.append(self._engine.num_rounds)
        self._loop.call_soon_threadsafe(put, batch)


async def test_chunks_are_handed_over_when_the_next_step_begins_and_at_once_without_one() -> None:
    # Until a step begins the engine holds the GIL: the event loop would wake up and wait for it.
    gate = Gate()
    async with running(make_engine(before_step=gate, bias={ord("a"): 1000.0})) as engine:
        gate.is_open.clear()
        stream = await engine._submit(request("x", max_new_tokens=3, ignore_eos=True))
        stream.loop = loop = CountedLoop(thread_of(engine))  # type: ignore[assignment]
        gate.is_open.set()
        while not stream.is_finished:
            await stream.next()
        first = thread_of(engine).num_rounds - 2
        engine._leave(stream)
    assert loop.rounds == [first + 1, first + 2, first + 2]
