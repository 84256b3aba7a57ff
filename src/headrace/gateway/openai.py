"""
OpenAI's API on endpoints.

`/v1/...`, where `model` names an endpoint or an inference component, and SageMaker's own two forms,
`/endpoints/<name>/openai/v1` and `/endpoints/<name>/inference-components/<component>/openai/v1`.

Bodies and answers pass as they are; a stream is plain chunked HTTP. Source: SageMaker developer guide, "Invoke models
with the OpenAI SDK" (the longer forms).
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from urllib.parse import quote

import msgspec

from headrace.core.errors import (
    Busy,
    EngineFailed,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    ModelFailed,
    ModelNotReady,
    PayloadTooLarge,
    Unavailable,
)
from headrace.core.tracing import trace_of
from headrace.gateway import request as runtime_request
from headrace.gateway.downstream import Downstream, Scope
from headrace.gateway.errors import NoCapacity, NotServing, UnknownTarget
from headrace.gateway.metrics import InvocationRecord
from headrace.gateway.openai_models import is_models_path, no_model, not_serving
from headrace.gateway.request import Invocation
from headrace.gateway.routing import is_for_components
from headrace.gateway.service import InvocationService, finish
from headrace.http.client import WorkerRequest
from headrace.http.client_response import Answer, AnswerBroken
from headrace.wire.aws.errors import AwsError
from headrace.wire.framing import SSE_CONTENT_TYPE
from headrace.wire.openai.errors import error_body, render_error
from headrace.wire.unknown_routes import MODELS, OPENAI_METHODS, render_error_for, unknown_route

_ENDPOINT_PATH = re.compile(r"^/endpoints/([^/]+)(?:/inference-components/([^/]+))?/openai(/v1/.+)$")
_PASSED_ON = ("content-type", "cache-control", "retry-after")
_ERRORS: dict[str, type[HeadraceError]] = {
    "ServiceUnavailable": Unavailable,
    "ThrottlingException": Busy,
    "ModelNotReadyException": Busy,
    "413": PayloadTooLarge,
    "ValidationError": InvalidRequest,
    "SerializationException": InvalidRequest,
}
"""All others: the model failed."""


RETRY_AFTER = ("retry-after", "1")
"""Seconds; of all answers that ask to come again."""


class _Named(msgspec.Struct):
    model: str = ""


class _Streamed(msgspec.Struct):
    stream: bool | None = None


_decode_model = msgspec.json.Decoder(_Named).decode
_decode_stream = msgspec.json.Decoder(_Streamed).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiPath:
    """A path of the API."""

    path: str
    """From `/v1` on."""
    endpoint: str | None = None
    """None: the body names it."""
    component: str | None = None


def match(path: str) -> OpenAiPath | None:
    """Read a path; None if it is not of this API."""
    if any(segment in {".", ".."} for segment in path.split("/")):
        return None
    if path.startswith("/v1/"):
        return OpenAiPath(path=path)
    found = _ENDPOINT_PATH.match(path)
    return None if found is None else OpenAiPath(endpoint=found[1], component=found[2], path=found[3])


def model_named(body: bytes) -> str:
    """
    The endpoint or the inference component that a body names.

    Raises:
        InvalidRequest: it names none.
    """
    try:
        name = _decode_model(body).model
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not a JSON object with a string in `model`: {error}.") from error
    if not name:
        raise InvalidRequest(
            "`model` is missing. It is the name of an endpoint or of an inference component.", param="model"
        )
    return name


async def answer_openai(
    service: InvocationService, asked: OpenAiPath, scope: Scope, body: bytes, down: Downstream, record: InvocationRecord
) -> None:
    """
    Answer one request.

    Raises:
        HeadraceError: in its place, as long as nothing was sent.
    """
    endpoint, component = asked.endpoint, asked.component
    if endpoint is None:
        endpoint, component = await _addressed(service, scope["method"], asked.path, body)
    record.endpoint = endpoint
    try:
        invocation = runtime_request.read(endpoint, "InvokeEndpoint", scope["headers"], trace_of(scope))
        if component is not None:
            members = {**invocation.members, "InferenceComponentName": component}
            invocation = replace(invocation, members=members)
        request = _worker_request(scope, asked.path, invocation, body)
        await _forward(service, invocation, request, down, record)
    except AwsError as error:
        raise translated(error, model=component or endpoint) from error


async def _place_of(service: InvocationService, model: str) -> tuple[str, str | None]:
    """Endpoint and inference component of a name: an endpoint with models of its own goes first, a host last."""
    with suppress(AwsError):
        if not is_for_components(await service.forwarder.route(model)):
            return model, None
    endpoint = service.forwarder.endpoint_of(model)
    return (model, None) if endpoint is None else (endpoint, model)


async def _addressed(service: InvocationService, method: str, path: str, body: bytes) -> tuple[str, str | None]:
    """
    Endpoint and inference component that a body names.

    Raises:
        HeadraceError: it names none. Where our own servers do not serve the path, the error says what to use instead.
        AwsError: the endpoint does not serve.
    """
    try:
        place = await _place_of(service, model_named(body))
        if path not in OPENAI_METHODS:  # the model's own image may serve it
            await service.forwarder.route(place[0])
    except (InvalidRequest, UnknownTarget):
        if path in OPENAI_METHODS:
            raise
        raise not_served(method, path) from None
    return place


def not_served(method: str, path: str) -> HeadraceError:
    """Say what to use instead of a route below `/v1`."""
    allowed = OPENAI_METHODS[MODELS] if is_models_path(path) else OPENAI_METHODS.get(path, ())
    return unknown_route(method, path, allowed=allowed, invocations="/endpoints/NAME/invocations")


async def fail(error: HeadraceError, down: Downstream, record: InvocationRecord, *, path: str = "/v1/") -> None:
    """Answer with an error in the form of the clients of a path, or end a stream with one."""
    record.error = record.error or error.code
    if down.is_started:
        down.put(b"data: " + error_body(error) + b"\n\n")
        await finish(down)
        return
    reply = render_error_for(path, error, default=render_error)
    record.status = reply.status
    headers = [*record.id_headers(), ("content-type", reply.content_type), *reply.headers]
    if isinstance(error, EngineFailed | ModelFailed):
        headers.append(("x-should-retry", "false"))  # OpenAI's clients obey it: a retry fails again, or runs twice
    elif isinstance(error, Unavailable):
        headers.append(RETRY_AFTER)
    elif isinstance(error, MethodNotAllowed):
        headers.append(("allow", ", ".join(error.allowed)))
    await down.whole(reply.status, headers, reply.body)


def _worker_request(scope: Scope, path: str, invocation: Invocation, body: bytes) -> WorkerRequest:
    query = scope.get("query_string", b"").decode("latin-1")
    target = quote(path) + (f"?{query}" if query else "")
    return WorkerRequest(method=scope["method"], path=target, headers=invocation.worker_headers(), body=body)


async def _forward(
    service: InvocationService,
    invocation: Invocation,
    request: WorkerRequest,
    down: Downstream,
    record: InvocationRecord,
) -> None:
    query = service.routing_query(invocation, request.body)
    try:
        async with service.answered(
            invocation.endpoint,
            query,
            request,
            record,
            timeout_s=service.config.stream_timeout_s,
            heartbeat=lambda: _beat(service, request.body, down, record),
        ) as answer:
            await _pass_on(service, invocation, answer, down, record)
    except TimeoutError:
        raise EngineFailed("The model did not finish its answer in time.") from None
    except AnswerBroken:
        raise EngineFailed("The connection to the model broke in the middle of its answer.") from None
    if not down.is_finished:
        await finish(down)


async def _pass_on(
    service: InvocationService, invocation: Invocation, answer: Answer, down: Downstream, record: InvocationRecord
) -> None:
    is_sse = answer.headers.get("content-type", "").startswith(SSE_CONTENT_TYPE)
    headers = [*service.answer_headers(invocation, record, answer.headers).items(), *_headers(answer)]
    if is_sse and 200 <= answer.status < 300:
        if not down.is_started:
            record.status = answer.status
            await down.start(answer.status, headers)
        await _relay(answer, down, record)
        return
    content = await service.read(answer, invocation.endpoint, max_bytes=service.config.max_answer_bytes)
    record.first_s = perf_counter()
    if down.is_started:  # by a sign of life: what is not a stream becomes an event of it
        record.error = record.error or (str(answer.status) if answer.status >= 400 else None)
        down.put(b"data: " + b" ".join(content.split()) + b"\n\n")
        return
    record.status = answer.status
    await down.whole(answer.status, headers, content)


def _is_streamed(body: bytes) -> bool:
    """Whether the client waits for an SSE stream."""
    try:
        return bool(_decode_stream(body).stream)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


async def _beat(service: InvocationService, body: bytes, down: Downstream, record: InvocationRecord) -> None:
    """Comments, which readers of SSE skip. Source: HTML standard, "Server-sent events", authoring notes."""
    await asyncio.sleep(service.config.heartbeat_s)
    if not _is_streamed(body):
        return
    if not down.is_started:  # it may be held again, when the replica that came has gone
        record.status = 200
        headers = [("content-type", SSE_CONTENT_TYPE), ("cache-control", "no-cache"), *record.id_headers()]
        await down.start(200, headers)
    while True:
        if not down.put(b": a replica is being started\n\n"):
            await down.drain()
        await asyncio.sleep(service.config.heartbeat_s)


async def _relay(answer: Answer, down: Downstream, record: InvocationRecord) -> None:
    put = down.put

    def put_part(part: bytes) -> bool:
        if record.first_s is None:
            record.first_s = perf_counter()
        record.num_parts += 1
        return put(part)

    await answer.relay(put_part, down.drain)


def _headers(answer: Answer) -> list[tuple[str, str]]:
    return [(name, answer.headers[name]) for name in _PASSED_ON if name in answer.headers]


def translated(error: AwsError, *, model: str = "") -> HeadraceError:
    """An error of the runtime as OpenAI's clients know it."""
    if isinstance(error, UnknownTarget):
        return no_model(model)
    if isinstance(error, NotServing):
        return not_serving(model, error.endpoint_status)
    if isinstance(error, NoCapacity) and error.code != "ThrottlingException":
        return ModelNotReady(error.message)
    kind = _ERRORS.get(error.code)
    return EngineFailed(error.message) if kind is None else kind(error.message)
