"""
Identification of the service and operation of a request.

One port serves all services, so the request alone must identify them. The first match wins, in this order: a path of
the runtime, a path of RPC v2 with its header, `X-Amz-Target`, the service in the signature's scope, a form with an
`Action`; anything else is S3. The body matters only for an unsigned form, and only its first `MAX_LOOKED_AT_BYTES`:
this runs on the event loop, before a request is authenticated.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, unquote_plus

from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.http import HttpRequest, Protocol, query_parameter

_RUNTIME_OPERATIONS = {
    "async-invocations": "InvokeEndpointAsync",
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
}
_RUNTIME_PATH = re.compile(r"/endpoints/[^/]+/(?P<action>[a-z-]+)/?", re.ASCII)
_SIGNED_AS_SAGEMAKER = {
    **dict.fromkeys(("BatchGetMetrics", "BatchPutMetrics"), "sagemaker-metrics"),
    **dict.fromkeys(("BatchGetRecord", "BatchWriteRecord", "FeatureGroup"), "sagemaker-featurestore-runtime"),
    **dict.fromkeys(("GetDeployments", "GetDeviceRegistration", "SendHeartbeat"), "sagemaker-edge"),
    "global-inference-gateway": "sagemaker-gateway-runtime",
    "human-loops": "sagemaker-a2i-runtime",
    "inference-routers": "sagemaker-inference-router-runtime",
    **dict.fromkeys(
        ("complete-rollout", "sample", "sample-with-response-stream", "update-reward"), "sagemakerjobruntime"
    ),
    "training-sessions": "sagemakertrainingsessionruntime",
}
"""Services by the first part of their paths, whose signatures name sagemaker. They are not served, but named."""
_RPC_V2_PATH = re.compile(r"/(?:.*/)?service/(?P<service>[^/]+)/operation/(?P<operation>[^/]+)/?", re.ASCII)
_FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"
_MAX_CREDENTIAL_CHARACTERS = 1024
_FORM_SERVICES = ("sts", "iam", "cloudwatch", "sns", "cloudformation")
_MAX_NAME_CHARACTERS = 256
"""Longest operation or version of a form; the names of AWS have up to 60 characters."""
MAX_FORM_FIELDS = 10_000
MAX_LOOKED_AT_BYTES = 8 * 1024
"""The part of a form that is searched for `Action` and `Version`, with which all SDKs begin a form."""
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
    path = _RUNTIME_PATH.fullmatch(request.path) if request.method == "POST" else None
    if path and path["action"] in _RUNTIME_OPERATIONS and scoped in (None, "sagemaker"):
        operation = _RUNTIME_OPERATIONS[path["action"]]
        return Target(service="sagemaker-runtime", protocol="rest-json", operation=operation)
    if request.headers.get("smithy-protocol") == "rpc-v2-cbor" and (found := _RPC_V2_PATH.fullmatch(request.path)):
        prefix = found["service"]
        service = services.SERVICE_OF_TARGET.get(prefix, prefix)
        return Target(service=service, protocol="smithy-rpc-v2-cbor", operation=found["operation"])
    if target is not None:
        prefix, _, name = target.rpartition(".")
        prefix = prefix.rpartition("#")[2]
        # The signature's name of a service that is not served says more: `kms`, not `TrentService`.
        named = None if scoped is None or scoped in services.SERVICE_OF_SIGNING_NAME else unquote(scoped)
        service = services.SERVICE_OF_TARGET.get(prefix) or named or prefix or UNKNOWN
        return Target(service=service, protocol="json", operation=name)
    if scoped is not None:
        return _by_scope(request, scoped)
    return _by_form(request) or Target(service="s3", protocol="rest-xml")


def scope_service(request: HttpRequest) -> str | None:
    """Return the service in the scope of a version 4 signature, in a header or in a presigned URL."""
    _, is_signed, rest = request.headers.get("authorization", "").partition("Credential=")
    if is_signed:
        credential = rest.partition(",")[0].strip()
    elif (presigned := query_parameter(request.query, "X-Amz-Credential")) is not None:
        credential = unquote(presigned[:_MAX_CREDENTIAL_CHARACTERS])
    else:
        return None
    parts = credential.rsplit("/", 2)
    return parts[1] if len(parts) == 3 and parts[1] else None


def is_root_form(request: HttpRequest) -> bool:
    """Return whether a request is a form for `/`: S3 has no POST without a bucket, so it has an `Action`."""
    return _is_form(request) and request.method == "POST" and not request.path.strip("/")


def _is_form(request: HttpRequest) -> bool:
    return request.headers.get("content-type", "").lower().startswith(_FORM_CONTENT_TYPE)


def form_fields(request: HttpRequest) -> dict[str, str]:
    """Return the fields of form and query; the form takes precedence. Raises `ValueError`: there are too many."""
    fields = parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    if _is_form(request):
        text = request.body.decode("utf-8", errors="replace")
        fields += parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    return dict(fields)


def _by_scope(request: HttpRequest, scoped: str) -> Target:
    service = services.SERVICE_OF_SIGNING_NAME.get(scoped, unquote(scoped))
    if service == "s3":
        return Target(service="s3", protocol="rest-xml")
    if service == "sagemaker" and request.path.startswith("/endpoints/"):
        return Target(service="sagemaker-runtime", protocol="rest-json")
    first_part = request.path.lstrip("/").partition("/")[0]
    if service == "sagemaker" and first_part in _SIGNED_AS_SAGEMAKER:
        return Target(service=_SIGNED_AS_SAGEMAKER[first_part], protocol="rest-json")
    return _by_form(request, service=service) or Target(
        service=service, protocol="query" if service in ("sts", "iam", "sns", "cloudformation") else "json"
    )


def _by_form(request: HttpRequest, *, service: str | None = None) -> Target | None:
    """
    Identify a form (or a query string) with an `Action`, of a known service or of the one that has it.

    A form of an unknown service whose body was not read is still answered as a form.
    """
    if request.path.strip("/"):
        return None
    name = _form_value(request, "Action")
    if name is not None:
        owner = service or services.SERVICE_OF_QUERY_VERSION.get(_form_value(request, "Version") or "")
        owner = owner or next(
            (service for service in _FORM_SERVICES if name in services.operation_names(service)), UNKNOWN
        )
        return Target(service=owner, protocol="query", operation=name)
    is_unread = service is None and not request.body and is_root_form(request)
    return Target(service=UNKNOWN, protocol="query") if is_unread else None


def _form_value(request: HttpRequest, name: str) -> str | None:
    """Return a short value of a form or of the query string; the form takes precedence."""
    value = None
    if _is_form(request):
        form = request.body
        if len(form) > MAX_LOOKED_AT_BYTES:  # not a part of a field
            form = form[: form.rfind(b"&", 0, MAX_LOOKED_AT_BYTES) + 1]
        value = query_parameter(form.decode("utf-8", errors="replace"), name)
    if value is None:
        value = query_parameter(request.query, name)
    return None if value is None else unquote_plus(value[:_MAX_NAME_CHARACTERS])
