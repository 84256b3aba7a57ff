"""
The registry of images: push and pull by the OCI distribution specification, under `/v2/` of the platform's port.

Its credentials are those of GetAuthorizationToken, or an access key: id and secret as user and password. Repositories
are those that CreateRepository has made.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from headrace.core.telemetry import get_logger
from headrace.platform.account.ecr import REPOSITORIES
from headrace.platform.account.image_store import MAX_MANIFEST_BYTES, BadImage, ImageStore, is_digest
from headrace.platform.state.store import Store
from headrace.serving.http.asgi import Receive, Scope, Send, header, send_response
from headrace.serving.http.body import ClientGone
from headrace.serving.wire.key_limits import denied

PREFIX: Final = "/v2/"
_NAME: Final = r"[a-z0-9]+(?:(?:[._-]+|/)[a-z0-9]+)*"
_ROUTES: Final = tuple(
    (re.compile(rf"/v2/(?P<repository>{_NAME})/{rest}", re.ASCII), kind)
    for rest, kind in (
        (r"blobs/uploads/?", "begin"),
        (r"blobs/uploads/(?P<upload>[0-9a-f]{32})", "upload"),
        (r"blobs/(?P<digest>[^/]{1,200})", "blob"),
        (r"manifests/(?P<reference>[^/]{1,200})", "manifest"),
        (r"tags/list", "tags"),
    )
)
_MAX_PATH: Final = 1024
_MAX_FIELDS: Final = 20
_BLOCK_BYTES: Final = 1 << 20
_CHALLENGE: Final = ("www-authenticate", 'Basic realm="Headrace"')
_VERSION: Final = ("docker-distribution-api-version", "registry/2.0")
_STATUS: Final = {
    "UNAUTHORIZED": 401,
    "NAME_UNKNOWN": 404,
    "BLOB_UNKNOWN": 404,
    "BLOB_UPLOAD_UNKNOWN": 404,
    "MANIFEST_UNKNOWN": 404,
    "UNSUPPORTED": 405,
    "RANGE_INVALID": 416,
    "TOOMANYREQUESTS": 429,
    "DENIED": 403,
    "UNAVAILABLE": 503,
}
"""All other codes are 400. Source: OCI distribution specification, "Error codes"."""
CheckPassword = Callable[[str, str], Awaitable[str | None]]
"""Takes a user and a password; returns the access key, or None."""


def is_registry(path: str) -> bool:
    """Return whether a path is one of the specification: other servers have paths below `/v2`, too."""
    return path == PREFIX or route_of(path) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    method: str
    repository: str
    groups: dict[str, str]
    query: dict[str, str]
    scope: Scope
    receive: Receive
    send: Send


class RegistryApp:
    def __init__(
        self,
        images: ImageStore,
        store: Store,
        check_password: CheckPassword,
        allows: Callable[[str, str], bool],
        *,
        shortage: Callable[[], str],
    ) -> None:
        """
        Create the application.

        `allows` returns whether an access key may use an action, `shortage` the reason why nothing can be written, or
        an empty text.
        """
        self._allows = allows
        self._images = images
        self._store = store
        self._check_password = check_password
        self._shortage = shortage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except BadImage as error:
            status = _STATUS.get(error.code, 400)
            extra = (_CHALLENGE,) if status == _STATUS["UNAUTHORIZED"] else ()
            body = json.dumps({"errors": [{"code": error.code, "message": str(error)}]}).encode()
            await _send(scope, send, status, body, ("content-type", "application/json"), *extra)
        except OSError as error:
            get_logger().error("registry.failed", reason=str(error))
            await _send(scope, send, 500, b"", ("content-type", "application/json"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._caller(scope)
        if caller is None:
            raise BadImage("UNAUTHORIZED", "authentication required: GetAuthorizationToken returns a password.")
        action = "ecr:BatchGetImage" if scope["method"] in ("GET", "HEAD") else "ecr:PutImage"
        if not self._allows(caller, action):
            raise BadImage("DENIED", denied(caller, action, scope["path"]))
        path: str = scope["path"]
        if path == PREFIX:
            await _send(scope, send, 200, b"{}", ("content-type", "application/json"))
            return
        found = route_of(path)
        if found is None:
            raise BadImage("UNSUPPORTED", "The path is none of the distribution specification.")
        groups, kind = found
        repository = groups.pop("repository")
        if await asyncio.to_thread(self._store.get, REPOSITORIES.kind, repository) is None:
            message = f"The repository with name '{repository}' does not exist: make it with CreateRepository."
            raise BadImage("NAME_UNKNOWN", message)
        if scope["method"] in ("POST", "PUT", "PATCH") and (shortage := self._shortage()):
            raise BadImage("UNAVAILABLE", shortage)
        try:
            sent = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise BadImage("UNSUPPORTED", f"The query has more than {_MAX_FIELDS} fields.") from None
        call = _Call(
            method=scope["method"],
            repository=repository,
            groups=groups,
            query={name: values[-1] for name, values in sent.items()},
            scope=scope,
            receive=receive,
            send=send,
        )
        await getattr(self, f"_{kind}")(call)

    async def _caller(self, scope: Scope) -> str | None:
        scheme, _, encoded = (header(scope, b"authorization") or "").partition(" ")
        if scheme.lower() != "basic" or len(encoded) > _MAX_PATH * 8:
            return None if scheme else await self._check_password("", "")
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        return await self._check_password(user, password)

    async def _begin(self, call: _Call) -> None:
        _expect(call, "POST")
        mounted = call.query.get("mount", "")
        if await asyncio.to_thread(self._images.has_blob, mounted):
            await self._created(call, f"blobs/{mounted}", mounted)
            return
        upload = await asyncio.to_thread(self._images.begin_upload)
        if digest := call.query.get("digest"):
            await self._take(call, upload)
            await self._finish(call, upload, digest)
            return
        await self._accepted(call, upload, 202)

    async def _upload(self, call: _Call) -> None:
        upload = call.groups["upload"]
        size = await asyncio.to_thread(self._images.upload_size, upload)
        if size is None:
            raise BadImage("BLOB_UPLOAD_UNKNOWN", "The upload does not exist; begin another one.")
        if call.method == "GET":
            await self._accepted(call, upload, 204)
        elif call.method == "DELETE":
            await asyncio.to_thread(self._images.cancel_upload, upload)
            await _send(call.scope, call.send, 204, b"")
        else:
            _expect(call, "PATCH", "PUT")
            sent_range = header(call.scope, b"content-range")
            if sent_range is not None and sent_range.partition("-")[0] != str(size):
                raise BadImage("RANGE_INVALID", f"The upload has {size} bytes; Content-Range is {sent_range}.")
            await self._take(call, upload)
            if call.method == "PUT":
                await self._finish(call, upload, call.query.get("digest", ""))
            else:
                await self._accepted(call, upload, 202)

    async def _take(self, call: _Call, upload: str) -> None:
        """Append the body of a request to an upload, a block at a time."""
        waiting, is_more = bytearray(), True
        while is_more:
            message = await call.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            waiting += message.get("body", b"")
            is_more = message.get("more_body", False)
            if waiting and (not is_more or len(waiting) >= _BLOCK_BYTES):
                if shortage := self._shortage():
                    raise BadImage("UNAVAILABLE", shortage)
                await asyncio.to_thread(self._images.append, upload, bytes(waiting))
                waiting.clear()

    async def _finish(self, call: _Call, upload: str, digest: str) -> None:
        if not is_digest(digest):
            raise BadImage("DIGEST_INVALID", "The query has no digest of the form sha256:HEX.")
        await asyncio.to_thread(self._images.finish_upload, upload, digest)
        await self._created(call, f"blobs/{digest}", digest)

    async def _blob(self, call: _Call) -> None:
        _expect(call, "GET", "HEAD")
        digest = call.groups["digest"]
        path = await asyncio.to_thread(self._images.blob, digest)
        if path is None:
            raise BadImage("BLOB_UNKNOWN", f"The blob {digest} does not exist.")
        size = path.stat().st_size
        fields = [_VERSION, ("docker-content-digest", digest), ("content-type", "application/octet-stream")]
        headers = [(name.encode(), value.encode()) for name, value in [*fields, ("content-length", str(size))]]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        if call.method == "GET":
            with path.open("rb") as file:
                while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
                    await call.send({"type": "http.response.body", "body": block, "more_body": True})
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _manifest(self, call: _Call) -> None:
        reference = call.groups["reference"]
        if call.method == "PUT":
            body = await _small_body(call.receive)
            media_type = header(call.scope, b"content-type") or "application/vnd.oci.image.manifest.v1+json"
            digest = await asyncio.to_thread(
                self._images.put_manifest, call.repository, reference, media_type[:200], body
            )
            await self._created(call, f"manifests/{digest}", digest)
            return
        if call.method == "DELETE":
            if not await asyncio.to_thread(self._images.delete, call.repository, reference):
                raise BadImage("MANIFEST_UNKNOWN", f"The manifest {reference} does not exist.")
            await _send(call.scope, call.send, 202, b"")
            return
        _expect(call, "GET", "HEAD")
        found = await asyncio.to_thread(self._images.manifest, call.repository, reference)
        if found is None:
            raise BadImage("MANIFEST_UNKNOWN", f"The manifest {reference} does not exist.")
        fields = (("content-type", found.media_type), ("docker-content-digest", found.digest))
        await _send(call.scope, call.send, 200, found.body, *fields)

    async def _tags(self, call: _Call) -> None:
        _expect(call, "GET")
        tags = await asyncio.to_thread(self._images.tags, call.repository)
        names = [name for name in tags if name > call.query.get("last", "")]
        number = call.query.get("n", "")
        body = {"name": call.repository, "tags": names[: int(number[:6])] if number.isdecimal() else names}
        await _send(call.scope, call.send, 200, json.dumps(body).encode(), ("content-type", "application/json"))

    async def _accepted(self, call: _Call, upload: str, status: int) -> None:
        size = await asyncio.to_thread(self._images.upload_size, upload) or 0
        location = ("location", f"/v2/{call.repository}/blobs/uploads/{upload}")
        extent = ("range", f"0-{max(size - 1, 0)}")
        await _send(call.scope, call.send, status, b"", location, extent, ("docker-upload-uuid", upload))

    async def _created(self, call: _Call, path: str, digest: str) -> None:
        location = ("location", f"/v2/{call.repository}/{path}")
        await _send(call.scope, call.send, 201, b"", location, ("docker-content-digest", digest))


def route_of(path: str) -> tuple[dict[str, str], str] | None:
    """Return the named parts of a path, and what it is for; None if it is none of the specification."""
    for pattern, kind in _ROUTES if len(path) <= _MAX_PATH else ():
        if (found := pattern.fullmatch(path)) is not None:
            return dict(found.groupdict()), kind
    return None


def _expect(call: _Call, *methods: str) -> None:
    if call.method not in methods:
        raise BadImage("UNSUPPORTED", f"{call.method} is not supported here; expected {' or '.join(methods)}.")


async def _small_body(receive: Receive) -> bytes:
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > MAX_MANIFEST_BYTES:
            raise BadImage("SIZE_INVALID", f"The manifest has more than {MAX_MANIFEST_BYTES} bytes.")
    return bytes(body)


async def _send(scope: Scope, send: Send, status: int, body: bytes, *fields: tuple[str, str]) -> None:
    await send_response(scope, send, status, (_VERSION, *fields), body)
