"""
Delivery of chunks from the engine thread to streams on the event loop.

The engine hands over all chunks of a step at once: one `call_soon_threadsafe` per step and event loop, whatever the
number of streams. A stream that feeds a function passes its chunks on within that call, without a task switch.
"""

import asyncio
from collections import deque

from headrace.core.generation import Chunk
from headrace.inference.engine.backend import Take
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.engine import Emitted


class ChunkStream:
    """The chunks of one request, read by one coroutine of `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.choices: list[Choice] = []
        self._chunks: deque[Chunk] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._num_open = 0
        self._take: Take | None = None

    def open(self, choices: list[Choice]) -> None:
        self.choices = choices
        self._num_open = len(choices)

    @property
    def is_finished(self) -> bool:
        """True once the last chunk of every choice has been read."""
        return self._num_open == 0

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk, or pass it to the function being fed. On the event loop only."""
        reader = self._reader
        if reader is None or reader.done():
            self._chunks.append(chunk)
        elif self._take is None:
            self._chunks.append(chunk)
            reader.set_result(None)
        else:
            self._give(chunk, self._take, reader)

    async def next(self) -> Chunk:
        while not self._chunks:
            await self._wait()
        return self._count(self._chunks.popleft())

    async def feed(self, take: Take) -> bool:
        """
        Call `take` with each chunk as soon as it arrives, until it returns False or has received the last one.

        Returns:
            Whether `take` has received the last chunk.
        """
        while self._chunks:
            if not take(self._count(self._chunks.popleft())):
                return self.is_finished
        if not self.is_finished:
            self._take = take
            try:
                await self._wait()
            finally:
                self._take = None
        return self.is_finished

    async def _wait(self) -> None:
        self._reader = self.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _give(self, chunk: Chunk, take: Take, reader: asyncio.Future[None]) -> None:
        """Pass a chunk to `take`; wake the feeding task after an error, on backpressure and at the end."""
        try:
            wants_more = take(self._count(chunk))
        except Exception as error:  # noqa: BLE001 - raised again in the task that feeds
            reader.set_exception(error)
        else:
            if not wants_more or self.is_finished:
                reader.set_result(None)

    def _count(self, chunk: Chunk) -> Chunk:
        if chunk.finish is not None:
            self._num_open -= 1
        return chunk


def deliver(emitted: Emitted) -> None:
    """Deliver chunks to their streams from any thread; chunks for a closed loop are dropped."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[ChunkStream, Chunk]]] = {}
    for choice, chunk in emitted:
        stream = choice.owner
        assert isinstance(stream, ChunkStream)
        by_loop.setdefault(stream.loop, []).append((stream, chunk))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:  # the loop is closed
            continue


def _put_all(batch: list[tuple[ChunkStream, Chunk]]) -> None:
    for stream, chunk in batch:
        stream.put(chunk)
