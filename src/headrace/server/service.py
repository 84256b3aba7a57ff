"""
One model server as its routes see it: the backend, whether it is ready, and what counts for all requests.

The backend comes after the server listens (loading takes a while, health checks do not wait), so routes ask
`Service.backend`, which refuses politely until there is one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TypeVar

from starlette.types import Receive, Scope

from headrace.core.errors import Unavailable
from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.metrics import Metrics
from headrace.engine.backend import Backend
from headrace.http.body_budget import BodyBudget
from headrace.http.exchange import KEEP_ALIVE_S
from headrace.server.engine_config import request_limits
from headrace.server.json_size import check_json_size
from headrace.server.limits import Gate, read_body
from headrace.settings.server_settings import ServerSettings
from headrace.wire.dialect import RequestContext

T = TypeVar("T")

INLINE_BODY_BYTES = 64 * 1024
"""Bodies up to here are read within milliseconds, whatever they hold."""


class Phase(StrEnum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ready"
    """A real token has been produced."""
    TERMINATING = "terminating"
    """Told to stop: health checks fail, and requests are still answered."""
    CLOSING = "closing"
    FAILED = "failed"
    """The engine cannot go on; a new process can."""


NOT_READY = {
    Phase.LOADING: "The model is still loading.",
    Phase.TERMINATING: "The server is shutting down. Requests that still arrive are answered.",
    Phase.CLOSING: "The server is shutting down.",
    Phase.FAILED: "The engine has failed and cannot go on. Restart the server.",
}
"""What health checks answer."""


class Service:
    """What all routes of one server share."""

    def __init__(self, settings: ServerSettings, backend: Backend | None = None) -> None:
        """A backend that is given here has been started."""
        self.settings = settings
        self.phase = Phase.LOADING if backend is None else Phase.READY
        self.gate = Gate(settings.max_concurrent_requests)
        self.budget = BodyBudget(settings.max_buffered_bytes)
        self._large_bodies = asyncio.Semaphore(1)
        self.limits = request_limits(settings)
        self.metrics = Metrics(stats=self.stats, info=self.info, in_flight=lambda: self.gate.inside)
        self.keep_alive_s = KEEP_ALIVE_S
        self._backend = backend

    def attach(self, backend: Backend) -> None:
        """Take a backend that has been started: the server is ready."""
        self._backend = backend
        self.phase = Phase.READY

    def terminate(self) -> None:
        """Fail health checks from now on, and go on serving."""
        self.phase = Phase.TERMINATING

    def close(self) -> None:
        """Refuse new requests from now on."""
        self.phase = Phase.CLOSING

    @property
    def backend(self) -> Backend:
        """
        The backend, while requests are taken.

        Raises:
            Unavailable: the model is still loading, or the server is shutting down.
        """
        if self.phase is Phase.CLOSING:
            raise Unavailable("The server is shutting down.")
        if self._backend is None:
            raise Unavailable("The model is still loading. Try again in a moment; /ping is 200 when it is ready.")
        return self._backend

    @property
    def health(self) -> Phase:
        """The phase, or FAILED when a backend that serves can no longer generate."""
        is_serving = self.phase in {Phase.READY, Phase.TERMINATING}
        if is_serving and self._backend is not None and not self._backend.is_healthy:
            return Phase.FAILED
        return self.phase

    def info(self) -> ModelInfo | None:
        """What is served; None while it loads."""
        return None if self._backend is None else self._backend.info

    def stats(self) -> EngineStats:
        """How busy the engine is."""
        return EngineStats() if self._backend is None else self._backend.stats()

    @asynccontextmanager
    async def admit(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """
        Read a body and let its request in until the block ends.

        A request that is still arriving takes no place: clients that send slowly would lock out all others.

        Raises:
            PayloadTooLarge, Busy, ClientGone: see `read_body` and `Gate`.
        """
        self.gate.check()
        with self.budget.share() as share:
            body = await read_body(scope, receive, share, max_bytes=self.settings.max_body_bytes)
            with self.gate.enter():
                yield body

    async def understand(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """
        Read a body; a large one on another thread, so that others get their tokens meanwhile.

        One large body at a time: its values may take many times the memory of its bytes.

        Raises:
            PayloadTooLarge: it has too many values, see `check_json_size`.
        """
        if len(body) <= INLINE_BODY_BYTES:
            return read(body)
        async with self._large_bodies:
            await asyncio.to_thread(check_json_size, body)
            return await asyncio.to_thread(read, body)

    def context(self, request_id: str) -> RequestContext:
        """What a dialect has to know to parse a body."""
        return RequestContext(
            request_id=request_id,
            created_s=int(time.time()),
            model=self.backend.info,
            limits=self.limits,
            default_max_new_tokens=self.settings.default_max_new_tokens,
        )
