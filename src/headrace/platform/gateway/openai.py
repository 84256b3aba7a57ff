"""
OpenAI's and Anthropic's APIs on endpoints: `/v1/...`, and the two longer forms of SageMaker.

Below `/v1`, `model` names an endpoint or an inference component. SageMaker's forms name them in the path:
`/endpoints/<name>/openai/v1` and `/endpoints/<name>/inference-components/<component>/openai/v1`. Bodies and responses
are passed on unchanged; a stream is plain chunked HTTP. Source: SageMaker developer guide, "Invoke models with the
OpenAI SDK".
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar
from urllib.parse import quote

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import (
    Busy,
    EngineFailed,
    Forbidden,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    ModelFailed,
    ModelNotReady,
    PayloadTooLarge,
    Unavailable,
)
from headrace.core.tracing import trace_of
from headrace.platform.cluster.model_host.protocol import TARGET_HEADER, reason_of
from headrace.platform.gateway import request as runtime_request
from headrace.platform.gateway.errors import NoCapacity, NotServing, UnknownTarget
from headrace.platform.gateway.key_limits import AccessDenied, RateLimited
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.openai_models import is_models_path, no_model, not_serving
from headrace.platform.gateway.request import Invocation
from headrace.platform.gateway.routing import is_for_components
from headrace.platform.gateway.service import InvocationService, finish, relay
from headrace.platform.gateway.stored_responses import PendingResponse
from headrace.serving.http.asgi import Headers, Scope, header
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse, ResponseBroken
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.framing import NDJSON_CONTENT_TYPE, SSE_CONTENT_TYPE, without_bom
from headrace.serving.wire.json_size import INLINE_BYTES, check_json_size
from headrace.serving.wire.key_limits import INVOKE
from headrace.serving.wire.openai.envelope import render_error
from headrace.serving.wire.unknown_routes import (
    COUNT_TOKENS,
    INPUT_TOKENS,
    MODELS,
    OLLAMA_PAGES,
    OLLAMA_POSTS,
    OPENAI_METHODS,
    RESPONSES,
    error_event_for,
    render_error_for,
    unknown_route,
)

_ENDPOINT_PATH = re.compile(r"^/endpoints/([^/]+)(?:/inference-components/([^/]+))?/openai(/v1/.+)$")
_FORWARDED_HEADERS = ("content-type", "cache-control", "retry-after")
_ERRORS: dict[str, type[HeadraceError]] = {
    "ServiceUnavailable": Unavailable,
    "ThrottlingException": Busy,
    "ModelNotReadyException": Busy,
    "413": PayloadTooLarge,
    "ValidationError": InvalidRequest,
    "SerializationException": InvalidRequest,
}
"""The OpenAI error for each code of the runtime API; any other code is a model error."""

_ADAPTER_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_WITHOUT_WORK = _ADAPTER_PATHS | {INPUT_TOKENS, COUNT_TOKENS, "/api/show"}
"""Paths to which a POST asks for no work of the model."""

T = TypeVar("T")

RETRY_AFTER = ("retry-after", "1")
"""Header of all responses that ask the client to retry; seconds."""


class _ModelOfBody(msgspec.Struct):
    model: str = ""
    name: str = ""
    """Ollama's older name of `model`."""


class _StreamOfBody(msgspec.Struct):
    stream: bool | None = None


_decode_model = msgspec.json.Decoder(_ModelOfBody).decode
_decode_stream = msgspec.json.Decoder(_StreamOfBody).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiPath:
    path: str
    """The path from `/v1` on."""
    endpoint: str | None = None
    """None: the body names the endpoint."""
    component: str | None = None


def match(path: str) -> OpenAiPath | None:
    """Parse a path; None if it does not belong to this API."""
    if any(segment in {".", ".."} for segment in path.split("/")):
        return None
    if path.startswith("/v1/"):
        return OpenAiPath(path=path)
    found = _ENDPOINT_PATH.match(path)
    return None if found is None else OpenAiPath(endpoint=found[1], component=found[2], path=found[3])


def match_unsigned(path: str) -> OpenAiPath | None:
    """Parse a path of this API or of Ollama's, which begins as that of an object in a bucket does."""
    return OpenAiPath(path=path) if path in OLLAMA_POSTS or path in OLLAMA_PAGES else match(path)


def generates(method: str, path: str) -> bool:
    """Return whether a request asks the model for work; one that only reads, counts or manages wakes nothing."""
    return method == "POST" and path not in _WITHOUT_WORK


def action_of(path: str) -> str:
    """Return IAM's name for what a request asks for: adapters of a worker are loaded by none of AWS's operations."""
    return "headrace:LoadAdapter" if path in _ADAPTER_PATHS else INVOKE


def prefers_to_wait(scope: Scope) -> bool:
    """Return whether the client asks to wait for a model that is asleep: `Prefer: wait`, as in RFC 7240."""
    preferences = (header(scope, b"prefer") or "").lower().split(",")
    return any(preference.partition("=")[0].strip() == "wait" for preference in preferences)


async def model_named(body: bytes, *, path: str = "/v1/") -> str:
    """
    Return the model that a body names: an endpoint or an inference component. Ollama's clients add a tag to it.

    Raises `InvalidRequest` if it names none, `PayloadTooLarge` if it has too many values (`check_json_size`).
    """
    try:
        named = await _decoded(body, _decode_model)
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deep.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not JSON with a string `model`: {error}. Expected a JSON object.") from error
    name = (named.model or named.name).removesuffix(":latest") if path in OLLAMA_POSTS else named.model
    if not name:
        raise InvalidRequest(
            "`model` is missing. It is the name of an endpoint or of an inference component.", param="model"
        )
    return name


async def _decoded(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode a body; a large one is checked first, on another thread, because the decoder holds the GIL."""
    if len(body) > INLINE_BYTES:
        await asyncio.to_thread(check_json_size, body)
        return await asyncio.to_thread(decode, body)
    return decode(body)


async def answer_openai(
    service: InvocationService,
    asked: OpenAiPath,
    scope: Scope,
    body: bytes,
    exchange: Exchange,
    record: InvocationRecord,
) -> None:
    """Answer one request; a `HeadraceError` is raised if it failed and nothing has been sent."""
    endpoint, component, headers = asked.endpoint, asked.component, scope["headers"]
    body = without_bom(body)
    if endpoint is None:
        endpoint, component, target = await _resolve_body(service, scope["method"], asked.path, body)
        if target is not None:
            headers = [*headers, (TARGET_HEADER.lower().encode(), target.encode())]
    record.endpoint = shortened(endpoint)  # a name from the body, of any length
    try:
        invocation = runtime_request.read(endpoint, "InvokeEndpoint", headers, trace_of(scope))
        if component is not None:
            members = {**invocation.members, "InferenceComponentName": component}
            invocation = replace(invocation, members=members)
        query = scope.get("query_string", b"").decode("latin-1")
        request = ClientRequest(
            method=scope["method"],
            path=quote(asked.path) + (f"?{query}" if query else ""),
            headers=invocation.worker_headers(),
            body=body,
        )
        pending, responses = None, service.responses
        if responses is not None and scope["method"] == "POST" and asked.path in {RESPONSES, INPUT_TOKENS}:
            pending = await responses.read(scope, body, record.request_id)
        if responses is None or pending is None:
            await _forward(service, invocation, request, exchange, record)
            return
        # The worker gets the stored conversation that the request continues; its response is stored. A count of input
        # tokens is no response: it has no id by which it could be stored.
        with responses.counted(pending.request):
            request = replace(request, body=pending.request.body)
            await _forward(service, invocation, request, exchange, record, pending)
    except AwsError as error:
        raise to_openai_error(error, model=component or endpoint) from error


async def _resolve_body(
    service: InvocationService, method: str, path: str, body: bytes
) -> tuple[str, str | None, str | None]:
    """
    Return the endpoint, the inference component and the target model that a body names, as `ENDPOINT/TARGET`.

    Raises `HeadraceError` if it names none; for paths that our servers do not serve, the error names the alternative.
    """
    try:
        # An endpoint with models of its own comes first, then an inference component, then any endpoint.
        name, has_own_models = await model_named(body, path=path), False
        multi, slash, target = name.partition("/")
        route = service.forwarder.routes.get(multi)
        if slash and route is not None and any(variant.model_prefix for variant in route.variants):
            return multi, None, target
        with suppress(AwsError):
            has_own_models = not is_for_components(await service.forwarder.route(name))
        owner = None if has_own_models else service.forwarder.endpoint_of(name)
        is_served = path in OPENAI_METHODS or path in OLLAMA_POSTS
        if not is_served:  # the model's own image may serve it
            await service.forwarder.route(owner or name)
    except (InvalidRequest, UnknownTarget):
        if path in OPENAI_METHODS or path in OLLAMA_POSTS:
            raise
        raise not_served(method, path) from None
    return (name, None, None) if owner is None else (owner, name, None)


def not_served(method: str, path: str) -> HeadraceError:
    """Return the error for a path below `/v1` that is not served; it names the alternative."""
    allowed = OPENAI_METHODS[MODELS] if is_models_path(path) else OPENAI_METHODS.get(path, ())
    return unknown_route(method, path, allowed=allowed, invocations="/endpoints/NAME/invocations")


async def fail(error: HeadraceError, exchange: Exchange, record: InvocationRecord, *, path: str = "/v1/") -> None:
    """Answer with an error in the format that clients of `path` expect, or end a stream with it."""
    record.error = record.error or error.code
    if exchange.is_started:
        exchange.put(error_event_for(path, error))
        await finish(exchange)
        return
    reply = render_error_for(path, error, default=render_error)
    record.status = reply.status
    headers = [*record.id_headers(), ("content-type", reply.content_type), *reply.headers]
    if isinstance(error, EngineFailed | ModelFailed):
        headers.append(("x-should-retry", "false"))  # OpenAI's clients obey it: a retry would fail again, or run twice
    elif isinstance(error, Unavailable):
        headers.append(RETRY_AFTER)
    elif isinstance(error, MethodNotAllowed):
        headers.append(("allow", ", ".join(error.allowed)))
    await exchange.respond(reply.status, headers, reply.body)


async def _forward(
    service: InvocationService,
    invocation: Invocation,
    request: ClientRequest,
    exchange: Exchange,
    record: InvocationRecord,
    pending: PendingResponse | None = None,
) -> None:
    query = replace(service.routing_query(invocation, request.body), wakes=record.wakes)
    try:
        async with service.invoke(
            invocation.endpoint,
            query,
            request,
            record,
            timeout_s=service.config.stream_timeout_s,
            heartbeat=lambda: _heartbeat(service, request, exchange, record),
        ) as response:
            if reason_of(response.headers) is not None:  # its target model is not loaded
                await service.check_status(response, record, exchange.hold)
            whole = await _relay_or_read(service, invocation, response, exchange, record, pending)
    except TimeoutError:
        raise EngineFailed("The model did not finish its answer in time.") from None
    except ResponseBroken:
        raise EngineFailed("The connection to the model broke in the middle of its answer.") from None
    if whole is not None:
        await exchange.respond(*whole)
    else:
        await finish(exchange)


async def _relay_or_read(
    service: InvocationService,
    invocation: Invocation,
    response: ClientResponse,
    exchange: Exchange,
    record: InvocationRecord,
    pending: PendingResponse | None,
) -> tuple[int, Headers, bytes] | None:
    """Relay a stream; return another response, which is sent when the worker is free again."""
    is_stream = response.headers.get("content-type", "").startswith((SSE_CONTENT_TYPE, NDJSON_CONTENT_TYPE))
    headers = [
        *service.response_headers(invocation, record, response.headers).items(),
        *((name, response.headers[name]) for name in _FORWARDED_HEADERS if name in response.headers),
    ]
    if is_stream and 200 <= response.status < 300:
        if not exchange.is_started:
            record.status = response.status
            await exchange.start(response.status, headers)
        if pending is None:
            await relay(response, exchange, record)
            return None
        recorder = await pending.recorder()
        await relay(response, exchange, record, recorder.feed)
        if rest := recorder.rest():
            exchange.put(rest)
        return None
    content = await service.read(response, record, exchange.hold)
    if pending is not None:
        is_error = response.status >= 400
        content = pending.request.error_for_client(content) if is_error else (await pending.recorder()).whole(content)
    record.first_s = perf_counter()
    if exchange.is_started:  # by a heartbeat: a response that is not a stream becomes one event
        record.error = record.error or (str(response.status) if response.status >= 400 else None)
        exchange.put(b"data: " + b" ".join(content.split()) + b"\n\n")
        return None
    record.status = response.status
    return response.status, headers, content


async def _heartbeat(
    service: InvocationService, request: ClientRequest, exchange: Exchange, record: InvocationRecord
) -> None:
    """Send SSE comments, which clients skip. Source: HTML standard, "Server-sent events", authoring notes."""
    await asyncio.sleep(service.config.heartbeat_s)
    try:
        is_streamed = bool((await _decoded(request.body, _decode_stream)).stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PayloadTooLarge):
        is_streamed = False
    if not is_streamed or request.path in OLLAMA_POSTS:  # its streams have no comments
        return
    if not exchange.is_started:  # a request may be held a second time, after its replica has died
        record.status = 200
        headers = [("content-type", SSE_CONTENT_TYPE), ("cache-control", "no-cache"), *record.id_headers()]
        await exchange.start(200, headers)
    while True:
        if not exchange.put(b": a replica is being started\n\n"):
            await exchange.drain()
        await asyncio.sleep(service.config.heartbeat_s)


def to_busy(error: AwsError) -> Busy:
    return Busy(error.message, retry_after_s=error.retry_after_s if isinstance(error, RateLimited) else 1.0)


def to_openai_error(error: AwsError, *, model: str = "") -> HeadraceError:
    if isinstance(error, AccessDenied) and not error.is_about_model:
        return Forbidden(error.message)
    if isinstance(error, UnknownTarget | AccessDenied):  # a caller must not learn which models exist
        return no_model(model)
    if isinstance(error, NotServing):
        return not_serving(model, error.endpoint_status)
    if isinstance(error, NoCapacity) and error.code != "ThrottlingException":
        return ModelNotReady(error.message)
    kind = _ERRORS.get(error.code)
    if kind is Busy:
        return to_busy(error)
    return EngineFailed(error.message) if kind is None else kind(error.message)
