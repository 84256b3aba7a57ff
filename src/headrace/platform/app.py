"""
Everything on one port: finds out which door a request is for, asks the gate, and passes it on.

In this order: a request that is signed for S3; the platform's own pages (`/health`, `/metrics`, `/console`); the
runtime and OpenAI's API (the gateway); what AWS's other protocols mark as theirs (control); the rest is S3.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.client_text import shortened
from headrace.core.errors import Forbidden, HeadraceError, PayloadTooLarge, Unauthorized
from headrace.core.telemetry import get_logger
from headrace.core.tracing import bind_to_log, trace_of
from headrace.http.leaving import closing
from headrace.platform.access import STRANGER_CODE, Gate, is_openai
from headrace.platform.console import CONSOLE_PATH, is_console, needs_key
from headrace.platform.http_request import BodyTooLarge, read_body, replay, request_of, send_response
from headrace.state.records import Json
from headrace.wire.aws import sigv2
from headrace.wire.aws.calls import render_error as render_aws_error
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest, HttpResponse
from headrace.wire.aws.identify import Target, identify, scope_service
from headrace.wire.dialect import ErrorReply
from headrace.wire.openai.errors import render_error as render_openai_error
from headrace.wire.unknown_routes import is_foreign, render_error_for, unknown_route

MAX_FORM_BYTES = 1024 * 1024
"""Of a form that is not signed, which must be read to know whose it is."""
_JSON = (("content-type", "application/json"), ("cache-control", "no-store"))
TERMINATING = "The platform is shutting down. Requests that still arrive are answered."
_OWN_PAGES = frozenset({"/health", "/ping", "/metrics"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where requests go."""

    gateway: ASGIApp
    gateway_owns: Callable[[str], bool]
    """Whether a path is the gateway's."""
    control: ASGIApp
    s3: ASGIApp
    console: ASGIApp
    metrics: Callable[[], tuple[str, bytes]]
    """Content type and text for Prometheus."""
    health: Callable[[], Json]


class PlatformApp:
    """The ASGI application of a platform."""

    def __init__(self, doors: Doors, gate: Gate) -> None:
        self._doors = doors
        self._gate = gate
        self.is_terminating = False
        """Told to stop: health checks fail, and requests are still answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        bind_to_log(trace_of(scope))
        if self.is_terminating:
            send = closing(send)
        request = request_of(scope)
        try:
            self._gate.check_page(request)
            is_s3 = is_signed_for_s3(request)
            if not is_s3 and await self._own_page(scope, request, receive, send):
                return
            is_invoked = not is_s3 and self._doors.gateway_owns(scope["path"])
            if not is_s3 and not is_invoked and _is_foreign(request, scope):
                await _tell_alternative(scope, send)
                return
            if not is_s3 and not is_invoked:
                request, receive = await _with_form(request, receive)
                is_s3 = identify(request).service == "s3"
            receive = await self._gate.admit(request, receive, is_streamed=is_s3)
            door = self._doors.s3 if is_s3 else self._doors.gateway if is_invoked else self._doors.control
            await door(scope, receive, send)
        except AwsError as error:
            await self._refuse(scope, send, request, error)
        except ConnectionError:
            return  # the client went away in the middle of its body

    async def _own_page(self, scope: Scope, request: HttpRequest, receive: Receive, send: Send) -> bool:
        """Answer what is neither AWS's nor OpenAI's; False: it is one of these."""
        path, is_read = scope["path"], scope["method"] in ("GET", "HEAD")
        if is_console(path):
            if needs_key(path):
                receive = await self._gate.admit(request, receive, is_streamed=False)
            await self._doors.console(scope, receive, send)
        elif is_read and path == "/" and "text/html" in request.headers.get("accept", ""):
            await send_response(scope, send, HttpResponse(303, (("location", CONSOLE_PATH),), b""))
        elif is_read and path in _OWN_PAGES:
            await self._tell(scope, request, receive, send)
        else:
            return False
        return True

    async def _tell(self, scope: Scope, request: HttpRequest, receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            await self._gate.admit(request, receive, is_streamed=False)
            content_type, text = self._doors.metrics()
            await send_response(scope, send, HttpResponse(200, (("content-type", content_type),), text))
            return
        health = self._doors.health()
        if self.is_terminating:
            health = {**health, "status": "terminating", "reason": TERMINATING}
        status = 200 if health["status"] == "ok" else 503
        await send_response(scope, send, HttpResponse(status, _JSON, msgspec.json.encode(health)))

    async def _refuse(self, scope: Scope, send: Send, request: HttpRequest, error: AwsError) -> None:
        """In the words of whoever was meant."""
        target = identify(request)
        spoken = Target(service="s3", protocol="rest-xml") if is_signed_for_s3(request) else target
        if is_openai(scope["path"]) and not is_signed_for_s3(request):
            await _refuse_openai(scope, send, error)
            return
        if self._doors.gateway_owns(scope["path"]):
            spoken = Target(service="sagemaker-runtime", protocol="rest-json")
        request_id = secrets.token_hex(8).upper()
        get_logger().warning(
            "request.refused", path=shortened(request.path), status=error.http_status, error=error.code
        )
        await send_response(scope, send, render_aws_error(spoken, error, request_id))


def is_signed_for_s3(request: HttpRequest) -> bool:
    """Whether its signature says S3, whatever the path looks like: buckets may be called `console` or `v1`."""
    is_old = request.headers.get("authorization", "").startswith("AWS ")
    return is_old or scope_service(request) in ("s3", "s3express") or sigv2.is_presigned(request)


def _is_foreign(request: HttpRequest, scope: Scope) -> bool:
    """Whether a client of another server asks; one of AWS signs, or says which operation it means."""
    is_of_aws = scope_service(request) is not None or "x-amz-target" in request.headers
    return not is_of_aws and is_foreign(scope["method"], scope["path"])


async def _tell_alternative(scope: Scope, send: Send) -> None:
    error = unknown_route(scope["method"], scope["path"], invocations="/endpoints/NAME/invocations")
    await _send_reply(scope, send, render_error_for(scope["path"], error))


async def _refuse_openai(scope: Scope, send: Send, error: AwsError) -> None:
    """In OpenAI's words."""
    if error.code == STRANGER_CODE:
        refusal: HeadraceError = Forbidden(error.message)
    elif error.http_status == PayloadTooLarge.http_status:
        refusal = PayloadTooLarge(error.message)
    else:
        hint = "Send the secret of an access key as `Authorization: Bearer <secret>`."
        refusal = Unauthorized(f"The API key is missing or wrong. {hint}")
    await _send_reply(scope, send, render_error_for(scope["path"], refusal, default=render_openai_error))


async def _send_reply(scope: Scope, send: Send, reply: ErrorReply) -> None:
    headers = (("content-type", reply.content_type), *reply.headers)
    await send_response(scope, send, HttpResponse(reply.status, headers, reply.body))


async def _with_form(request: HttpRequest, receive: Receive) -> tuple[HttpRequest, Receive]:
    """The body too, where only a form tells what is asked."""
    content_type = request.headers.get("content-type", "").lower()
    is_unsigned = scope_service(request) is None and "x-amz-target" not in request.headers
    if request.method != "POST" or not is_unsigned or request.path.strip("/"):
        return request, receive
    if not content_type.startswith("application/x-www-form-urlencoded"):
        return request, receive
    try:
        body = await read_body(receive, max_bytes=MAX_FORM_BYTES)
    except BodyTooLarge:
        raise AwsError("RequestEntityTooLarge", f"A form has at most {MAX_FORM_BYTES} bytes.", status=413) from None
    whole = HttpRequest(request.method, request.path, request.query, request.headers, body)
    return whole, replay(body, receive)
