"""
Stored responses of the Responses API, kept in the gateway because workers come and go.

The pure part is in `wire.openai.proxied_responses`; the routes are those of the model server.
"""

import asyncio
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import parse_qsl

from headrace.core.errors import PayloadTooLarge
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.serving.http.asgi import Scope, caller_of
from headrace.serving.http.body import BodyBudget
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import JSON_CONTENT_TYPE
from headrace.serving.wire.json_size import INLINE_BYTES, UNCOUNTED_BYTES, check_json_size
from headrace.serving.wire.openai.proxied_responses import (
    FindPrevious,
    Keep,
    ProxiedRequest,
    ResponseRecorder,
    read_request,
)
from headrace.serving.wire.openai.stored_responses import (
    ACTIONS,
    PreviousResponseNotFound,
    ResponseCall,
    ResponseKey,
    ResponseMemory,
    ResponseStore,
    StoredResponse,
    previous_response,
)
from headrace.serving.wire.unknown_routes import RESPONSES

_PATH = re.compile(rf"{RESPONSES}/([^/]+)(/[a-z_]+)?")


class FindElsewhere(Protocol):
    """Finds a response that another process of the platform has stored; None: none has it."""

    async def __call__(self, key: ResponseKey, *, is_deleted: bool) -> StoredResponse | None: ...


async def _find_nowhere(key: ResponseKey, *, is_deleted: bool) -> None:
    """Return None: there is no other process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResponse:
    """A response that is stored, or that continues a stored one, before its worker has answered."""

    request: ProxiedRequest
    request_id: str
    keep: Keep
    max_event_bytes: int

    async def recorder(self) -> ResponseRecorder:
        """Return the recorder of the response; call it when a worker has accepted the request."""
        make_items = partial(self.request.input_items, self.request_id)
        is_short = len(self.request.input) <= INLINE_BYTES
        items = make_items() if is_short else await asyncio.to_thread(make_items)
        return ResponseRecorder(self.request, items, self.keep, created_s=time.time(), max_bytes=self.max_event_bytes)


@dataclass(slots=True)
class StoredResponses:
    """The stored responses of all callers: each one sees those of its own access key."""

    store: ResponseStore
    budget: BodyBudget
    """Counts the conversations that are sent to workers."""
    max_body_bytes: int = field(kw_only=True)
    """Longest request to a worker."""
    max_event_bytes: int = field(kw_only=True)
    """Longest response, or event of a stream, that is stored."""
    find_elsewhere: FindElsewhere = _find_nowhere

    @staticmethod
    def owns(method: str, path: str) -> bool:
        """Return whether a request is for a stored response; `path` begins with `/v1`."""
        found = _PATH.fullmatch(path)
        return found is not None and (_method(method), found[2] or "") in ACTIONS

    async def answer(self, scope: Scope, path: str, exchange: Exchange, record: InvocationRecord) -> None:
        """Answer a request for a stored response. Raises `HeadraceError`."""
        found = _PATH.fullmatch(path)
        assert found is not None
        method, key = _method(scope["method"]), ResponseKey(caller_of(scope), found[1])
        call = ResponseCall(
            store=await self._store_with(key, is_deleted=method == "DELETE"),
            key=key,
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            now_s=time.time(),
        )
        body = ACTIONS[method, found[2] or ""](call)
        record.status = 200
        await exchange.respond(200, [("content-type", JSON_CONTENT_TYPE), *record.id_headers()], body)

    async def _store_with(self, key: ResponseKey, *, is_deleted: bool) -> ResponseStore:
        """Return the store that has a response: this process's own, or a copy from another process."""
        if self.store.get(key, now_s=time.time()) is not None:
            return self.store
        entry = await self.find_elsewhere(key, is_deleted=is_deleted)
        if entry is None:
            return self.store
        copy = ResponseMemory(max_bytes=entry.num_bytes, max_age_s=math.inf)
        copy.add(key, entry)
        return copy

    async def read(self, scope: Scope, body: bytes, request_id: str) -> PendingResponse | None:
        """
        Read a Responses API request with the conversation that it continues; None: forward it unchanged.

        Raises `InvalidRequest` if what it continues is not stored or has failed, `PayloadTooLarge` if that is too long.
        """
        caller, missing = caller_of(scope), list[ResponseKey]()
        if UNCOUNTED_BYTES < len(body) <= INLINE_BYTES:
            check_json_size(body)
        elif len(body) > INLINE_BYTES:
            await asyncio.to_thread(check_json_size, body)

        def find(response_id: str) -> StoredResponse:
            missing[:] = [ResponseKey(caller, response_id)]
            return previous_response(self.store, missing[0], now_s=time.time())

        try:
            request = await _read(body, find)
        except PreviousResponseNotFound:
            entry = await self.find_elsewhere(missing[0], is_deleted=False)
            if entry is None:
                raise
            request = await _read(body, lambda _: entry)
        if request is not None and len(request.body) > self.max_body_bytes:
            raise PayloadTooLarge(
                f"The conversation that 'previous_response_id' continues has {len(request.body)} bytes with this "
                f"request; expected at most {self.max_body_bytes}. Send fewer items as 'input'."
            )
        if request is None:
            return None

        def keep(response_id: str, entry: StoredResponse) -> None:
            self.store.add(ResponseKey(caller, response_id), entry)

        return PendingResponse(request=request, request_id=request_id, keep=keep, max_event_bytes=self.max_event_bytes)

    @contextmanager
    def counted(self, request: ProxiedRequest) -> Iterator[None]:
        """Count the stored conversation of a request as a part of its body. Raises `BudgetSpent`."""
        with self.budget.share() as share:
            share.add(len(request.before))
            yield


async def _read(body: bytes, find: FindPrevious) -> ProxiedRequest | None:
    if len(body) <= INLINE_BYTES:
        return read_request(body, find)
    return await asyncio.to_thread(read_request, body, find)


def _method(method: str) -> str:
    return "GET" if method == "HEAD" else method
