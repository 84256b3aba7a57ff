"""The sender of the responses of asynchronous handlers."""

import logging
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from headrace_handler.contract import Cancelled, Reply
from headrace_handler.contracts.djl import responses
from headrace_handler.contracts.djl.chunks import Chunk, read_chunk, send_chunk

logger = logging.getLogger(__name__)

FAILURE = "service.invoke_handler_async() failure"

_MAX_THREADS = 256
"""Threads in which responses wait for slow clients; more than the calls that a child gets at once."""


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
            await self._in_thread(responses.send, output, [reply], self._djl)
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
        """
        Send a part of a response.

        Raises:
            Cancelled: the client has disconnected.
        """
        await self._in_thread(send_chunk, chunk, reply)

    async def _send_outputs(self, outputs: AsyncIterator[Any], reply: Reply) -> None:
        try:
            async for output in outputs:
                chunk = self._chunk(responses.checked(self._djl, output))
                await self.send_chunk(chunk, reply)
                if chunk.is_last:
                    return
        except Cancelled:
            raise
        except Exception as error:
            logger.exception("The handler failed while its response was sent")
            if not reply.has_head:
                await self.send(responses.failed(self._djl, error, message=FAILURE), reply)
                return
            # as in a stream of a synchronous handler, the exception's text is the last chunk
            await self.send_chunk(Chunk(data=str(error).encode(), is_last=True), reply)
            return
        await self.send_chunk(Chunk(is_last=True), reply)

    def _chunk(self, output: Any) -> Chunk:
        return read_chunk(output) or Chunk(
            data=bytes(responses.body_of(output)),
            is_last=output.code >= 300,
            status=output.code,
            phrase=responses.phrase_of(output.message),
            properties=output.properties,
        )

    async def _in_thread(self, function: Any, *args: Any) -> None:
        await self._loop.run_in_executor(self._threads, function, *args)
