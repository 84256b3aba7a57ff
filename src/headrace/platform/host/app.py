"""
The platform's port: each request is authenticated by, and passed to, the first mount that it matches.

In this order: requests that are signed for S3, or for a service that has no paths here; the platform's own pages
(`/console`, `/docs`, `/metrics`, `/health`); the runtime and OpenAI's API (the gateway); routes of other servers, which
get an error that names the route to use here; other requests for S3; and the operations of AWS (control).
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace import __version__
from headrace.core.client_text import shortened
from headrace.core.errors import Busy, Forbidden, HeadraceError, PayloadTooLarge, Unauthorized, Unavailable
from headrace.core.gpus import Gpu
from headrace.core.telemetry import get_logger
from headrace.core.tracing import bind_to_log, trace_of
from headrace.platform.gateway import openai
from headrace.platform.host.access import (
    FOR_CONTROL,
    FOR_OPENAI,
    FOR_PAGES,
    FOR_RUNTIME,
    FOR_S3,
    FORBIDDEN_CODE,
    Authenticator,
    CredentialPolicy,
    HostRefused,
    audited,
    bucket_call,
    console_call,
)
from headrace.platform.host.channel import is_channel
from headrace.platform.host.confirmations import confirmation_app, is_confirmation
from headrace.platform.host.console import CONSOLE_PATH, is_console, needs_key
from headrace.platform.host.key_actions import Actions, check_actions, console_actions, metrics_actions, s3_actions
from headrace.platform.host.metrics_pages import is_metrics
from headrace.platform.host.registry import is_registry
from headrace.platform.state.records import Json
from headrace.platform.storage.object_storage import DiskSpace, ObjectStorage
from headrace.platform.storage.s3_proxy import ISOLATION_HEADERS
from headrace.platform.storage.s3_upload import set_signed_payload
from headrace.serving.http.asgi import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    close_after,
    error_path,
    request_of,
    send_reply,
    send_response,
    set_caller,
)
from headrace.serving.http.audit import client_address
from headrace.serving.http.body import BodyBudget, BodyShare, BudgetSpent, ClientGone
from headrace.serving.http.origins import is_navigation, send_host_page
from headrace.serving.http.pages import DOCS_PATH, api_page_routes
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.values import PLATFORM_PREFIX
from headrace.serving.wire.aws import sigv2
from headrace.serving.wire.aws.calls import render_error as render_aws_error
from headrace.serving.wire.aws.errors import AwsError, bodies_spent
from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.identify import Target, identify, scope_service
from headrace.serving.wire.aws.signature_faults import KEY_HINT
from headrace.serving.wire.aws.sigv4 import access_key_of
from headrace.serving.wire.dialect import ErrorReply
from headrace.serving.wire.openai.envelope import render_error as render_openai_error
from headrace.serving.wire.unknown_routes import (
    OLLAMA_PAGES,
    OLLAMA_POSTS,
    OPENAPI_PATH,
    is_foreign,
    render_error_for,
    unknown_route,
)

TERMINATING = "The platform is shutting down; requests that still arrive are served."
OUTDATED = (
    "A newer Headrace has joined this platform and leads it; requests that still arrive are served. Replace this one."
)
_NO_STORE = (("content-type", "application/json"), ("cache-control", "no-store"))


@dataclass(frozen=True, slots=True)
class Mount:
    """An application with the requests that it handles and the credentials that it takes."""

    matches: Callable[[HttpRequest, str], bool]
    """Called with a request, whose body was not read, and its decoded path."""
    policy: CredentialPolicy | None
    """None: no credentials are required, because the response reveals nothing about the platform's data."""
    app: ASGIApp
    actions: Actions | None = None
    """The actions of a request, for the limits of its key; None: the application checks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apps:
    gateway: ASGIApp
    gateway_owns: Callable[[str], bool]
    """Returns whether a path belongs to the gateway."""
    control: ASGIApp
    s3: ASGIApp
    console: ASGIApp
    metrics: ASGIApp
    """Pages for Prometheus."""
    health: Callable[[], Json]
    registry: ASGIApp | None = None
    """The registry of images, which checks its credentials itself."""
    channel: ASGIApp | None = None
    """The questions of other machines of this platform, which checks its credentials itself."""
    outdated: Callable[[], bool] = lambda: False
    """Returns whether a newer Headrace has joined the platform."""


class PlatformApp:
    def __init__(self, apps: Apps, authenticator: Authenticator, budget: BodyBudget) -> None:
        self._apps = apps
        self._authenticator = authenticator
        self._budget = budget
        self._mounts = self._make_mounts()
        self.is_terminating = False
        """True while draining after SIGTERM: health checks fail, requests are still served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        bind_to_log(trace_of(scope))
        if self.is_terminating:
            send = close_after(send)
        request = request_of(scope)
        try:
            with self._budget.share() as share:
                await self._answer(scope, receive, send, request, share)
        except AwsError as error:
            await self._refuse(scope, send, request, error)
        except BudgetSpent:
            await self._refuse(scope, send, request, bodies_spent(self._budget.max_bytes))
        except ClientGone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request: HttpRequest, share: BodyShare) -> None:
        self._authenticator.check_origin(request, scope)
        mount = next(mount for mount in self._mounts if mount.matches(request, scope["path"]))
        if mount.policy is not None:
            try:
                admission = await self._authenticator.check(request, receive, share, mount.policy)
            except Unavailable as error:
                raise AwsError("ServiceUnavailable", error.message) from error
            set_caller(scope, admission.access_key, admission.session, admission.limits)
            check_actions(mount.actions, scope, request)
            set_signed_payload(scope, admission.signed)
            receive = admission.receive
        await mount.app(scope, receive, send)

    def _make_mounts(self) -> tuple[Mount, ...]:
        apps = self._apps
        s3, console = audited(apps.s3, bucket_call), audited(apps.console, console_call)

        def is_browser_at_root(request: HttpRequest, path: str) -> bool:
            return _is_read(request) and path == "/" and "text/html" in request.headers.get("accept", "")

        async def redirect_to_console(scope: Scope, _receive: Receive, send: Send) -> None:
            await send_response(scope, send, 303, (("location", CONSOLE_PATH),), b"")

        return (
            *([Mount(lambda _, path: is_channel(path), None, apps.channel)] if apps.channel is not None else []),
            Mount(lambda request, _: is_signed_for_s3(request), FOR_S3, s3, s3_actions),
            Mount(lambda request, _: is_signed_for_control(request), FOR_CONTROL, apps.control),
            Mount(lambda _, path: is_console(path) and needs_key(path), FOR_PAGES, console, console_actions),
            Mount(lambda _, path: is_console(path), None, apps.console),
            Mount(is_confirmation, None, confirmation_app(apps.control)),
            *([Mount(lambda _, path: is_registry(path), None, apps.registry)] if apps.registry is not None else []),
            Mount(is_api_docs, None, api_docs_app()),
            Mount(is_browser_at_root, None, redirect_to_console),
            # Ollama's command line asks for it before each of its own requests; S3 has no such operation.
            Mount(lambda request, path: request.method == "HEAD" and path == "/", None, self._answer_health),
            Mount(
                lambda request, path: _is_read(request) and is_metrics(path), FOR_PAGES, apps.metrics, metrics_actions
            ),
            Mount(lambda request, path: _is_read(request) and path in {"/health", "/ping"}, None, self._answer_health),
            Mount(lambda _, path: is_openai(path), FOR_OPENAI, apps.gateway),
            Mount(lambda _, path: apps.gateway_owns(path), FOR_RUNTIME, apps.gateway),
            Mount(_is_ollama, FOR_OPENAI, apps.gateway),
            Mount(_is_foreign, None, _answer_alternative),
            Mount(lambda request, _: identify(request).service == "s3", FOR_S3, s3, s3_actions),
            Mount(lambda *_: True, FOR_CONTROL, apps.control),
        )

    async def _answer_health(self, scope: Scope, _receive: Receive, send: Send) -> None:
        health = self._apps.health()
        if self.is_terminating:
            health = {**health, "status": "terminating", "reason": TERMINATING}
        elif self._apps.outdated():
            health = {**health, "status": "outdated", "reason": OUTDATED}
        status = 200 if health["status"] == "ok" else 503
        await send_response(scope, send, status, _NO_STORE, msgspec.json.encode(health))

    async def _refuse(self, scope: Scope, send: Send, request: HttpRequest, error: AwsError) -> None:
        """Send the error of a refused request in the protocol of its service."""
        get_logger().warning(
            "request.refused",
            address=client_address(scope),
            claimed_key=shortened(access_key_of(request) or ""),
            method=request.method,
            path=shortened(request.path),
            status=error.http_status,
            error=error.code,
        )
        if is_signed_for_s3(request):
            spoken = Target(service="s3", protocol="rest-xml")
        elif is_signed_for_control(request):
            spoken = identify(request)
        elif isinstance(error, HostRefused) and is_navigation(scope):
            host = request.headers.get("host", "")
            await send_host_page(scope, send, host, program="platform", variable=f"{PLATFORM_PREFIX}ALLOWED_HOSTS")
            return
        elif is_openai(scope["path"]) or _is_ollama(request, scope["path"]):
            await send_reply(scope, send, _openai_reply(error_path(scope), error))
            return
        elif self._apps.gateway_owns(scope["path"]):
            spoken = Target(service="sagemaker-runtime", protocol="rest-json")
        else:
            spoken = identify(request)
        request_id = secrets.token_hex(8).upper()
        response = render_aws_error(spoken, error, request_id)
        headers = (*response.headers, *ISOLATION_HEADERS)
        await send_response(scope, send, response.status, headers, response.body)


def is_signed_for_s3(request: HttpRequest) -> bool:
    """Return whether the signature is for S3, whatever the path: buckets may be called `console` or `v1`."""
    is_old = request.headers.get("authorization", "").startswith("AWS ")
    return is_old or scope_service(request) in ("s3", "s3express") or sigv2.is_presigned(request)


def is_signed_for_control(request: HttpRequest) -> bool:
    """Return whether the signature is for a service without paths here: those of AWS Batch, too, begin with `/v1/`."""
    return scope_service(request) not in (None, "s3", "s3express", "sagemaker")


def is_openai(path: str) -> bool:
    """Return whether the gateway answers a path by the API of OpenAI or Anthropic, of all endpoints or of one."""
    return openai.match(path) is not None


def _is_read(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


def _is_foreign(request: HttpRequest, path: str) -> bool:
    """Return whether a request is for another server's API: AWS clients sign requests, or name the operation."""
    is_of_aws = scope_service(request) is not None or "x-amz-target" in request.headers
    return not is_of_aws and is_foreign(request.method, path)


def _is_ollama(request: HttpRequest, path: str) -> bool:
    """Return whether the gateway answers a request by Ollama's API: a signed one is for a bucket called `api`."""
    is_page = path in OLLAMA_PAGES and _is_read(request)
    return (is_page or path in OLLAMA_POSTS) and _is_foreign(request, path)


async def _answer_alternative(scope: Scope, _receive: Receive, send: Send) -> None:
    error = unknown_route(scope["method"], scope["path"], invocations="/endpoints/NAME/invocations")
    await send_reply(scope, send, render_error_for(error_path(scope), error))


def _openai_reply(path: str, error: AwsError) -> ErrorReply:
    hint = "Send the secret of an access key as `Authorization: Bearer <secret>`."
    refusal: HeadraceError = Unauthorized(f"The API key is missing or wrong. {hint} {KEY_HINT}")
    if error.code == FORBIDDEN_CODE:
        refusal = Forbidden(error.message)
    elif error.http_status == Busy.http_status:
        refusal = Busy(error.message, retry_after_s=1.0)
    for kind in (PayloadTooLarge, Unavailable):
        if error.http_status == kind.http_status:
            refusal = kind(error.message)
    return render_error_for(path, refusal, default=render_openai_error)


_ABOUT = (
    "`model` is the name of an endpoint or of an inference component; GET /v1/models lists those that can answer. "
    "AWS's other operations (SageMaker, S3, CloudWatch, ...) are called by the SDKs of AWS and not described here."
)


def is_api_docs(request: HttpRequest, path: str) -> bool:
    """Return whether a request is for the description or its page. NOTE: a bucket may be called `docs`."""
    if request.method not in {"GET", "HEAD"}:
        return False
    is_browser = "text/html" in request.headers.get("accept", "")
    return path == OPENAPI_PATH or path in _FILE_PATHS or (path == DOCS_PATH and is_browser)


def api_docs_app() -> Starlette:
    async def openapi(_request: Request) -> Response:
        return Response(_document(), media_type="application/json")

    return Starlette(routes=[Route(OPENAPI_PATH, openapi, methods=["GET"]), *api_page_routes()])


_FILE_PATHS = frozenset(route.path for route in api_page_routes()) - {DOCS_PATH}


@cache
def _document() -> bytes:
    from importlib.metadata import version as package_version

    from headrace.serving.wire.openapi.document import render_openapi
    from headrace.serving.wire.openapi.operations import PLATFORM_OPERATIONS

    return render_openapi(
        PLATFORM_OPERATIONS, title="Headrace platform", version=package_version("headrace"), description=_ABOUT
    )


DISK_FULL = "disk_full"
"""The status while nothing can be written; requests that only read are served."""


def make_health(
    settings: PlatformSettings, storage: ObjectStorage, disk: DiskSpace, gpus: Sequence[Gpu]
) -> Callable[[], Json]:
    started_s = time.time()
    names = Counter(gpu.name for gpu in gpus)

    def health() -> Json:
        shortage = disk.shortage
        return {
            "service": "headrace",
            "status": DISK_FULL if shortage else "ok",
            **({"reason": shortage} if shortage else {}),
            "version": __version__,
            "region": settings.region,
            "asks_for_keys": not settings.open,
            "object_storage": storage.state,
            "gpus": ", ".join(f"{count} x {name}" for name, count in names.items()) or "none",
            "uptime_s": round(time.time() - started_s),
        }

    return health
