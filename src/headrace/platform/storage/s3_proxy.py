"""
A reverse proxy for S3 on the platform's port: it signs requests again for the object storage and streams bodies.

Requests were authenticated before (`platform.access`) and are not interpreted. When a client disconnects, the request
to the storage is cancelled.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.core.aws_buckets import explain_missing_bucket
from headrace.core.telemetry import get_logger
from headrace.platform.control.jumpstart.catalogue import Catalogue
from headrace.platform.gateway.objects import UNTYPED
from headrace.platform.storage.object_storage import READY, DiskSpace, ObjectStorage
from headrace.platform.storage.own_bucket import check_request, without_bucket
from headrace.platform.storage.public_buckets import SIGNATURE_PARAMETERS, PublicBuckets
from headrace.platform.storage.s3_signing import (
    S3Access,
    StorageMissing,
    StorageUnavailable,
    canonical_path,
    canonical_query,
    signed_headers,
)
from headrace.platform.storage.s3_upload import Upload, begun, open_upload, signed_payload_of
from headrace.serving.http.asgi import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    add_headers,
    content_length,
    headers_of,
    send_response,
)
from headrace.serving.http.body import ClientGone
from headrace.serving.wire.aws.calls import render_error
from headrace.serving.wire.aws.errors import AwsError

if TYPE_CHECKING:
    import httpcore

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "host", "content-length", "expect"}
)
_OF_PROXIES = frozenset({"forwarded"} | {f"x-forwarded-{part}" for part in ("for", "host", "port", "prefix", "proto")})
"""Added by a proxy in front of the platform; SeaweedFS would verify our signature for the host that they name."""
_NOT_FORWARDED = (
    _HOP_BY_HOP
    | _OF_PROXIES
    | {
        "authorization",
        "date",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-expected-bucket-owner",  # all buckets belong to one account
        "x-amz-security-token",
        "x-amz-source-expected-bucket-owner",
    }
)
_ENCRYPTION_HEADERS = frozenset(
    f"x-amz-server-side-encryption{part}" for part in ("", "-aws-kms-key-id", "-bucket-key-enabled", "-context")
)
"""
Headers for encryption with AWS's keys, which do not exist here. The SageMaker SDK sets them whenever it uploads code,
and SeaweedFS fails without a key service.
"""
_CHUNK_HEADERS = frozenset({"x-amz-decoded-content-length", "x-amz-trailer"})
"""Headers of the signed chunk coding, which is decoded here."""
ISOLATION_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
    ),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
)
"""
An object that a browser shows runs no scripts, which would have the origin of the console, and its rights; no page of
another site can load or frame it; and it tells its own, presigned URL to no other site.
"""
_NOT_RETURNED = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "date", "server"}
    | {f"access-control-allow-{part}" for part in ("credentials", "headers", "methods", "origin")}
    | {name for name, _ in ISOLATION_HEADERS}
)
_FIRST_REGION = "us-east-1"
_TIMEOUTS = {"connect": 10.0, "read": 300.0, "write": 300.0, "pool": 60.0}
_MAX_CONNECTIONS = 256


class S3Proxy:
    def __init__(
        self,
        storage: ObjectStorage,
        *,
        disk: DiskSpace | None = None,
        public: PublicBuckets | None = None,
        own_bucket: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the application; without `disk` the storage's disk is not the platform's, and no bucket is hidden."""
        self._own_bucket = own_bucket
        self._storage = storage
        self._public = PublicBuckets(Catalogue()) if public is None else public
        self._disk = disk
        self._now = now

    @cached_property
    def _pool(self) -> "httpcore.AsyncConnectionPool":
        """Connections to the storage. Their library is imported with the first request, to start sooner."""
        import httpcore

        return httpcore.AsyncConnectionPool(
            max_connections=_MAX_CONNECTIONS, max_keepalive_connections=32, keepalive_expiry=20.0
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        import httpcore

        send = add_headers(send, ISOLATION_HEADERS)
        request_id = secrets.token_hex(8).upper()
        try:
            found, is_uploaded = await self._find(scope, receive)
        except ClientGone:
            return
        except AwsError as error:
            await _refuse(scope, send, error, request_id)
        except StorageMissing as error:
            await _refuse(scope, send, AwsError("NotImplemented", error.message, status=501), request_id)
        except StorageUnavailable as error:
            await _refuse(scope, send, AwsError("ServiceUnavailable", error.message, status=503), request_id)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            get_logger().warning("storage.failed", reason=str(error) or type(error).__name__)
            message = "Object storage did not answer. Please reduce your request rate."
            await _refuse(scope, send, AwsError("SlowDown", message, status=503), request_id)
        else:
            if isinstance(found, httpcore.Response):
                await _answer(found, receive, send, is_uploaded=is_uploaded)
            else:
                await found(scope, receive, send)

    async def _find(self, scope: Scope, receive: Receive) -> "tuple[httpcore.Response | ASGIApp, bool]":
        """Return the response of the storage, or of a public bucket of AWS, and whether the whole body was read."""
        self._check_room(scope)
        check_request(self._own_bucket, scope["path"], headers_of(scope))
        try:
            access = await self._storage.ready()
        except StorageMissing:
            if (public := await self._public.find(scope)) is not None:
                return public, True
            raise
        # The rest of the body is checked while it is forwarded, and its last part held back until it is right.
        upload = await begun(open_upload(headers_of(scope), receive, signed_payload_of(scope)))
        response = await self._pool.handle_async_request(self._request(scope, access, upload))
        if response.status == HTTPStatus.NOT_FOUND and (public := await self._public.find(scope)) is not None:
            await response.aclose()
            return public, True
        if self._own_bucket is not None and scope["method"] == "GET" and not scope["path"].strip("/"):
            return await _listing_without(self._own_bucket, response), True
        await self._check_bucket(scope, receive, access, response)
        response = await _without_conflict(scope, access, response)
        return response, upload.body is None or response.status < 300

    async def close(self) -> None:
        if "_pool" in self.__dict__:
            await self._pool.aclose()
        await self._public.close()

    async def _check_bucket(
        self, scope: Scope, receive: Receive, access: S3Access, response: "httpcore.Response"
    ) -> None:
        """
        Refuse a request for a bucket of AWS that is missing here by an error that says so.

        The storage is asked for the bucket: its response to HEAD does not tell whether only the object is missing.
        """
        bucket = str(scope["path"]).lstrip("/").partition("/")[0]
        why = explain_missing_bucket(bucket) if response.status == HTTPStatus.NOT_FOUND else None
        if why is None:
            return
        head = {**scope, "method": "HEAD", "raw_path": f"/{bucket}".encode(), "query_string": b"", "headers": []}
        found = await self._pool.handle_async_request(self._request(head, access, open_upload({}, receive)))
        await found.aclose()
        if found.status == HTTPStatus.NOT_FOUND:
            await response.aclose()
            get_logger().warning("storage.bucket_of_aws", reason=why)  # SDKs show no message of a response to HEAD
            raise AwsError("NoSuchBucket", f"The specified bucket does not exist. {why}", status=404)

    def _check_room(self, scope: Scope) -> None:
        """Refuse what a full disk has no room for: SeaweedFS would take half a minute to say so."""
        if self._disk is None:
            return
        is_deletion = scope["query_string"].split(b"=")[0] == b"delete"
        is_upload = scope["method"] == "PUT" or (scope["method"] == "POST" and not is_deletion)
        length = content_length(scope) if is_upload else None
        is_down = bool(self._disk.shortage) and self._storage.state != READY
        if is_down or (length is not None and not self._disk.has_room_for(length)):
            why = self._disk.shortage or f"The disk is too full for an upload of {length} bytes. Free some space."
            raise AwsError("InsufficientStorage", why, status=507)

    def _request(self, scope: Scope, access: S3Access, upload: Upload) -> "httpcore.Request":
        import httpcore

        url = urlsplit(access.endpoint_url)
        headers = _forwarded(headers_of(scope), upload)
        if _types_object(scope, headers):
            headers.setdefault("content-type", UNTYPED)  # SeaweedFS would guess one
        path = canonical_path(url.path + scope["raw_path"].decode("latin-1"))
        query = canonical_query(scope["query_string"].decode("latin-1"), without=SIGNATURE_PARAMETERS)
        signed = signed_headers(
            access,
            method=scope["method"],
            host=url.netloc,
            path=path,
            query=query,
            headers=headers,
            payload_hash=upload.payload_hash,
            now_s=self._now(),
        )
        return httpcore.Request(
            scope["method"],
            httpcore.URL(
                scheme=url.scheme, host=url.hostname or "", port=url.port, target=f"{path}?{query}" if query else path
            ),
            headers=[
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in {**headers, **signed}.items()
            ],
            content=upload.body if upload.body is not None else b"",
            extensions={"timeout": _TIMEOUTS},
        )


def _forwarded(headers: Mapping[str, str], upload: Upload) -> dict[str, str]:
    """Return the headers for the storage: those of the client without its credentials, and the body's framing."""
    framing = dict(upload.headers)
    for name, value in headers.items():  # as S3 does: SeaweedFS fails on other headers that it stores with the object
        if name.startswith(("content-", "x-amz-")) and not value.isascii():
            raise AwsError("InvalidArgument", f"The header {name} contains characters that are not ASCII.")
    dropped = _NOT_FORWARDED | _ENCRYPTION_HEADERS
    declared = headers.get("x-amz-content-sha256", "")
    if declared.startswith("STREAMING-"):
        dropped |= {"content-encoding"}
    if declared.startswith("STREAMING-AWS4-"):
        dropped |= _CHUNK_HEADERS
    return {name: value for name, value in headers.items() if name not in dropped} | framing


def _types_object(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Return whether a request stores an object with a content type of its own: not a copy's."""
    if "/" not in scope["path"].strip("/"):
        return False
    if "x-amz-copy-source" in headers and headers.get("x-amz-metadata-directive") != "REPLACE":
        return False
    method: str = scope["method"]
    return method == "PUT" or (method == "POST" and scope["query_string"].startswith(b"uploads"))


async def _without_conflict(scope: Scope, access: S3Access, response: "httpcore.Response") -> "httpcore.Response":
    """
    Return the response of the storage; to a CreateBucket of a bucket that is there already, a success in us-east-1.

    Code that runs a second time relies on it. Source: S3 API reference, Error responses, BucketAlreadyOwnedByYou.
    """
    import httpcore

    path: str = scope["path"]
    is_creation = scope["method"] == "PUT" and not scope["query_string"] and "/" not in path.strip("/")
    if response.status != HTTPStatus.CONFLICT or not is_creation or access.region != _FIRST_REGION:
        return response
    body = await response.aread()
    await response.aclose()
    if b"<Code>BucketAlreadyOwnedByYou</Code>" not in body:
        return httpcore.Response(response.status, headers=response.headers, content=body)
    headers = ((b"location", f"/{path.strip('/')}".encode()), (b"content-length", b"0"))
    return httpcore.Response(HTTPStatus.OK, headers=headers)


async def _answer(response: "httpcore.Response", receive: Receive, send: Send, *, is_uploaded: bool) -> None:
    """Stream the response until it ends or the client disconnects, which is detected once its body was read."""
    import httpcore

    streaming = asyncio.create_task(_stream(response, send))

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(gone()) if is_uploaded else None
    try:
        await asyncio.wait({streaming, leaving} if leaving else {streaming}, return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            await streaming
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        # The head was sent: the client sees the failure by a connection that closes before the end of the body.
        get_logger().warning("storage.failed", reason=str(error) or type(error).__name__)
    finally:
        for task in (streaming, leaving):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        await response.aclose()


async def _listing_without(own_bucket: str, response: "httpcore.Response") -> ASGIApp:
    """Return an application that answers with a list of buckets, without one of them."""
    content = without_bucket(await response.aread(), own_bucket)
    await response.aclose()
    kept = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
    headers = [(name, value) for name, value in kept if name not in {*_NOT_RETURNED, "content-length"}]
    return lambda scope, _, send: send_response(scope, send, response.status, headers, content)


async def _stream(response: "httpcore.Response", send: Send) -> None:
    headers = [(name.lower(), value) for name, value in response.headers]
    kept = [(name, value) for name, value in headers if name.decode("latin-1") not in _NOT_RETURNED]
    await send({"type": "http.response.start", "status": response.status, "headers": kept})
    async for piece in response.aiter_stream():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, send: Send, error: AwsError, request_id: str) -> None:
    response = render_error("rest-xml", error, request_id)
    headers = response.headers
    if scope["method"] == "HEAD" and error.message.isascii() and error.message.isprintable():
        # The response has no body. S3 has headers for errors where it does not answer with a body in XML.
        headers = (*headers, ("x-amz-error-code", error.code), ("x-amz-error-message", error.message))
    await send_response(scope, send, response.status, headers, response.body)
