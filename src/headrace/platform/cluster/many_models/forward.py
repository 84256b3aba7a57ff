"""The requests that go to a model: choose it, load it if necessary, and answer errors in the client's dialect."""

import time
from dataclasses import dataclass
from urllib.parse import parse_qs, quote

from headrace.core.errors import EngineFailed, HeadraceError, ModelNotReady
from headrace.core.telemetry import get_logger
from headrace.core.tracing import trace_of
from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.many_models.routing import (
    NamedModel,
    allowed_methods,
    asks_for_unload,
    goes_to_model,
    keep_s_of,
    read_named,
    streams_events,
)
from headrace.platform.cluster.many_models.service import ManyModels, error_of
from headrace.platform.cluster.model_host.forwarding import passed_headers
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.model_host.protocol import TARGET_HEADER
from headrace.serving.http.asgi import Receive, Scope, Send, error_path, header
from headrace.serving.http.body import ClientGone
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ResponseBroken, ResponseTooLarge
from headrace.serving.http.errors import CLIENT_GONE_STATUS, ResponseAborted, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import (
    JSON_CONTENT_TYPE,
    SSE_CONTENT_TYPE,
    SSE_KEEP_ALIVE,
    UNBUFFERED_HEADERS,
    to_json,
)
from headrace.serving.wire.ollama.dialect import timestamp
from headrace.serving.wire.unknown_routes import OLLAMA_POSTS, error_event_for, render_error_for, unknown_route

_JSON = (("content-type", JSON_CONTENT_TYPE),)
_EVENTS = (("content-type", SSE_CONTENT_TYPE), *UNBUFFERED_HEADERS)
_BROKEN = "The model's process ended in the middle of its answer; the next request starts it again."


@dataclass(slots=True)
class ForwardedRequests:
    """The app of all routes that a model's own server answers."""

    service: ManyModels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, keep_alive_s=self.service.keep_alive_s)
        call = _Call(self.service, scope, receive, exchange)
        started_s = time.perf_counter()
        try:
            async with errors_answered(call.fail, request_id=trace_of(scope).request_id):
                await call.answer()
        except ClientGone:
            if not exchange.is_started:
                exchange.status = CLIENT_GONE_STATUS
        finally:
            self.service.num_requests[call.name, exchange.status] += 1
            took_ms = round((time.perf_counter() - started_s) * 1e3)
            get_logger().info(
                "request.forwarded", route=call.path, model=call.name, status=exchange.status, total_ms=took_ms
            )


class _Call:
    """One request to a model."""

    def __init__(self, service: ManyModels, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        self._service = service
        self._scope = scope
        self._receive = receive
        self._exchange = exchange
        self.path: str = scope["path"]
        self.name = ""
        """The model's name in the catalogue; empty until it is found."""

    async def answer(self) -> None:
        """Answer the request. Raises `HeadraceError` if nothing was sent, `ClientGone` or `ResponseAborted`."""
        service, method = self._service, self._scope["method"]
        service.check_open()
        if not goes_to_model(method, self.path):
            raise unknown_route(method, self.path, allowed=allowed_methods(self.path))
        async with service.admit(self._scope, self._receive) as body:
            named = NamedModel()
            if method == "POST":
                named = await service.parse_body(body, lambda body: read_named(body, self.path))
            preset = await service.find(self._named(named))
            self.name = preset.name
            if asks_for_unload(named, self.path):
                await self._unload(preset)
            elif (page := self._known_page(preset)) is not None:
                await self._exchange.respond(200, _JSON, page)
            else:
                await self._forward(preset, body, named)

    def _named(self, named: NamedModel) -> str | None:
        """Return the name in the body, the query, or SageMaker's header of `/invocations`."""
        query = parse_qs(self._scope["query_string"].decode("latin-1"))
        target = header(self._scope, TARGET_HEADER.lower().encode()) if self.path == "/invocations" else None
        by_ollama = named.name if self.path in OLLAMA_POSTS else None
        return named.model or by_ollama or target or query.get("model", [None])[0]

    def _known_page(self, preset: ModelPreset) -> bytes | None:
        """Return a page about the model that needs no load; raise `ModelNotReady` for a GET that would."""
        is_read, state = self._scope["method"] == "GET", self._service.host.status(preset.name)
        if not (is_read or self.path == "/api/show") or state.value == "loaded":
            return None
        page = self._service.page(preset.name, self.path)
        if page is None and is_read:
            raise ModelNotReady(
                f"The model `{preset.name}` is {state.value}, and a GET loads no model. Send it a request, or "
                f"POST /models/load."
            )
        return page

    async def _forward(self, preset: ModelPreset, body: bytes, named: NamedModel) -> None:
        scope, trace = self._scope, trace_of(self._scope)
        query, ids = scope["query_string"].decode("latin-1"), trace.headers()
        replaced = {name.lower() for name, _ in ids}
        request = ClientRequest(
            method=scope["method"],
            path=quote(self.path) + (f"?{query}" if query else ""),
            headers=(*(field for field in passed_headers(scope) if field[0] not in replaced), *ids),
            body=body,
        )
        keep_s, exchange = keep_s_of(named, self.path), self._exchange
        if streams_events(named, self.path):  # comments keep the connection open while the model is loaded
            exchange.begin_stream(_EVENTS, keep_alive=SSE_KEEP_ALIVE)
        try:
            await self._service.forwarder.forward(preset.name, request, exchange, keep_s=keep_s)
        except ModelUnavailable as error:
            raise error_of(error, preset.name) from error
        except ResponseBroken as error:
            raise EngineFailed(_BROKEN) from error
        except ResponseTooLarge as error:
            raise EngineFailed(str(error)) from error

    async def _unload(self, preset: ModelPreset) -> None:
        """Unload a model as Ollama does for a request without a prompt and with `keep_alive` 0."""
        self._service.host.retire(preset.name)
        content = {"message": {"role": "assistant", "content": ""}} if self.path == "/api/chat" else {"response": ""}
        created_at = timestamp(time.time())
        answer = {"model": preset.name, "created_at": created_at, **content, "done": True, "done_reason": "unload"}
        await self._exchange.respond(200, _JSON, to_json(answer))

    async def fail(self, error: HeadraceError) -> None:
        """Answer with an error in the dialect of the path, or end a stream with it."""
        exchange = self._exchange
        if not exchange.is_started:
            reply = render_error_for(error_path(self._scope, self.path), error)
            await exchange.respond(reply.status, (("content-type", reply.content_type), *reply.headers), reply.body)
            return
        if exchange.is_finished:
            raise ResponseAborted
        exchange.put(error_event_for(self.path, error))
        await exchange.finish()
