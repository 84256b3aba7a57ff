"""
The model host over HTTP: SageMaker's contract for containers with several models.

`POST /models` registers and loads, `GET /models` lists, `DELETE /models/{name}` unloads, and
`POST /models/{name}/invoke` passes a request on to the model's own `/invocations`. Below `/models/{name}/v1/` is the
OpenAI API of the model, below `/models/{name}/api/` Ollama's. Errors have the form of Multi Model Server's.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest, NotFound, Unauthorized
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.forwarding import MAX_BODY_BYTES, ModelForwarder, passed_headers
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.model_host.protocol import (
    INVOCATIONS,
    REASON_HEADER,
    STATUSES,
    WAIT_HEADER,
    Registration,
)
from headrace.serving.http.asgi import Receive, Scope, Send, has_token, header
from headrace.serving.http.body import ClientGone
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ResponseBroken
from headrace.serving.http.errors import ResponseAborted, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import JSON_CONTENT_TYPE

_MODEL_PATH: Final = re.compile(r"/models/([A-Za-z0-9._-]{1,200})(/invoke|/v1/.+|/api/.+)?")
_INVOKE: Final = "/invoke"
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
        if self.token and not has_token(scope, self.token):
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
        body = await exchange.read_body(max_bytes=MAX_BODY_BYTES)
        try:
            registration = msgspec.json.decode(body, type=Registration)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
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
        body = await exchange.read_body(max_bytes=MAX_BODY_BYTES)
        wait_s = header(scope, WAIT_HEADER.encode())
        query = scope["query_string"].decode("latin-1")
        request = ClientRequest(
            method=scope["method"],
            path=f"{path}?{query}" if query else path,
            headers=passed_headers(scope),
            body=body,
        )
        forwarder = ModelForwarder(host=self.host, client=self.client)
        try:
            await forwarder.forward(name, request, exchange, wait_s=None if wait_s is None else float(wait_s))
        except ResponseBroken:
            raise ResponseAborted from None


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
