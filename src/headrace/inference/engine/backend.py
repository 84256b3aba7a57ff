"""
The protocol between a server and what generates its answers: `generate` yields chunks, `relay` pushes them.

`AsyncEngine` implements it, and so does `headrace.testing.echo.EchoBackend`, which needs no model.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import AdapterInfo, ChatPrompt, Chunk, GenerationRequest, ModelInfo, TextSpan

Take = Callable[[Chunk], bool]
"""Takes a chunk on the event loop without waiting; False: await a `Drain` before the next one."""
Drain = Callable[[], Awaitable[None]]
"""Waits until more chunks can be taken."""


class Backend(Protocol):
    """A generator of text for one model."""

    @property
    def info(self) -> ModelInfo:
        """The model that is served."""
        ...

    @property
    def is_healthy(self) -> bool:
        """False once the backend cannot generate any more; only a new process helps then."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """
        Stream the answer.

        Nothing is queued before the first `__anext__`, which raises `InvalidRequest` (with exact counts), `Busy` or
        `Unavailable` if the request is refused. Later errors arrive as a chunk whose `finish.reason` is ERROR.
        Closing the iterator (`aclose`, or cancelling the task that reads it) aborts the request and frees its blocks
        in the engine's next step. Every choice ends with exactly one chunk that has `finish`.
        """
        ...

    async def relay(self, request: GenerationRequest, take: Take, drain: Drain) -> None:
        """
        Generate as `generate` does, and call `take` with each chunk as soon as it arrives; return after the last one.

        Cheaper per chunk than `generate`: no task is woken to fetch it. An exception of `take` ends the request and
        is raised here. Cancelling aborts the request.
        """
        ...

    @property
    def tokenizer_config(self) -> Mapping[str, object]:
        """The tokenizer's class, special tokens and chat template, named as in `tokenizer_config.json`."""
        ...

    def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool | None = None
    ) -> tuple[str, tuple[TextSpan, ...]]:
        """
        Return the text after the chat template, and its tokens.

        Without `add_special_tokens` these are the tokens of a prompt: added to a text, not to a rendered chat.
        """
        ...

    def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of tokens, special ones included. Raises `InvalidRequest` for ids without a token."""
        ...

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The adapters that requests may name."""
        ...

    async def load_adapter(self, name: str, path: Path, *, replaces: bool = False) -> AdapterInfo:
        """
        Load an adapter while requests run; with `replaces`, in place of a loaded one of that name.

        Raises `InvalidRequest` for a name that is taken, `InsufficientMemory` if all slots are, and `BrokenModel` or
        `UnsupportedModel` for a folder that cannot be applied.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Remove an adapter: running requests finish with it. Raises `NotFound`."""
        ...

    def stats(self) -> EngineStats:
        """Return the current load."""
        ...

    async def start(self) -> None:
        """Load and warm up; return after a real token has been produced."""
        ...

    async def close(self, *, deadline_s: float) -> None:
        """Refuse new requests, let running ones finish until the deadline, then abort the rest. Idempotent."""
        ...


async def relay_chunks(chunks: AsyncGenerator[Chunk, None], take: Take, drain: Drain) -> None:
    """Implement `Backend.relay` with the chunks of `Backend.generate`."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if not take(chunk):
                await drain()
