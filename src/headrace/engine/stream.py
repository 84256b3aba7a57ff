"""
How chunks get from the engine's thread to the coroutine that reads them.

The engine hands over all chunks of a step at once: one `call_soon_threadsafe` a step and event loop, however many
streams there are.
"""

import asyncio
from collections import deque

from headrace.core.generation import Chunk
from headrace.engine.choice import Choice
from headrace.engine.engine import Emitted


class ChunkStream:
    """The chunks of one request. Read by one coroutine of `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.choices: list[Choice] = []
        self._chunks: deque[Chunk] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._num_open = 0

    def open(self, choices: list[Choice]) -> None:
        """Set whose chunks these are."""
        self.choices = choices
        self._num_open = len(choices)

    @property
    def is_finished(self) -> bool:
        """Whether every choice has had its last chunk read."""
        return self._num_open == 0

    def put(self, chunk: Chunk) -> None:
        """Add a chunk. On the event loop only."""
        self._chunks.append(chunk)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def next(self) -> Chunk:
        """Wait for the next chunk."""
        while not self._chunks:
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        chunk = self._chunks.popleft()
        if chunk.finish is not None:
            self._num_open -= 1
        return chunk


def deliver(emitted: Emitted) -> None:
    """Hand chunks to their streams, from any thread; a loop that is gone takes nothing."""
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
