"""
The formatters of a model's own code around the engine, which run in a child process, and requests that they change.

The process is that of a handler, with its timeouts, queue, restarts and log lines. There is only one, because all
tokens of a response must reach the same process.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final, Literal

from headrace.core.errors import Busy, CodeFailed, CodeUnavailable, HeadraceError
from headrace.core.generation import Chunk
from headrace.core.telemetry import RequestRecord, get_logger
from headrace.inference.engine.backend import Backend
from headrace.serving.handlers.errors import Refused, WholeResponse
from headrace.serving.handlers.exchange import HandlerRequest, Pairs, request_part
from headrace.serving.handlers.pool import HandlerPool, PoolPhase
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.http.asgi import Scope
from headrace.serving.http.exchange import Exchange
from headrace.serving.server.generation import ChooseDialect, ExtraBytes, Generation
from headrace.serving.server.lifecycle import in_daemon_thread
from headrace.serving.server.service import Service
from headrace.serving.wire.answers import failure_of
from headrace.serving.wire.dialect import Dialect, ParsedRequest, StreamRenderer
from headrace.serving.wire.formatted import TokenSteps, for_responses, for_tokens
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, JSONLINES_CONTENT_TYPE

OutputKind = Literal["output", "token"]
"""Form in which a formatter gets responses: whole and by event, or by token."""
Part = Literal["input", "output", "event", "token"]
"""The input of a formatter; see `headrace_handler.contracts.djl.formatters`."""
Prepare = Callable[[HandlerSpec], HandlerSpec]

_FAILED: Final = 424


class Formatters:
    """The process with a model's formatters, and the kinds that it has."""

    def __init__(self, spec: HandlerSpec, *, prepare: Prepare | None = None) -> None:
        """Create the formatters of some code; `prepare` is called on a thread before their process is started."""
        self.changes_input = False
        self.output: OutputKind | None = None
        self.pool = HandlerPool(spec)
        self._spec = spec
        self._prepare = prepare
        self._numbers = count(1)

    async def start(self) -> None:
        """Start the process and ask which formatters it has; raise `LoadError` if the code cannot be loaded."""
        if self._prepare is not None:
            self.pool = HandlerPool(await in_daemon_thread(self.prepare))
        await self.pool.start()
        try:
            described = await self.ask("describe", HandlerRequest(request_id="", mode="describe"))
        except BaseException:
            await self.pool.close(deadline_s=0)
            raise
        kinds = json.loads(described)["formatters"]
        self.changes_input = "input" in kinds
        self.output = "output" if "output" in kinds else "token" if "token" in kinds else None
        get_logger().info("formatters.ready", model=self._spec.model_name, formatters=kinds)

    def prepare(self) -> HandlerSpec:
        """Install what the code needs, and return how to run it; blocks."""
        return self._spec if self._prepare is None else self._prepare(self._spec)

    async def close(self) -> None:
        """Stop the process; no request may still need it."""
        await self.pool.close(deadline_s=0)

    @property
    def is_healthy(self) -> bool:
        return self.pool.phase is not PoolPhase.FAILED

    def generation(
        self, service: Service, dialect: Dialect, exchange: Exchange, record: RequestRecord, scope: Scope
    ) -> "FormattedGeneration":
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        response = FormattedResponse(self, record.request_id, headers, number=next(self._numbers))
        return FormattedGeneration(service, dialect, exchange, record, response)

    async def ask(self, part: str, request: HandlerRequest) -> bytes:
        """Return the answer of the process to a request about a part; raise the contract's error."""
        try:
            response = self.pool.submit(request)
        except Refused as refused:
            raise _error_of(refused.response, part) from None
        try:
            head = await response.head()
        finally:
            response.close()
        assert isinstance(head, WholeResponse), "formatters answer in one part"
        if head.status == 200:
            return bytes(head.body)
        raise _error_of(head, part)


class FormattedResponse:
    """The calls of formatters for one request and its response."""

    def __init__(self, formatters: Formatters, request_id: str, headers: Pairs, *, number: int) -> None:
        self.changes_input = formatters.changes_input
        self.output = formatters.output
        self._ask = formatters.ask
        self._request = partial(HandlerRequest, request_id=request_id, mode="format", path=str(number))
        self._headers = headers

    async def format(self, part: Part, content: bytes) -> bytes:
        """
        Run a formatter on a part and return its output.

        Raises:
            CodeFailed: it raised an exception, or cannot take the part.
            CodeUnavailable, Busy: its process has ended, was too slow, or has too many calls waiting.
        """
        parts = [await request_part(content, name=part)]
        return await self._ask(part, self._request(headers=self._headers if part == "input" else (), parts=parts))


Send = Callable[[bytes], Awaitable[None]]


class FormattedGeneration(Generation):
    """
    A request whose body, response or tokens the model's own formatters change.

    The formatters run in another process: the backend waits for them as it waits for a slow client.
    """

    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        exchange: Exchange,
        record: RequestRecord,
        response: FormattedResponse,
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


def _error_of(response: WholeResponse, part: str) -> HeadraceError:
    body = json.loads(bytes(response.body) or b"{}")
    if response.status == _FAILED:
        return CodeFailed(str(body.get("error", "")), part=part)
    message = str(body.get("message", ""))
    if body.get("type") == "WlmCapacityException":
        return Busy(message)
    return CodeUnavailable(message, part=part)
