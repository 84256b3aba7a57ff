"""
The model host over HTTP: SageMaker's contract for containers with several models.

`POST /models` registers and loads, `GET /models` lists, `DELETE /models/{name}` unloads, and
`POST /models/{name}/invoke` passes a request on to the model's own `/invocations`. Below `/models/{name}/v1/` is the
OpenAI API of the model. Errors have the form of Multi Model Server's.
"""

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest, NotFound, Unauthorized
from headrace.platform.cluster.model_host.host import HostedModel, ModelHost, ModelLease
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.model_host.protocol import (
    INVOCATIONS,
    REASON_HEADER,
    STATUSES,
    TIMING_HEADER,
    WAIT_HEADER,
    Registration,
    render_timing,
)
from headrace.serving.http.asgi import Receive, Scope, Send, header
from headrace.serving.http.body import ClientGone
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ClientResponse, ConnectFailed, NoResponse, ResponseBroken
from headrace.serving.http.errors import ResponseAborted, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import JSON_CONTENT_TYPE

_MODEL_PATH: Final = re.compile(r"/models/([A-Za-z0-9._-]{1,200})(/invoke|/v1/.+)?")
_INVOKE: Final = "/invoke"
_MAX_BODY_BYTES: Final = 256 << 20
"""The gateway has smaller limits."""
_NOT_PASSED_ON: Final = frozenset(
    {b"host", b"connection", b"content-length", b"transfer-encoding", b"authorization", WAIT_HEADER.encode()}
)
_NOT_PASSED_BACK: Final = frozenset({"connection", "content-length", "transfer-encoding", "date", "server"})
_PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True, kw_only=True)
class ModelHostApp:
    """The application in front of a model host."""

    host: ModelHost
    client: HttpClient
    hosted: Callable[[Registration], HostedModel]
    """Makes a model of a registration. Raises `InvalidRequest`: it may not be loaded here."""
    metrics: Callable[[], Awaitable[bytes]]
    """Returns the page of metrics of all models."""
    token: str = ""
    """Bearer token that requests must have; empty: none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)

        async def answer_error(error: HeadraceError) -> None:
            if exchange.is_started:
                raise ResponseAborted
            await _answer_error(exchange, error)

        try:
            async with errors_answered(answer_error, request_id="", stopping="The host is stopping."):
                await self._answer(scope, exchange)
        except ClientGone:
            pass

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        method, path = scope["method"], scope["path"]
        if path == "/ping":
            await exchange.respond(200, (), b"")
            return
        if self.token and not hmac.compare_digest(header(scope, b"authorization") or "", f"Bearer {self.token}"):
            raise Unauthorized("The bearer token is missing or wrong.")
        found = _MODEL_PATH.fullmatch(path)
        if path == "/metrics":
            await exchange.respond(200, [("content-type", _PLAIN_TEXT)], await self.metrics())
        elif path == "/models" and method == "POST":
            await self._register(exchange)
        elif path == "/models" and method == "GET":
            await _answer_json(exchange, {"models": [_described(model) for model, _ in self.host.loaded]})
        elif found is None:
            raise NotFound(f"{method} {path} is not served here.")
        elif found[2] and (method == "POST" or found[2] != _INVOKE):
            path = INVOCATIONS if found[2] == _INVOKE else quote(found[2])
            await self._invoke(found[1], path, scope, exchange)
        elif method in ("GET", "DELETE") and not found[2]:
            await self._find(found[1], exchange, unloads=method == "DELETE")
        else:
            raise NotFound(f"{method} {path} is not served here.")

    async def _register(self, exchange: Exchange) -> None:
        body = await exchange.read_body(max_bytes=_MAX_BODY_BYTES)
        try:
            registration = msgspec.json.decode(body, type=Registration)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"The body is not a registration of a model ({error}).") from error
        name = registration.model_name
        if self.host.find(name) is not None and not registration.lazy:
            body = msgspec.json.encode(_error(409, "ConflictStatusException", f"Model {name} is already registered."))
            await exchange.respond(409, [("content-type", JSON_CONTENT_TYPE)], body)
            return
        self.host.register(self.hosted(registration))
        if not registration.lazy:
            async with self.host.lease(name):
                pass
        await _answer_json(exchange, {"status": f"Model {name} {'registered' if registration.lazy else 'loaded'}"})

    async def _find(self, name: str, exchange: Exchange, *, unloads: bool) -> None:
        model = self.host.find(name)
        if model is None:
            raise NotFound(f"Model {name} is not loaded.")
        if unloads:
            await self.host.unload(name)
            await _answer_json(exchange, {"status": f"Model {name} unregistered"})
        else:
            await _answer_json(exchange, _described(model))

    async def _invoke(self, name: str, path: str, scope: Scope, exchange: Exchange) -> None:
        body = await exchange.read_body(max_bytes=_MAX_BODY_BYTES)
        wait_s = header(scope, WAIT_HEADER.encode())
        headers = tuple(
            (sent.decode("latin-1"), value.decode("latin-1"))
            for sent, value in scope["headers"]
            if sent not in _NOT_PASSED_ON
        )
        query = scope["query_string"].decode("latin-1")
        path = f"{path}?{query}" if query else path
        request = ClientRequest(method=scope["method"], path=path, headers=headers, body=body)
        async with exchange.cancelled_on_disconnect():
            for is_last in (False, True):
                async with self.host.lease(name, wait_s=None if wait_s is None else float(wait_s)) as lease:
                    if await self._pass_on(lease, request, exchange, is_last=is_last):
                        return
                await self.host.check(name)

    async def _pass_on(self, lease: ModelLease, request: ClientRequest, exchange: Exchange, *, is_last: bool) -> bool:
        """Relay the response of a model; return False if the request has not reached it, and may be sent again."""
        if lease.token:
            authorization = ("Authorization", f"Bearer {lease.token}")
            request = replace(request, headers=(*request.headers, authorization))
        try:
            response = await self.client.send(lease.url, request)
        except NoResponse as error:
            if isinstance(error, ConnectFailed) and not is_last:
                return False
            raise ModelUnavailable(f"The model did not answer: {error}.", reason="not-loaded") from error
        try:
            await _relay(response, lease, exchange)
        except ResponseBroken:
            raise ResponseAborted from None
        finally:
            response.close()
        return True


async def _relay(response: ClientResponse, lease: ModelLease, exchange: Exchange) -> None:
    headers = [(name, value) for name, value in response.headers.items() if name not in _NOT_PASSED_BACK]
    if lease.timing is not None:
        headers.append((TIMING_HEADER, render_timing(lease.timing)))
    if "content-length" in response.headers:
        await exchange.respond(response.status, headers, await response.read(_MAX_BODY_BYTES))
        return
    await exchange.start(response.status, headers)
    await response.relay(exchange.put, exchange.drain)
    await exchange.finish()


async def _answer_json(exchange: Exchange, value: object) -> None:
    await exchange.respond(200, [("content-type", JSON_CONTENT_TYPE)], msgspec.json.encode(value))


async def _answer_error(exchange: Exchange, error: HeadraceError) -> None:
    headers = [("content-type", JSON_CONTENT_TYPE)]
    status, kind = error.http_status, HTTPStatus(error.http_status).phrase.title().replace(" ", "") + "Exception"
    if isinstance(error, ModelUnavailable):
        status = STATUSES[error.reason]
        kind = "InsufficientMemoryException" if status == STATUSES["no-memory"] else "InternalServerException"
        headers.append((REASON_HEADER, error.reason))
    await exchange.respond(status, headers, msgspec.json.encode(_error(status, kind, error.message)))


def _error(status: int, kind: str, message: str) -> dict[str, object]:
    return {"code": status, "type": kind, "message": message}


def _described(model: HostedModel) -> dict[str, str]:
    return {"modelName": model.name, "modelUrl": model.url}
