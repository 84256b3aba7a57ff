"""
The sources of generated text for `chat` and `generate`: an engine in this process, or a running server.

Both use the same request and chunk types. Tests inject another engine through `Seams`.
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol

import click

from headrace.core.errors import EngineFailed, SettingsError
from headrace.core.generation import Chunk, GenerationRequest, ModelInfo
from headrace.core.progress import Progress
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.api_key import api_key_for, ca_bundle_for
from headrace.tools.cli.progress import BarProgress, showing_progress
from headrace.tools.cli.remote import RemoteSource
from headrace.tools.cli.setting_options import ENGINE_SETTINGS, engine_settings

if TYPE_CHECKING:
    from headrace.inference.backends.choice import BackendChoice
    from headrace.serving.server.trusted_code import Trusted

_GRACE_S = 10.0
"""Seconds for a server in a sandbox to end: its code may ignore signals."""


class Source(Protocol):
    """The part of `engine.Backend` that the command line needs."""

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the answer."""

    async def start(self) -> None:
        """Prepare to answer requests."""

    async def close(self, *, deadline_s: float) -> None:
        """Release all resources."""


def make_engine(settings: ServerSettings, progress: Progress) -> Source:
    """Load the model into an engine of this process; of a server in a sandbox if code of the checkpoint may run."""
    from headrace.serving.server.engine_config import load_engine
    from headrace.serving.server.trusted_code import find_trusted, needs_isolation

    if needs_isolation(settings):
        trusted = find_trusted(settings, progress)
        if trusted is not None:
            return SandboxedSource(settings, trusted, progress)
        settings = replace(settings, trust_remote_code=False)

    def say_choice(choice: "BackendChoice") -> None:
        if choice.name != "native":
            say = progress.note if isinstance(progress, BarProgress) else partial(click.echo, err=True)
            say(f"Backend {choice.name} on {choice.device}: {choice.reason}.")

    return load_engine(settings, progress, on_choice=say_choice)


class SandboxedSource(RemoteSource):
    """A server of this process alone, in the sandbox of its checkpoint's code."""

    def __init__(self, settings: ServerSettings, model: "Trusted", progress: Progress) -> None:
        """Start the server, and wait until it is ready. Raises `EngineFailed`: it has ended."""
        from headrace.serving.server.trusted_code import events_of, handle_event, started_server

        key = token_urlsafe()
        private = replace(settings, host="127.0.0.1", port=0, api_key=key, log_level="error", batch_bytes=0)
        with ExitStack() as stack:
            server = stack.enter_context(started_server(private, model, outputs=(2, 2)))
            stack.callback(_end, server.process)
            loaded: list[ModelInfo] = []
            for event in events_of(server.events):
                handle_event(event, server.url, progress, lambda _url, info, _stats: loaded.append(info))
            if not loaded:
                raise EngineFailed("The server in the sandbox has not started; its error is above.")
            super().__init__(server.url, api_key=key)
            self._closing = stack.pop_all()

    async def close(self, *, deadline_s: float) -> None:
        await super().close(deadline_s=deadline_s)
        await asyncio.to_thread(self._closing.close)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()
    process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """The functions that commands call and tests replace (click's `obj`)."""

    make_engine: Callable[[ServerSettings, Progress], Source] = make_engine


@contextmanager
def opened_source(
    ctx: click.Context, model: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[asyncio.Runner, Source]]:
    """
    Open the server at `--url`, or load the model into an engine of this process; close it at the end.

    The runner owns the event loop of the source.

    Raises:
        SettingsError: neither a model nor a URL is given.
    """
    with asyncio.Runner() as runner:
        with showing_progress(f"Loading {model}" if options.get("url") is None else None) as progress:
            source = _make_source(ctx, model, options, progress)
            try:
                runner.run(source.start())
            except BaseException:
                runner.run(source.close(deadline_s=0))
                raise
        try:
            yield runner, source
        finally:
            runner.run(source.close(deadline_s=0))


def _make_source(ctx: click.Context, model: str | None, options: Mapping[str, Any], progress: Progress) -> Source:
    if url := options.get("url"):
        given = [name for name in ENGINE_SETTINGS if options.get(name) not in {None, ()}]
        if given:
            flag = flag_name(given[0])
            raise SettingsError(f"{flag} is for a model in this process; the server at --url has settings of its own.")
        key = api_key_for(url, options.get("api_key"), os.environ)
        return RemoteSource(url, model=model, api_key=key, ca_bundle=ca_bundle_for(url, os.environ))
    if model is None:
        raise SettingsError("Name a model, such as smollm2, or a server with --url.")
    if model.startswith(("http://", "https://")):
        raise SettingsError(f"MODEL is {model}; expected a model. To use that server, write --url {model}.")
    return ctx.ensure_object(Seams).make_engine(engine_settings(model, options), progress)
