"""
The control plane as an ASGI application: parse a request into a call, run its handler, send the response.

All but sending happens in a thread: validating a body against botocore's models may take seconds.

Requests are already authenticated. A handler writes at most once; after a write conflict it runs again.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.account.deliveries import Deliverer
from headrace.platform.account.image_store import NO_IMAGES, ImageStore
from headrace.platform.cloudwatch.metrics.metric import SeriesStore
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.api.context import CallContext, Handler
from headrace.platform.control.jumpstart.catalogue import Catalogue
from headrace.platform.control.model.images import OwnImage
from headrace.platform.state.records import MAX_WRITE_TRIES, Conflict, Fenced, Json
from headrace.platform.state.store import Store
from headrace.serving.http.asgi import (
    Receive,
    Scope,
    Send,
    caller_of,
    content_length,
    limits_of,
    request_of,
    send_response,
    session_of,
)
from headrace.serving.http.audit import AuditedCall, AuditLog
from headrace.serving.http.body import (
    BodyBudget,
    BodyShare,
    BodyTooLarge,
    BodyTooSlow,
    BudgetSpent,
    ClientGone,
    read_body,
)
from headrace.serving.wire.aws import calls, members, services, validation
from headrace.serving.wire.aws.errors import AwsError, bodies_spent, throttled
from headrace.serving.wire.aws.http import AwsCall, HttpRequest, HttpResponse, header_value, inflated
from headrace.serving.wire.aws.identify import Target, identify
from headrace.serving.wire.aws.members import MEMBERS
from headrace.serving.wire.aws.scope import AwsScope
from headrace.serving.wire.aws.signature_faults import Fault, fault_error
from headrace.serving.wire.key_limits import denied

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size of a request body; legitimate requests to these services are far smaller."""
FREE_IN_FRIENDLY_MODE = frozenset({"RoleArn", "Url"})
"""Shapes whose patterns are not enforced in friendly mode: any role, and local paths for `ModelDataUrl`."""
MAX_BUFFERED_BYTES = 256 * 1024 * 1024
"""Maximum size of all request bodies in memory, unless a budget is shared with other applications."""
NOTICE_HEADER = "x-headrace-notice"
"""Header of a response whose request has members without effect."""
_MAX_NOTICE_CHARACTERS = 2048
_FREQUENT = frozenset({"PutMetricData"})
"""Operations that programs call all the time: their notices are logged at the level debug only."""
_SMALL_BYTES = 16 * 1024
"""Bodies up to this size are parsed concurrently; 48 KiB of CBOR, with a list in each byte, take 0.1 s."""
_BODY_TIMEOUT_S = 60.0
_VERB = re.compile(r"[A-Z][a-z]+")
_FOR_ALL = "sts:GetCallerIdentity"
"""An operation that no policy can deny on AWS."""
_MODEL_NAMES = ("EndpointName", "InferenceComponentName")
_RESOURCE_NAMES = (
    *("InferenceComponentName", "EndpointName", "EndpointConfigName", "ModelName", "ModelPackageGroupName"),
    *("ResourceArn", "ResourceId", "AlarmName", "AlarmNames", "DashboardName", "logGroupName", "Namespace"),
    *("RoleName", "RoleArn", "PolicyName", "TopicArn", "repositoryName"),
)
"""Members that name a resource, the most specific first."""


class ControlApp:
    """The application that answers operations of all AWS services, and refuses unsupported ones by name."""

    def __init__(  # noqa: PLR0913 -- the parts that it works with
        self,
        store: Store,
        operations: Mapping[tuple[str, str], Handler],
        *,
        aws_scope: AwsScope,
        logs: PlatformLogs,
        own_images: Mapping[str, OwnImage],
        is_strict: bool,
        jumpstart: Catalogue | None = None,
        series: SeriesStore | None = None,
        budget: BodyBudget | None = None,
        url: str = "http://127.0.0.1",
        deliverer: Deliverer | None = None,
        images: ImageStore = NO_IMAGES,
        read_object: Callable[[str, int], bytes] | None = None,
        bucket_operations: Collection[tuple[str, str]] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Create the application.

        `budget` is for request bodies, if it is shared with other applications; `url` is for links in messages, which
        `deliverer` sends, and for the addresses of `images`.
        """
        self._operations = operations
        self.images = images
        self._context = CallContext(
            store=store,
            logs=logs,
            aws_scope=aws_scope,
            now_s=0.0,
            is_strict=is_strict,
            own_images=own_images,
            jumpstart=Catalogue() if jumpstart is None else jumpstart,
            series=MemorySeries() if series is None else series,
            url=url,
            deliverer=Deliverer() if deliverer is None else deliverer,
            images=images,
            operations=frozenset((*operations, *bucket_operations)),
            read_object=read_object,
        )
        """The context of every call, without its time."""
        self._free_shapes = frozenset[str]() if is_strict else FREE_IN_FRIENDLY_MODE
        self._budget = BodyBudget(MAX_BUFFERED_BYTES) if budget is None else budget
        self._large_bodies = asyncio.Semaphore(1)
        self._clock = clock
        self._log = get_logger()
        self._audit = AuditLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = str(uuid.uuid4())
        try:
            with self._budget.share() as share:
                body = await _read_body(scope, receive, share)
                request = request_of(scope, body)
                # One large body at a time, so that small ones find a thread.
                is_small = len(body) <= _SMALL_BYTES and "content-encoding" not in request.headers
                async with nullcontext() if is_small else self._large_bodies:
                    response = await asyncio.to_thread(self._respond, scope, request, request_id)
        except ClientGone:
            return
        except BudgetSpent:
            response = self._refuse(scope, bodies_spent(self._budget.max_bytes), request_id)
        except AwsError as error:
            response = self._refuse(scope, error, request_id)
        await send_response(scope, send, response.status, response.headers, response.body)

    def _refuse(self, scope: Scope, error: AwsError, request_id: str) -> HttpResponse:
        """Return the response to a request whose body was not read."""
        started_s, identified = time.perf_counter(), identify(request_of(scope))
        response = calls.render_error(identified, error, request_id)
        self._log_call(scope, response, identified, error=error.code, started_s=started_s, request_id=request_id)
        return response

    def _respond(self, scope: Scope, request: HttpRequest, request_id: str) -> HttpResponse:
        started_s, identified = time.perf_counter(), None
        call: AwsCall | None = None
        error_code = ""
        try:
            request = inflated(request, max_bytes=MAX_BODY_BYTES)
            identified = identify(request)
            if identified.operation in services.operation_names(identified.service):
                # report unsupported operations before validation errors
                self._handler_of(identified.service, identified.operation)
            call = calls.parse(request, free_shapes=self._free_shapes)
            check_limits(scope, request, call)
            notices = members.check(
                services.operation(call.service, call.operation), call.params, MEMBERS[call.service]
            )
            result = self._handle(scope, call, request_id)
            response = self._with_notices(calls.render(call, result, request_id), call, notices, request_id)
        except AwsError as error:
            identified = identified or identify(request)
            response = calls.render_error(identified, error, request_id)
            error_code = error.code
        self._log_call(scope, response, identified, call, error=error_code, started_s=started_s, request_id=request_id)
        return response

    def _with_notices(
        self, response: HttpResponse, call: AwsCall, notices: Sequence[str], request_id: str
    ) -> HttpResponse:
        """Return the response with a header about the members without effect, and log them."""
        log = self._log.debug if call.operation in _FREQUENT else self._log.info
        for notice in notices:
            log("call.member_kept", operation=call.operation, message=notice, request_id=request_id)
        if not notices:
            return response
        header = (NOTICE_HEADER, header_value(" ".join(notices))[:_MAX_NOTICE_CHARACTERS])
        return replace(response, headers=(*response.headers, header))

    def call(self, service: str, name: str, params: Json, *, term: int | None = None) -> Json:
        """
        Call an operation of a service in process, as a client would. Blocks. Raises `AwsError`.

        In the name of a leader, the call raises `Fenced` if it writes after the leader's `term`.
        """
        self._handler_of(service, name)
        operation = services.operation(service, name)
        validation.check(operation, params, free_shapes=self._free_shapes)
        members.check(operation, params, MEMBERS[service])
        return self._handle({}, AwsCall(service, name, "json", params), str(uuid.uuid4()), term=term)

    def _handle(self, scope: Scope, call: AwsCall, request_id: str, *, term: int | None = None) -> Json:
        handler = self._handler_of(call.service, call.operation)
        store = self._context.store if term is None else self._context.store.fenced(term)
        context = replace(
            self._context, store=store, now_s=self._clock(), caller=caller_of(scope), session=session_of(scope)
        )
        try:
            for _ in range(MAX_WRITE_TRIES):
                try:
                    return handler(context, call.params)
                except Fenced:
                    raise
                except Conflict:
                    continue
        except Unavailable as error:
            raise AwsError("ServiceUnavailable", error.message) from error
        except (AwsError, Fenced):
            raise
        except Exception as error:
            self._log.exception("call.failed", service=call.service, operation=call.operation, request_id=request_id)
            raise AwsError(
                "InternalFailure", f"Headrace failed. Its log has the error under request_id {request_id}."
            ) from error
        raise throttled(f"{call.operation}: other calls keep writing to the same resource. Try again.")

    def _handler_of(self, service: str, operation: str) -> Handler:
        handler = self._operations.get((service, operation))
        if handler is None:
            raise AwsError(
                "UnknownOperationException",
                f"{service} {operation} is not supported by Headrace: docs/coverage.md lists the supported operations.",
            )
        return handler

    def _log_call(
        self,
        scope: Scope,
        response: HttpResponse,
        target: Target,
        call: AwsCall | None = None,
        *,
        error: str,
        started_s: float,
        request_id: str,
    ) -> None:
        """Write the audit log; `call` is None if it could not be parsed."""
        resource = resource_of(call.operation, call.params) if call is not None else ""
        facts = AuditedCall(service=target.service, operation=target.operation or "", resource=resource, error=error)
        total_s = time.perf_counter() - started_s
        self._audit.write(scope, facts, status=response.status, total_s=total_s, request_id=request_id)


def check_limits(scope: Scope, request: HttpRequest, call: AwsCall) -> None:
    """Raise `AwsError` unless the limits of the caller's key allow a call, and the endpoint that it names."""
    limits = limits_of(scope)
    action = f"{call.service}:{call.operation}"
    if limits is None or action == _FOR_ALL:
        return
    names = [str(call.params[member]) for member in _MODEL_NAMES if member in call.params]
    if not limits.allows_action(action) or (names and not limits.allows_model(*names)):
        resource = resource_of(call.operation, call.params) or "*"
        raise fault_error(request, Fault.DENIED, denied(caller_of(scope), action, resource))


async def _read_body(scope: Scope, receive: Receive, share: BodyShare) -> bytes:
    length = content_length(scope)
    try:
        return await read_body(
            receive, max_bytes=MAX_BODY_BYTES, content_length=length, timeout_s=_BODY_TIMEOUT_S, share=share
        )
    except BodyTooLarge:
        message = f"The body of the request has more than {MAX_BODY_BYTES} bytes."
        raise AwsError("RequestEntityTooLargeException", message, status=413) from None
    except BodyTooSlow:
        raise AwsError("RequestTimeout", "The body of the request did not arrive in time.", status=408) from None


def resource_of(operation: str, params: Mapping[str, Any]) -> str:
    """
    Return the name of the resource of a call, or several with commas; empty if it names none.

    The member `EndpointConfigName` of CreateEndpointConfig comes first, then the known names. No other member is read:
    it may be a secret.
    """
    noun = _VERB.sub("", operation, count=1)
    for name in (f"{noun}Name", f"{noun}Arn", *_RESOURCE_NAMES):
        value = params.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return ",".join(str(item) for item in value)
    return ""
