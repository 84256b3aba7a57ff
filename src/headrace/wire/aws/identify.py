"""
Identification of the service and operation of a request.

One port serves all services, so the request alone must identify them. The first match wins, in this order: a path of
the runtime, a path of RPC v2 with its header, `X-Amz-Target`, the service in the signature's scope, a form with an
`Action`; anything else is S3. The body matters only for an unsigned form.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from headrace.wire.aws.http import HttpRequest, Protocol
from headrace.wire.aws.services import (
    SERVICE_OF_QUERY_VERSION,
    SERVICE_OF_SIGNING_NAME,
    SERVICE_OF_TARGET,
    operation_names,
)

_RUNTIME_OPERATIONS = {
    "async-invocations": "InvokeEndpointAsync",
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
}
_RUNTIME_PATH = re.compile(r"/endpoints/[^/]+/(?P<action>[a-z-]+)/?", re.ASCII)
_RPC_V2_PATH = re.compile(r"/(?:.*/)?service/(?P<service>[^/]+)/operation/(?P<operation>[^/]+)/?", re.ASCII)
_PRESIGNED_CREDENTIAL = re.compile(r"(?:^|&)X-Amz-Credential=([^&]*)", re.ASCII)
_FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"
_FORM_SERVICES = ("sts", "iam", "cloudwatch")
MAX_FORM_FIELDS = 10_000
UNKNOWN = "unknown"
"""The service of a request that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The service, protocol and operation of a request."""

    service: str
    """The service by boto3's name; for an unknown service, the request's own name for it."""
    protocol: Protocol
    """The protocol of the response."""
    operation: str | None = None
    """The operation's name, which may be unknown to the model; None: S3, or not named."""


def identify(request: HttpRequest) -> Target:
    """Identify a request; never fails."""
    target = request.headers.get("x-amz-target")
    scoped = scope_service(request)
    if (runtime := _runtime_operation(request)) and scoped in (None, "sagemaker"):
        return Target(service="sagemaker-runtime", protocol="rest-json", operation=runtime)
    if request.headers.get("smithy-protocol") == "rpc-v2-cbor" and (found := _RPC_V2_PATH.fullmatch(request.path)):
        prefix = found["service"]
        service = SERVICE_OF_TARGET.get(prefix, prefix)
        return Target(service=service, protocol="smithy-rpc-v2-cbor", operation=found["operation"])
    if target is not None:
        prefix, _, name = target.rpartition(".")
        prefix = prefix.rpartition("#")[2]
        return Target(service=SERVICE_OF_TARGET.get(prefix, prefix or UNKNOWN), protocol="json", operation=name)
    if scoped is not None:
        return _by_scope(request, scoped)
    return _by_form(request) or Target(service="s3", protocol="rest-xml")


def scope_service(request: HttpRequest) -> str | None:
    """Return the service in the scope of a version 4 signature, in a header or in a presigned URL."""
    _, is_signed, rest = request.headers.get("authorization", "").partition("Credential=")
    if is_signed:
        credential = rest.partition(",")[0].strip()
    elif match := _PRESIGNED_CREDENTIAL.search(request.query):
        credential = unquote(match[1])
    else:
        return None
    parts = credential.rsplit("/", 2)
    return parts[1] if len(parts) == 3 and parts[1] else None


def form_fields(request: HttpRequest) -> dict[str, str]:
    """
    Return the fields of a form and of the query string; the form takes precedence.

    Raises:
        ValueError: there are more fields than any call needs.
    """
    fields = parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    if request.headers.get("content-type", "").lower().startswith(_FORM_CONTENT_TYPE):
        text = request.body.decode("utf-8", errors="replace")
        fields += parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    return dict(fields)


def _runtime_operation(request: HttpRequest) -> str | None:
    match = _RUNTIME_PATH.fullmatch(request.path) if request.method == "POST" else None
    return _RUNTIME_OPERATIONS.get(match["action"]) if match else None


def _by_scope(request: HttpRequest, scoped: str) -> Target:
    service = SERVICE_OF_SIGNING_NAME.get(scoped, unquote(scoped))
    if service == "s3":
        return Target(service="s3", protocol="rest-xml")
    if service == "sagemaker" and request.path.startswith("/endpoints/"):
        return Target(service="sagemaker-runtime", protocol="rest-json")
    return _by_form(request, service=service) or Target(
        service=service, protocol="query" if service in ("sts", "iam") else "json"
    )


def _by_form(request: HttpRequest, *, service: str | None = None) -> Target | None:
    """Identify a form (or a query string) with an `Action`, of a known service or of the one that has it."""
    try:
        fields = form_fields(request)
    except ValueError:
        return None
    name = fields.get("Action")
    if name is None or request.path.strip("/"):
        return None
    owner = service or SERVICE_OF_QUERY_VERSION.get(fields.get("Version", "")) or _owner_of(name)
    return Target(service=owner or UNKNOWN, protocol="query", operation=name)


def _owner_of(name: str) -> str | None:
    return next((service for service in _FORM_SERVICES if name in operation_names(service)), None)
