"""
Access keys over HTTP, for the console: list, create and delete.

Only a platform that requires keys manages them here, and only for callers with a key. On an open platform (`--open`)
every user of the machine is admitted: a key that one of them created would open the platform later, when it requires
keys.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.http.audit import AuditedCall, AuditLog
from headrace.http.body import BodyTooLarge, read_body
from headrace.platform.access_keys import AccessKey, AccessKeys
from headrace.state.records import Json, LastRecord

MAX_KEYS = 500
"""Keys that the console can create; each unsigned request is compared with all of them."""
MAX_NOTE_CHARACTERS = 200
_MAX_BODY_BYTES = 4096
_AUDIT = AuditLog()
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_CLOSED = (
    "This platform requires no keys, so the console does not manage them: anyone on this machine could create a key "
    "for later. Use `headrace keys` on the machine of the platform."
)


class _NewKey(msgspec.Struct, forbid_unknown_fields=True):
    note: str = ""


def key_routes(path: str, keys: AccessKeys | None) -> list[Route]:
    """Return the routes below `path`; with None for keys they explain where keys are managed."""
    if keys is None:
        return [Route(path, _refuse, methods=["GET", "POST"]), Route(f"{path}/{{key_id}}", _refuse, methods=["DELETE"])]
    return [
        Route(path, _list(keys), methods=["GET"]),
        Route(path, _create(keys), methods=["POST"]),
        Route(f"{path}/{{key_id}}", _delete(keys), methods=["DELETE"]),
    ]


async def _refuse(request: Request) -> Response:
    if request.method == "GET":
        return _reply({"is_managed": False, "keys": [], "message": _CLOSED})
    return _reply({"message": _CLOSED}, 403)


Handler = Callable[[Request], Awaitable[Response]]


def _list(keys: AccessKeys) -> Handler:
    async def handler(request: Request) -> Response:
        """Return the keys without their secrets, and which one the caller uses."""
        found = await asyncio.to_thread(keys.list)
        _audit(request, "ListAccessKeys", "", 200)
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        return _reply({"is_managed": True, "keys": [_key_json(key, token) for key in found]})

    return handler


def _create(keys: AccessKeys) -> Handler:
    async def handler(request: Request) -> Response:
        """Create a key and return it with its secret, which is shown only once."""
        try:
            wanted = msgspec.json.decode(await read_body(request.receive, max_bytes=_MAX_BODY_BYTES), type=_NewKey)
        except (msgspec.DecodeError, BodyTooLarge):
            return _reply({"message": 'Expected a JSON object such as {"note": "the CI machine"}.'}, 400)
        if len(wanted.note) > MAX_NOTE_CHARACTERS:
            return _reply({"message": f"The note has {len(wanted.note)} characters; expected at most 200."}, 400)
        if len(await asyncio.to_thread(keys.list)) >= MAX_KEYS:
            return _reply({"message": f"There are {MAX_KEYS} keys, the most that can be created. Delete some."}, 409)
        made = await asyncio.to_thread(keys.create, note=wanted.note)
        _audit(request, "CreateAccessKey", made.key_id, 201)
        return _reply({**_key_json(made, ""), "secret": made.secret}, 201)

    return handler


def _delete(keys: AccessKeys) -> Handler:
    async def handler(request: Request) -> Response:
        """Delete a key, unless it is the last one."""
        key_id = request.path_params["key_id"]
        try:
            is_removed = await asyncio.to_thread(keys.remove, key_id, keep_last=True)
        except LastRecord:
            why = "It is the last key: without one no request is admitted. Create another one first."
            _audit(request, "DeleteAccessKey", key_id, 409)
            return _reply({"message": why}, 409)
        if not is_removed:
            return _reply({"message": f"There is no access key {key_id}."}, 404)
        _audit(request, "DeleteAccessKey", key_id, 204)
        return Response(status_code=204, headers=_HEADERS)

    return handler


def _audit(request: Request, operation: str, key_id: str, status: int) -> None:
    call = AuditedCall(service="headrace", operation=operation, resource=key_id)
    _AUDIT.write(request.scope, call, status=status, request_id=trace_of(request.scope).request_id)


def _key_json(key: AccessKey, token: str) -> Json:
    is_yours = hmac.compare_digest(token.encode(), key.secret.encode())
    return {"id": key.key_id, "created_s": key.created_s, "note": key.note, "is_yours": is_yours}


def _reply(content: Json, status: int = 200) -> Response:
    return JSONResponse(content, status_code=status, headers=_HEADERS)
