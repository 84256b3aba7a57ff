"""DJL's protocol of rolling batches: the handler is called once per step with all live requests."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_handler.contract import Cancelled, Item
from headrace_handler.contracts.djl.asynchronous import Sender
from headrace_handler.contracts.djl.chunks import Chunk, decode_chunk

logger = logging.getLogger(__name__)

Step = Callable[[Sequence[tuple[Item, bool]], bool], Awaitable[Any]]
"""Calls the handler with the live requests, whether each is known to it, and whether it has to forget the others."""

_FAILED = 424
"""The status of DJL Serving for a handler that fails."""


@dataclass(slots=True)
class _Live:
    """A request in the batch."""

    item: Item
    chunks: asyncio.Queue[Chunk] = field(default_factory=asyncio.Queue)
    """Unbounded: it holds at most the generated text, and a slow client must not delay the others."""
    is_known: bool = False
    """The handler has received the request, whose text is not sent again."""


class RollingBatch:
    """
    The live requests of a model, which a task steps while there are any.

    A request whose client has disconnected stays until the handler ends it: the protocol cannot withdraw a request.
    """

    def __init__(self, step: Step, sender: Sender, max_size: int) -> None:
        self._step = step
        self._sender = sender
        self._room = asyncio.Semaphore(max_size)
        self._live: list[_Live] = []
        self._is_reset = False
        self._task: asyncio.Task[None] | None = None

    async def answer(self, item: Item) -> None:
        """Answer a request, once there is room for it."""
        async with self._room:
            live = _Live(item)
            self._live.append(live)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run())
            await self._send_chunks(live)

    async def _send_chunks(self, live: _Live) -> None:
        is_gone = is_last = False
        while not is_last:
            chunk = await live.chunks.get()
            is_last = chunk.is_last
            try:
                if not is_gone:
                    await self._sender.send_chunk(chunk, live.item.reply)
            except Cancelled:
                is_gone = True

    async def _run(self) -> None:
        while self._live:
            live = list(self._live)
            for request, chunk in zip(live, await self._step_chunks(live), strict=True):
                request.is_known = True
                request.chunks.put_nowait(chunk)
                if chunk.is_last:
                    self._live.remove(request)
            await asyncio.sleep(0)  # requests that came during the step join the next one

    async def _step_chunks(self, live: Sequence[_Live]) -> list[Chunk]:
        """Run a step and return the part of each request; if it fails, that is an error."""
        code = _FAILED
        try:
            output = await self._step([(request.item, request.is_known) for request in live], self._is_reset)
            chunks = _chunks(output, len(live))
            code = _FAILED if output.code == 200 else output.code
        except Exception:
            logger.exception("Batch inference failed")
            chunks = None
        self._is_reset = chunks is None
        return [_failure(code)] * len(live) if chunks is None else chunks


def _chunks(output: Any, size: int) -> list[Chunk] | None:
    """Return the part of each request in their order; None if the step has failed."""
    if output.code != 200 or output.stream_content is not None:
        logger.warning("Batch inference failed: %s", output.message)
        return None
    actual = output.content.size()
    if actual != size:
        logger.error("Batch output size mismatch, expected: %s, actual: %s", size, actual)
        return None
    properties = _properties(output.properties, size)
    decoded = [decode_chunk(value, named) for value, named in zip(output.content.values, properties, strict=True)]
    chunks = [chunk for chunk in decoded if chunk is not None]
    if len(chunks) == size:
        return chunks
    logger.error("Batch output is not encoded; expected `Output.binary_encode({'data': ..., 'last': ...})`.")
    return None


def _properties(named: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the properties of each request, whose keys are such as `batch_1_Content-Type`."""
    split: list[dict[str, Any]] = [{} for _ in range(size)]
    for key, value in named.items():
        index, _, name = key.removeprefix("batch_").partition("_")
        if key.startswith("batch_") and index.isdecimal() and int(index) < size:
            split[int(index)][name] = value
    return split


def _failure(code: int) -> Chunk:
    body = json.dumps({"code": code, "message": "Batch inference failed"}, separators=(",", ":"))
    return Chunk(
        data=body.encode(),
        is_last=True,
        status=code,
        phrase="Batch inference failed",
        properties={"Content-Type": "application/json"},
    )
