"""
A request whose body, response or tokens the model's own formatters change.

The formatters run in another process: the backend waits for them as it waits for a slow client.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.core.generation import Chunk
from headrace.core.telemetry import RequestRecord
from headrace.engine.backend import Backend
from headrace.http.exchange import Exchange
from headrace.server.generation import ChooseDialect, ExtraBytes, Generation
from headrace.server.service import Service
from headrace.wire.answers import failure_of
from headrace.wire.dialect import Dialect, ParsedRequest, StreamRenderer
from headrace.wire.formatted import TokenSteps, for_responses, for_tokens
from headrace.wire.framing import JSON_CONTENT_TYPE, JSONLINES_CONTENT_TYPE

if TYPE_CHECKING:
    from headrace.server.formatters import FormattedResponse, Part

Send = Callable[[bytes], Awaitable[None]]


class FormattedGeneration(Generation):
    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        exchange: Exchange,
        record: RequestRecord,
        response: "FormattedResponse",
    ) -> None:
        super().__init__(service, dialect, exchange, record)
        self._response = response
        self._output = response.output
        self._payload = b""

    async def parse(
        self, body: bytes, choose: ChooseDialect | None, *, adapter: str | None, extra_bytes: ExtraBytes = lambda _: 0
    ) -> ParsedRequest:
        response = self._response
        self._payload = body
        if response.changes_input:
            async with self._exchange.cancelled_on_disconnect():
                self._payload = await response.format("input", body)
        parsed = await super().parse(self._payload, choose, adapter=adapter, extra_bytes=extra_bytes)
        if not parsed.requests:
            self._output = None  # nothing is generated
            return parsed
        if response.output == "output":
            return for_responses(parsed, self._service.context(self._record.request_id))
        if response.output == "token" and parsed.requests[0].pooling is None:
            return for_tokens(parsed)
        self._output = None  # there are no tokens
        return parsed

    async def _stream(self, backend: Backend, parsed: ParsedRequest) -> None:
        if self._output is None:
            await super()._stream(backend, parsed)
            return
        reply, exchange = parsed.reply, self._exchange
        content_type = JSONLINES_CONTENT_TYPE if self._output == "output" else reply.content_type
        renderer = self._renderer = reply.stream()
        exchange.begin_stream((("content-type", content_type), ("cache-control", "no-cache")))

        async def send(part: bytes) -> None:
            if part and not exchange.put(part):
                await exchange.drain()

        await self._format_parts(backend, parsed, renderer, send)
        self._record.status = 200
        await exchange.finish()

    async def _whole(self, backend: Backend, parsed: ParsedRequest) -> None:
        reply = parsed.reply
        if self._output == "token":
            parts: list[bytes] = []

            async def keep(part: bytes) -> None:
                parts.append(part)

            await self._format_parts(backend, parsed, reply.stream(), keep)
            await self._respond(reply, reply.content_type, b"".join(parts))
        elif self._output == "output":
            body = reply.render(await self._collect(backend, parsed))
            await self._respond(reply, JSON_CONTENT_TYPE, await self._response.format("output", body))
        else:
            await super()._whole(backend, parsed)

    async def _format_parts(
        self, backend: Backend, parsed: ParsedRequest, renderer: StreamRenderer, send: Send
    ) -> None:
        """Format each token, or each event of the stream, and send the result."""
        is_token = self._output == "token"
        kind: Part = "token" if is_token else "event"
        payload = None if self._response.changes_input else self._payload
        steps = TokenSteps(payload, with_special=not parsed.requests[0].sampling.skip_special_tokens)
        render = steps.chunk if is_token else renderer.chunk
        waiting: deque[bytes] = deque()
        sending = asyncio.Lock()

        def on_chunk(number: int, chunk: Chunk) -> bool:
            self._note(chunk, parsed.requests[number].adapter)
            failure = failure_of(chunk.finish)
            if failure is not None:
                raise failure
            waiting.extend(render(chunk, request=number))
            return False

        async def drain() -> None:
            async with sending:
                while waiting:
                    await send(await self._response.format(kind, waiting.popleft()))

        await self._relay(backend, parsed, on_chunk, drain)
        if not is_token:
            waiting.extend(renderer.end())
        await drain()
        if not is_token:
            await send(b"\n")  # DJL's last chunk, an empty one with its line end
