"""
Where the text of `chat` and `generate` comes from: an engine in this process, or a running server.

Both are asked and answer in the same types. `Seams` is how tests put another engine in.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import click

from headrace.cli.progress import showing_progress
from headrace.cli.remote import RemoteSource
from headrace.cli.setting_options import engine_config
from headrace.core.errors import SettingsError
from headrace.core.generation import Chunk, GenerationRequest, ModelInfo
from headrace.core.progress import Progress

if TYPE_CHECKING:
    from headrace.engine.config import EngineConfig


class Source(Protocol):
    """The part of `engine.Backend` that a terminal needs."""

    @property
    def info(self) -> ModelInfo:
        """What answers."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the answer."""
        ...

    async def start(self) -> None:
        """Make ready."""
        ...

    async def close(self, *, deadline_s: float) -> None:
        """Free what it holds."""
        ...


def assemble_engine(config: "EngineConfig", progress: Progress) -> Source:
    """Load the model into an engine of this process."""
    from headrace.engine.assembly import assemble

    return assemble(config, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What the commands call and tests replace (`obj=` of click)."""

    make_engine: Callable[["EngineConfig", Progress], Source] = assemble_engine


@contextmanager
def opened_source(
    ctx: click.Context, model: str | None, given: Mapping[str, Any]
) -> Iterator[tuple[asyncio.Runner, Source]]:
    """
    The server at `--url`, or the model in an engine of this process: ready to answer, closed at the end.

    The runner is the event loop that the source lives in.

    Raises:
        SettingsError: neither was named.
    """
    with asyncio.Runner() as runner:
        with showing_progress() as progress:
            source = _make_source(ctx, model, given, progress)
            try:
                runner.run(source.start())
            except BaseException:
                runner.run(source.close(deadline_s=0))
                raise
        try:
            yield runner, source
        finally:
            runner.run(source.close(deadline_s=0))


def _make_source(ctx: click.Context, model: str | None, given: Mapping[str, Any], progress: Progress) -> Source:
    if given.get("url"):
        return RemoteSource(given["url"], model=model, api_key=given.get("api_key"))
    if model is None:
        raise SettingsError("Name a model, such as smollm2, or a server with --url.")
    return ctx.ensure_object(Seams).make_engine(engine_config(model, given), progress)
