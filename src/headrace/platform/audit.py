"""The audit lines of calls that are no operations of `control`: of buckets, and of the console."""

import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, unquote

from headrace.core.tracing import trace_of
from headrace.http.asgi import ASGIApp, Message, Receive, Scope, Send, request_of
from headrace.http.audit import AuditedCall, AuditLog

_CONSOLE_API: Final = "/console/api/"
_BUCKET_OPERATIONS: Final = {
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
    ("HEAD", ""): "HeadBucket",
    ("GET", ""): "ListObjects",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "uploads"): "ListMultipartUploads",
    ("POST", "delete"): "DeleteObjects",
}
_PARTS_OF_BUCKETS: Final = {
    "accelerate": "AccelerateConfiguration",
    "acl": "Acl",
    "cors": "Cors",
    "encryption": "Encryption",
    "lifecycle": "LifecycleConfiguration",
    "location": "Location",
    "logging": "Logging",
    "notification": "NotificationConfiguration",
    "object-lock": "ObjectLockConfiguration",
    "ownershipControls": "OwnershipControls",
    "policy": "Policy",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "Replication",
    "tagging": "Tagging",
    "versioning": "Versioning",
    "website": "Website",
}
"""The part of a bucket that a query parameter selects."""


def audited(app: ASGIApp, call_of: Callable[[Scope], AuditedCall | None]) -> ASGIApp:
    """Return an application that writes a line for each call that `call_of` finds."""
    log = AuditLog()

    async def audited_app(scope: Scope, receive: Receive, send: Send) -> None:
        call = call_of(scope)
        started_s = time.perf_counter()

        async def watched_send(message: Message) -> None:
            if call is not None and message["type"] == "http.response.start":
                total_s = time.perf_counter() - started_s
                request_id = trace_of(scope).request_id
                log.write(scope, call, status=message["status"], total_s=total_s, request_id=request_id)
            await send(message)

        await app(scope, receive, send if call is None else watched_send)

    return audited_app


def bucket_call(scope: Scope) -> AuditedCall | None:
    """Return the operation of a request for a bucket, or for the list of buckets; None: for an object."""
    bucket, _, key = request_of(scope).path.lstrip("/").partition("/")
    if key:
        return None
    if not bucket:
        return AuditedCall(service="s3", operation="ListBuckets")
    return AuditedCall(service="s3", operation=_bucket_operation(scope), resource=unquote(bucket))


def _bucket_operation(scope: Scope) -> str:
    method, query = scope["method"], scope["query_string"].decode("latin-1")
    names = {part.partition("=")[0] for part in query.split("&", 32)[:32]}
    part = next((_PARTS_OF_BUCKETS[name] for name in sorted(names) if name in _PARTS_OF_BUCKETS), None)
    if part is not None:
        return f"{method.title()}Bucket{part}"
    selected = next((name for name in ("delete", "uploads", "versions") if name in names), "")
    return _BUCKET_OPERATIONS.get((method, selected), f"{method.title()}Bucket")


def console_call(scope: Scope) -> AuditedCall | None:
    """Return what the console reads; its keys have lines of their own, which name the key."""
    path: str = scope["path"]
    name = path.removeprefix(_CONSOLE_API).partition("/")[0]
    if not path.startswith(_CONSOLE_API) or name == "keys":
        return None
    endpoints = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("endpoint", [])
    return AuditedCall(service="console", operation=f"Get{name.title()}", resource=",".join(endpoints[:10]))
