"""Engines without HTTP around them: requests in, chunks out."""

import json
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.core.generation import Finish, GenerationRequest
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from headrace.tools.bench.environment import describe_environment


@dataclass(frozen=True)
class Answer:
    """The whole answer to a request."""

    text: str
    tokens: list[int]
    finish: Finish


@asynccontextmanager
async def running_engine(settings: ServerSettings) -> AsyncIterator[AsyncEngine]:
    """Load the engine as `headrace serve` does, and close it at the end of the block."""
    engine = load_engine(settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close(deadline_s=0)


async def answer(engine: AsyncEngine, request: GenerationRequest) -> Answer:
    """Send a request and wait for the end of its answer."""
    chunks = [chunk async for chunk in engine.generate(request)]
    finish = chunks[-1].finish
    assert finish is not None
    return Answer("".join(chunk.text for chunk in chunks), [token.id for c in chunks for token in c.tokens], finish)


def print_result(engine: AsyncEngine, options: Namespace, **found: object) -> None:
    """Print a result, with what it was measured with, as one line of JSON."""
    about = {"model": engine.info.name, "dtype": engine.info.dtype, "environment": describe_environment()}
    print(json.dumps({**about, "options": vars(options), **found}))
