"""
OpenAI's API on endpoints: `/v1/...`, where `model` names the endpoint, and SageMaker's `/endpoints/<name>/openai/v1`.

Bodies and answers pass as they are; a stream is plain chunked HTTP. Source: SageMaker developer guide, "Invoke models
with the OpenAI SDK" (the second form).
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import quote

import msgspec

from headrace.core.errors import (
    Busy,
    EngineFailed,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PayloadTooLarge,
    Unavailable,
)
from headrace.gateway import request as runtime_request
from headrace.gateway.answer import Answer, AnswerBroken
from headrace.gateway.downstream import Downstream, Scope
from headrace.gateway.metrics import InvocationRecord
from headrace.gateway.request import Invocation
from headrace.gateway.service import Service, finish
from headrace.gateway.upstream import WorkerRequest
from headrace.state.routes import Route
from headrace.wire.aws.errors import AwsError
from headrace.wire.framing import SSE_CONTENT_TYPE, to_json
from headrace.wire.openai.errors import error_body, render_error

_ENDPOINT_PATH = re.compile(r"^/endpoints/([^/]+)(?:/inference-components/([^/]+))?/openai(/v1/.+)$")
_PASSED_ON = ("content-type", "cache-control", "retry-after", "x-request-id")
_ERRORS: dict[str, type[HeadraceError]] = {
    "ServiceUnavailable": Unavailable,
    "ThrottlingException": Busy,
    "ModelNotReadyException": Busy,
    "413": PayloadTooLarge,
    "ValidationError": InvalidRequest,
    "SerializationException": InvalidRequest,
}
"""All others: the model failed."""


class _Named(msgspec.Struct):
    model: str = ""


_decode_model = msgspec.json.Decoder(_Named).decode


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


def endpoint_named(body: bytes) -> str:
    """
    The endpoint that a body names.

    Raises:
        InvalidRequest: it names none.
    """
    try:
        name = _decode_model(body).model
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not a JSON object with a string in `model`: {error}.") from error
    if not name:
        raise InvalidRequest("`model` is missing. It is the name of an endpoint.", param="model")
    return name


def models_page(routes: Sequence[Route], path: str) -> bytes:
    """
    `GET /v1/models`, the endpoints; `GET /v1/models/<name>`, one of them.

    Raises:
        NotFound: any other path.
        ModelNotFound: there is no such endpoint.
    """
    if path == "/v1/models":
        return to_json({"object": "list", "data": [_model(route) for route in routes]})
    if not path.startswith("/v1/models/"):
        raise NotFound(f"There is nothing at {path}.")
    name = path.removeprefix("/v1/models/")
    for route in routes:
        if route.endpoint == name:
            return to_json(_model(route))
    raise _no_endpoint(name)


async def answer_openai(
    service: Service, asked: OpenAiPath, scope: Scope, body: bytes, down: Downstream, record: InvocationRecord
) -> None:
    """
    Answer one request.

    Raises:
        HeadraceError: in its place, as long as nothing was sent.
    """
    endpoint = asked.endpoint or endpoint_named(body)
    record.endpoint = endpoint
    try:
        await service.forwarder.route(endpoint)
    except AwsError:
        raise _no_endpoint(endpoint) from None
    try:
        invocation = runtime_request.read(endpoint, "InvokeEndpoint", scope["headers"])
        if asked.component is not None:
            raise service.texts.component_not_found(asked.component)
        request = _worker_request(scope, asked.path, invocation, body)
        await _forward(service, invocation, request, down, record)
    except AwsError as error:
        raise translated(error) from error


async def fail(error: HeadraceError, down: Downstream, record: InvocationRecord) -> None:
    """Answer with an error, or end a stream with one."""
    record.error = record.error or error.code
    if down.is_started:
        down.put(b"data: " + error_body(error) + b"\n\n")
        await finish(down)
        return
    reply = render_error(error)
    record.status = reply.status
    headers = [("x-request-id", record.request_id), ("content-type", reply.content_type), *reply.headers]
    if isinstance(error, EngineFailed):
        headers.append(("x-should-retry", "false"))  # obeyed by OpenAI's clients: the model would run again
    await down.whole(reply.status, headers, reply.body)


def _worker_request(scope: Scope, path: str, invocation: Invocation, body: bytes) -> WorkerRequest:
    query = scope.get("query_string", b"").decode("latin-1")
    target = quote(path) + (f"?{query}" if query else "")
    return WorkerRequest(method=scope["method"], path=target, headers=invocation.worker_headers(), body=body)


async def _forward(
    service: Service, invocation: Invocation, request: WorkerRequest, down: Downstream, record: InvocationRecord
) -> None:
    ask = service.ask(invocation, request.body)
    try:
        async with (
            asyncio.timeout(service.config.stream_timeout_s),
            service.answered(invocation.endpoint, ask, request, record) as answer,
        ):
            record.status = answer.status
            headers = [*service.answer_headers(invocation, record, answer.headers).items(), *_headers(answer)]
            if answer.headers.get("content-type", "").startswith(SSE_CONTENT_TYPE):
                await down.start(answer.status, headers)
                await _relay(answer, down, record)
            else:
                content = await service.read(answer, invocation.endpoint, max_bytes=service.config.max_answer_bytes)
                record.first_s = perf_counter()
                await down.whole(answer.status, headers, content)
    except TimeoutError:
        raise EngineFailed("The model did not finish its answer in time.") from None
    except AnswerBroken:
        raise EngineFailed("The connection to the model broke in the middle of its answer.") from None
    if not down.is_finished:
        await finish(down)


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


def translated(error: AwsError) -> HeadraceError:
    """An error of the runtime as OpenAI's clients know it."""
    kind = _ERRORS.get(error.code)
    return EngineFailed(error.message) if kind is None else kind(error.message)


def _no_endpoint(name: str) -> HeadraceError:
    return ModelNotFound(f"The model `{name}` does not exist. A model is the name of an endpoint that is in service.")


def _model(route: Route) -> dict[str, object]:
    return {"id": route.endpoint, "object": "model", "created": int(route.created_s), "owned_by": "headrace"}
