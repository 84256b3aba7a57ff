"""
Responses of asynchronous and rolling-batch handlers: their parts, and how they are sent.

Handlers encode parts with `Output.binary_encode`. In DJL's protocol of rolling batches the handler is called once per
step with all live requests.
"""

import asyncio
import json
import logging
import re
import struct
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from headrace_handler.contract import Cancelled, Item, Reply
from headrace_handler.contracts.djl import messages

_CODE = re.compile("[2-9][0-9][0-9]")
logger = logging.getLogger(__name__)

FAILURE = "service.invoke_handler_async() failure"

_MAX_THREADS = 256
"""Threads in which responses wait for slow clients; more than the calls that a child gets at once."""
Step = Callable[[Sequence[tuple[Item, bool]], bool], Awaitable[Any]]
"""Calls the handler with the live requests, whether each is known to it, and whether it has to forget the others."""

_FAILED = 424
"""The status of DJL Serving for a handler that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    data: bytes = b""
    is_last: bool = False
    status: int = 200
    """Used in the first part only, as are `phrase` and `properties`."""
    phrase: str = "OK"
    properties: Mapping[str, Any] = field(default_factory=dict)


def read_chunk(output: Any) -> Chunk | None:
    """Return the part that an output holds; None if it is a response of another kind."""
    if output.code != 200 or output.stream_content is not None:
        return None
    return decode_chunk(messages.body_of(output), output.properties)


def decode_chunk(content: bytes | bytearray, properties: Mapping[str, Any]) -> Chunk | None:
    """Return the part that encoded pairs describe; None if the bytes are something else."""
    pairs = read_pairs(content)
    if pairs is None or "data" not in pairs:
        return None
    is_last = pairs.get("last", "").lower() == "true"
    if "code" not in pairs or not (pairs["data"] or is_last):
        return Chunk(data=pairs["data"].encode(), is_last=is_last, properties=properties)
    # A code that is no status is that of a handler which fails.
    status, error = int(pairs["code"]) if _CODE.fullmatch(pairs["code"]) else _FAILED, pairs.get("error")
    body = {"code": status} if error is None else {"code": status, "error": error}
    return Chunk(
        data=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        is_last=True,
        status=status,
        phrase=messages.phrase_of(error),
        properties=properties,
    )


def send_chunk(chunk: Chunk, reply: Reply) -> None:
    """
    Send a part; an empty one is dropped unless it is the last, as in a response that is not streamed.

    Raises `Cancelled`: the client has disconnected.
    """
    if not chunk.data and not chunk.is_last:
        return
    if not reply.has_head:
        reply.head(chunk.status, messages.headers_of(chunk.properties), phrase=chunk.phrase)
    if chunk.is_last:
        reply.end(chunk.data)
    else:
        reply.data(chunk.data)


def read_pairs(content: bytes | bytearray) -> dict[str, str] | None:
    """Decode what `Output.binary_encode` made; None if the bytes are something else."""
    return _read_pairs(content, ">i") or _read_pairs(content, ">h")  # lengths have 16 bits up to djl_python 0.26


def _read_pairs(content: bytes | bytearray, length: str) -> dict[str, str] | None:
    position = 2
    texts: list[str] = []
    try:
        (count,) = struct.unpack_from(">h", content)
        for _ in range(2 * count):
            (size,) = struct.unpack_from(length, content, position)
            position += struct.calcsize(length)
            texts.append(str(content[position : position + max(size, 0)], "utf-8"))
            position += max(size, 0)
    except (struct.error, UnicodeDecodeError):
        return None
    return dict(zip(texts[::2], texts[1::2], strict=True)) if texts and position == len(content) else None


class Sender:
    """A sender of responses from threads, because `Reply.data` blocks while the client does not keep up."""

    def __init__(self, loop: AbstractEventLoop, djl: Any) -> None:
        self._loop = loop
        self._djl = djl
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="reply")

    async def send(self, output: Any, reply: Reply) -> None:
        """Send a whole response, and run what the handler wants run after it."""
        chunk = read_chunk(output)
        if chunk is None:
            await self._in_thread(messages.send, output, [reply], self._djl)
            return
        try:
            await self.send_chunk(replace(chunk, is_last=True), reply)
        except Cancelled:
            logger.info("The client has gone: its response ends.")

    async def send_stream(self, outputs: AsyncIterator[Any], reply: Reply) -> None:
        """Send outputs as they come, until the last one or until the client disconnects."""
        try:
            await self._send_outputs(outputs, reply)
        except Cancelled:
            logger.info("The client has gone: its response ends.")
        finally:
            close = getattr(outputs, "aclose", None)
            if close is not None:
                await close()

    async def send_chunk(self, chunk: Chunk, reply: Reply) -> None:
        """Send a part of a response. Raises `Cancelled`: the client has disconnected."""
        await self._in_thread(send_chunk, chunk, reply)

    async def _send_outputs(self, outputs: AsyncIterator[Any], reply: Reply) -> None:
        try:
            async for output in outputs:
                chunk = self._chunk(messages.checked(self._djl, output))
                await self.send_chunk(chunk, reply)
                if chunk.is_last:
                    return
        except Cancelled:
            raise
        except Exception as error:
            logger.exception("The handler failed while its response was sent")
            if not reply.has_head:
                await self.send(messages.failed(self._djl, error, message=FAILURE), reply)
                return
            # as in a stream of a synchronous handler, the exception's text is the last chunk
            await self.send_chunk(Chunk(data=str(error).encode(), is_last=True), reply)
            return
        await self.send_chunk(Chunk(is_last=True), reply)

    def _chunk(self, output: Any) -> Chunk:
        return read_chunk(output) or Chunk(
            data=bytes(messages.body_of(output)),
            is_last=output.code >= 300,
            status=output.code,
            phrase=messages.phrase_of(output.message),
            properties=output.properties,
        )

    async def _in_thread(self, function: Any, *args: Any) -> None:
        await self._loop.run_in_executor(self._threads, function, *args)


@dataclass(slots=True)
class _Live:
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
        # The next step tells the handler to forget its requests, since it may be in an unknown state.
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
