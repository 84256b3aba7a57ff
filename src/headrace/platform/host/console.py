"""
The console at `/console`: static files, and an API for data that no public API returns.

These data are the traffic of the last hour, the workers of an endpoint and the instance of each copy of a component,
the state of the whole platform, the models on its disk, what uses a Model resource, and its access keys. For everything
else the page uses the public APIs: SageMaker, Application Auto Scaling, CloudWatch, CloudWatch Logs and `/v1`.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.core.errors import Unavailable
from headrace.core.tracing import trace_of
from headrace.platform.gateway.traffic_history import RATE_WINDOW_S, TrafficHistory
from headrace.platform.host.access_keys import AccessKey, AccessKeys
from headrace.platform.host.machines import MACHINE, Machine, distinct, together
from headrace.platform.state.records import Json, LastRecord
from headrace.serving.http.audit import AuditedCall, AuditLog
from headrace.serving.http.body import BodyTooLarge, read_body
from headrace.serving.http.pages import page_file, page_routes
from headrace.serving.wire.key_limits import NO_LIMITS, KeyLimits

CONSOLE_PATH = "/console"
MAX_RATES = 200
"""Endpoints in one request for rates; a page of the list has 25."""
_PACKAGE = "headrace.platform.host"
_API_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

Ask = Callable[[str, object], Awaitable[Sequence[Any]]]
"""Returns the answers of the platform's other processes to a question with an argument; see `TRAFFIC`."""
TRAFFIC = "traffic"
"""The question for a snapshot of the traffic; its argument is `[names of endpoints or None for all, since_s]`."""


async def ask_none(_question: str, _argument: object) -> Sequence[Any]:
    """Return no answers: there are no other processes."""
    return ()


def is_console(path: str) -> bool:
    """Return whether a path is the console's. NOTE: a signed request to it means a bucket called `console`."""
    return path == CONSOLE_PATH or path.startswith(f"{CONSOLE_PATH}/")


def needs_key(path: str) -> bool:
    """Return whether a path of the console needs a key: the API does, but not the page, which asks the user for it."""
    return path.startswith(f"{CONSOLE_PATH}/api/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSources:
    """The parts of the platform that the console shows; its functions are called in threads."""

    components: Callable[[str], Json]
    """Returns the inference components of an endpoint, where their copies are, and its workers."""
    counts: Callable[[Sequence[str]], Json]
    """Returns the numbers of current and of desired instances of endpoints and their trouble, by name."""
    home: Callable[[], Json]
    """Returns the state of the whole platform."""
    machine: Callable[[], Machine]
    """Returns this machine."""
    models: Callable[[], Json]
    """Returns the models on the disk and the aliases."""
    uses: Callable[[], Json]
    """Returns the endpoints, components and configurations that use each Model resource."""
    keys: AccessKeys | None = None
    """The access keys; None: the platform requires none, and the console does not manage them."""


def console_app(
    history: TrafficHistory,
    sources: ConsoleSources,
    *,
    ask: Ask = ask_none,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Create the application; it uses `history` in its event loop, and `ask` asks the other processes."""
    api = _Api(history, sources, ask, clock)
    return Starlette(
        routes=[
            Route(CONSOLE_PATH, page_file(_PACKAGE, "index.html", "dialogs.html"), methods=["GET"]),
            Route(f"{CONSOLE_PATH}/", _to_the_page, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/traffic", api.traffic, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/components", api.components, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/rates", api.rates, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/home", api.home, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/models", _whole(sources.models), methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/uses", _whole(sources.uses), methods=["GET"]),
            *key_routes(f"{CONSOLE_PATH}/api/keys", sources.keys),
            *page_routes(f"{CONSOLE_PATH}/web", _PACKAGE),
        ],
        exception_handlers={Unavailable: _unavailable},
    )


@dataclass(frozen=True, slots=True)
class _Api:
    """The handlers that join the traffic of all processes with what the sources tell."""

    history: TrafficHistory
    sources: ConsoleSources
    ask: Ask
    clock: Callable[[], float]

    async def traffic(self, request: Request) -> Response:
        """Handle `?endpoint=NAME&since=S`; S is seconds since 1970, or, if negative, relative to now."""
        name = request.query_params.get("endpoint", "")
        since_s = _number(request.query_params.get("since", "-600"))
        if not name or since_s is None:
            return _refusal("Expected ?endpoint=<name>&since=<seconds since 1970, or -600 for the last ten minutes>.")
        now_s = self.clock()
        since_s = since_s if since_s >= 0 else now_s + since_s
        return _json_response((await self._of_all([name], since_s)).series(name, since_s=since_s, now_s=now_s))

    async def rates(self, request: Request) -> Response:
        """Handle `?endpoint=NAME&endpoint=NAME…`: return the rates of the last minute, and the numbers of instances."""
        names = request.query_params.getlist("endpoint")
        if len(names) > MAX_RATES:
            return _refusal(f"The request names {len(names)} endpoints; expected at most {MAX_RATES}.")
        now_s = self.clock()
        rates = (await self._of_all(names, now_s - RATE_WINDOW_S)).rates(names, now_s=now_s)
        counts = await asyncio.to_thread(self.sources.counts, names)
        return _json_response({name: {**rates.get(name, {}), **counts.get(name, {})} for name in {*rates, *counts}})

    async def components(self, request: Request) -> Response:
        """Handle `?endpoint=NAME`: return the time, the components, the instances of their copies, and the workers."""
        name = request.query_params.get("endpoint", "")
        if not name:
            return _refusal("Expected ?endpoint=<name>.")
        return _json_response({"now_s": self.clock(), **await asyncio.to_thread(self.sources.components, name)})

    async def home(self, _request: Request) -> Response:
        now_s = self.clock()
        rate = (await self._of_all(None, now_s - RATE_WINDOW_S)).requests_per_s(now_s=now_s)
        found, own = await asyncio.to_thread(lambda: (self.sources.home(), self.sources.machine()))
        machines = distinct(own, await self.ask(MACHINE, None))
        parts = {"machine": together(machines), "machines": [machine for machine in machines if machine.name]}
        return _json_response({"now_s": now_s, "requests_per_s": rate, **msgspec.to_builtins(parts), **found})

    async def _of_all(self, names: Sequence[str] | None, since_s: float) -> TrafficHistory:
        """Return the traffic of all processes."""
        snapshots = await self.ask(TRAFFIC, [names, since_s])
        if not snapshots:
            return self.history
        own = self.history.snapshot(names, since_s=since_s, now_s=self.clock())
        return TrafficHistory.merged([own, *snapshots])


async def _to_the_page(_request: Request) -> Response:
    return RedirectResponse(CONSOLE_PATH, status_code=308)


def _whole(read: Callable[[], Json]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler that answers with all that a source returns."""

    async def endpoint(_request: Request) -> Response:
        return _json_response(await asyncio.to_thread(read))

    return endpoint


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _json_response(json: object, status: int = 200) -> Response:
    return JSONResponse(json, status_code=status, headers=_API_HEADERS)


def _refusal(message: str, status: int = 400) -> Response:
    return _json_response({"message": message}, status)


async def _unavailable(_request: Request, error: Exception) -> Response:
    return _refusal(str(error), Unavailable.http_status)


MAX_KEYS = 500
"""Keys that the console can create; each unsigned request is compared with all of them."""
MAX_NOTE_CHARACTERS = 200
_MAX_BODY_BYTES = 4096
_AUDIT = AuditLog()
_CLOSED = (
    "This platform requires no keys, so the console does not manage them: anyone on this machine could create a key "
    "for later. Use `headrace keys` on the machine of the platform."
)


class _NewKey(msgspec.Struct, forbid_unknown_fields=True):
    note: str = ""
    limits: KeyLimits = NO_LIMITS


class _ChangedKey(msgspec.Struct, forbid_unknown_fields=True):
    limits: KeyLimits


T = TypeVar("T")


async def _body_of(request: Request, kind: type[T], example: str) -> T | Response:
    """Return the decoded body of a request, or the refusal of a malformed one."""
    try:
        return msgspec.json.decode(await read_body(request.receive, max_bytes=_MAX_BODY_BYTES), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BodyTooLarge) as error:
        why = f" {error}" if isinstance(error, msgspec.ValidationError) else ""
        return _refusal(f"Expected a JSON object such as {example}.{why}")


def key_routes(path: str, keys: AccessKeys | None) -> list[Route]:
    """
    Return the routes that list, create, limit and delete access keys; with None for keys they say where that is done.

    Only a platform that requires keys manages them here, and only for callers with a key. On an open platform
    (`--open`) every user of the machine is admitted: a key that one of them created would open the platform later,
    when it requires keys.
    """

    async def refuse(request: Request) -> Response:
        if request.method == "GET":
            return _json_response({"is_managed": False, "keys": [], "message": _CLOSED})
        return _refusal(_CLOSED, 403)

    path_of_key = f"{path}/{{key_id}}"
    if keys is None:
        return [
            Route(path, refuse, methods=["GET", "POST"]),
            Route(path_of_key, refuse, methods=["DELETE", "PUT"]),
        ]
    api = _KeyApi(keys)
    return [
        Route(path, api.list, methods=["GET"]),
        Route(path, api.create, methods=["POST"]),
        Route(path_of_key, api.limit, methods=["PUT"]),
        Route(path_of_key, api.delete, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True)
class _KeyApi:
    """The handlers of requests about access keys."""

    keys: AccessKeys

    async def list(self, request: Request) -> Response:
        found = await asyncio.to_thread(self.keys.list)
        _audit(request, "ListAccessKeys", "", 200)
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        return _json_response({"is_managed": True, "keys": [_key_json(key, token) for key in found]})

    async def create(self, request: Request) -> Response:
        wanted = await _body_of(request, _NewKey, '{"note": "the CI machine"}')
        if isinstance(wanted, Response):
            return wanted
        if len(wanted.note) > MAX_NOTE_CHARACTERS:
            return _refusal(f"The note has {len(wanted.note)} characters; expected at most 200.")
        if len(await asyncio.to_thread(self.keys.list)) >= MAX_KEYS:
            return _refusal(f"There are {MAX_KEYS} keys, the most that can be created. Delete some.", 409)
        made = await asyncio.to_thread(self.keys.create, note=wanted.note, limits=wanted.limits)
        _audit(request, "CreateAccessKey", made.key_id, 201)
        # The secret is shown only this once.
        return _json_response({**_key_json(made, ""), "secret": made.secret}, 201)

    async def limit(self, request: Request) -> Response:
        key_id = request.path_params["key_id"]
        wanted = await _body_of(request, _ChangedKey, '{"limits": {"requests_per_minute": 60}}')
        if isinstance(wanted, Response):
            return wanted
        if (changed := await asyncio.to_thread(self.keys.limit, key_id, wanted.limits)) is None:
            return _refusal(f"There is no access key {key_id}.", 404)
        _audit(request, "UpdateAccessKey", key_id, 200)
        return _json_response(_key_json(changed, ""))

    async def delete(self, request: Request) -> Response:
        key_id = request.path_params["key_id"]
        try:
            is_removed = await asyncio.to_thread(self.keys.remove, key_id, keep_last=True)
        except LastRecord:
            _audit(request, "DeleteAccessKey", key_id, 409)
            why = "It is the last key: without one no request is admitted. Create another one first."
            return _refusal(why, 409)
        if not is_removed:
            return _refusal(f"There is no access key {key_id}.", 404)
        _audit(request, "DeleteAccessKey", key_id, 204)
        return Response(status_code=204, headers=_API_HEADERS)


def _audit(request: Request, operation: str, key_id: str, status: int) -> None:
    call = AuditedCall(service="headrace", operation=operation, resource=key_id)
    _AUDIT.write(request.scope, call, status=status, request_id=trace_of(request.scope).request_id)


def _key_json(key: AccessKey, token: str) -> Json:
    is_yours = hmac.compare_digest(token.encode(), key.secret.encode())
    facts = {"id": key.key_id, "created_s": key.created_s, "note": key.note, "is_yours": is_yours}
    return {**facts, "limits": msgspec.to_builtins(key.limits), "limits_text": key.limits.describe()}
