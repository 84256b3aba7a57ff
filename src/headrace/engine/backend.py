"""
The seam between a server and whatever generates: `generate(request)` gives chunks, `relay` pushes them.

The server knows only this protocol. `AsyncEngine` (our own engine) implements it, and so do the adapters for others
and `engine.echo.EchoBackend`, which needs no model.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from headrace.core.generation import ChatPrompt, Chunk, EngineStats, GenerationRequest, ModelInfo, TextSpan

Take = Callable[[Chunk], bool]
"""Takes a chunk at once, on the event loop; False: wait for a `Drain` before the next one."""
Drain = Callable[[], Awaitable[None]]
"""Waits until more can be taken."""


class Backend(Protocol):
    """Generates text for one model."""

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether it can still generate; once False, only a new process helps."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """
        Stream the answer.

        Nothing is queued before the first `__anext__`; that raises `InvalidRequest` (with exact counts), `Busy` or
        `Unavailable` instead of giving a first chunk. After the first chunk errors come as a chunk whose
        `finish.reason` is ERROR. Closing the iterator (`aclose`, or cancelling the task that reads it) aborts the
        request and frees its blocks in the engine's next step. Every choice ends with exactly one chunk that has
        `finish`.
        """
        ...

    async def relay(self, request: GenerationRequest, take: Take, drain: Drain) -> None:
        """
        Generate as `generate` does, and call `take` with each chunk as soon as it is there; return after the last one.

        This is the way of a stream with little work for each chunk: nobody is woken to fetch it. What `take` raises
        ends the request and comes out here. Cancelling aborts the request.
        """
        ...

    def tokenize(self, prompt: str | ChatPrompt) -> tuple[str, tuple[TextSpan, ...]]:
        """The text after the chat template, and its tokens."""
        ...

    def stats(self) -> EngineStats:
        """How busy it is now."""
        ...

    async def start(self) -> None:
        """Load and warm up: returns after a real token has been produced."""
        ...

    async def close(self, *, deadline_s: float) -> None:
        """Refuse new requests, let running ones finish until the deadline, then abort the rest. Idempotent."""
        ...


async def relay_chunks(chunks: AsyncGenerator[Chunk, None], take: Take, drain: Drain) -> None:
    """Do `Backend.relay` for a backend that only generates."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if not take(chunk):
                await drain()
