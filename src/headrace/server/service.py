"""
State shared by the routes of a model server: the backend, its readiness, and the limits for all requests together.

The server listens before the backend is loaded, so that health checks are answered meanwhile; `Service.backend` raises
`Unavailable` until it is.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.core.errors import Unavailable
from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.metrics import Metrics
from headrace.engine.backend import Backend
from headrace.http.asgi import Receive, Scope
from headrace.http.body_budget import BodyBudget
from headrace.server.engine_config import request_limits
from headrace.server.json_size import check_json_size
from headrace.server.limits import RequestLimiter, read_request_body
from headrace.settings.server_settings import ServerSettings
from headrace.wire.dialect import RequestContext

if TYPE_CHECKING:
    from headrace.server.formatters import Formatters

T = TypeVar("T")

KEEP_ALIVE_S = 15.0
"""A stream that was silent for this long gets the dialect's keep-alive bytes, as in TGI."""

INLINE_BODY_BYTES = 64 * 1024
"""Bodies up to this size are parsed within milliseconds, whatever they contain."""


class ServerPhase(StrEnum):
    """The phase of a server's life, as health checks report it."""

    LOADING = "loading"
    READY = "ready"
    """A real token has been produced."""
    TERMINATING = "terminating"
    """Draining after SIGTERM: health checks fail, requests are still answered."""
    CLOSING = "closing"
    FAILED = "failed"
    """The engine cannot continue; only a restart helps."""


FetchAdapter = Callable[[str], Path]
"""Fetch an adapter from the location of its artifacts; return its folder, or raise `HeadraceError`. Blocks."""

_CHAT_NAMES = ("tgi", "lmi")
"""Names of the only model in the documentation of TGI and LMI."""

NOT_READY = {
    ServerPhase.LOADING: "The model is still loading.",
    ServerPhase.TERMINATING: "The server is shutting down. Requests that still arrive are answered.",
    ServerPhase.CLOSING: "The server is shutting down.",
    ServerPhase.FAILED: "The engine has failed and cannot go on. Restart the server.",
}
"""Reasons in the answers of health checks."""


class Service:
    """The state that all routes of a server share."""

    def __init__(
        self,
        settings: ServerSettings,
        backend: Backend | None = None,
        *,
        fetch_adapter: FetchAdapter | None = None,
        formatters: "Formatters | None" = None,
    ) -> None:
        """
        Begin with a started backend, or without one until `attach`.

        Args:
            settings: of the server.
            backend: generates; None: it is attached later.
            fetch_adapter: fetches adapters for the platform that runs this server: it loads and unloads them through
                `/adapters`, and is the only client of those routes.
            formatters: change requests and responses; they have started before the server is ready.
        """
        self.settings = settings
        self.fetch_adapter = fetch_adapter
        self.formatters = formatters
        self.phase = ServerPhase.LOADING if backend is None else ServerPhase.READY
        self.limiter = RequestLimiter(settings.max_concurrent_requests)
        self.budget = BodyBudget(settings.max_buffered_bytes)
        self._large_bodies = asyncio.Semaphore(1)
        self.limits = request_limits(settings)
        self.metrics = Metrics(
            stats=self.stats,
            info=self.info,
            in_flight=lambda: self.limiter.in_flight,
            adapters=lambda: self.adapter_names,
        )
        self.keep_alive_s = KEEP_ALIVE_S
        self._backend = backend

    def attach(self, backend: Backend) -> None:
        """Serve with a started backend: the server is ready."""
        self._backend = backend
        self.phase = ServerPhase.READY

    def terminate(self) -> None:
        """Fail health checks from now on and keep serving."""
        self.phase = ServerPhase.TERMINATING

    def close(self) -> None:
        """Refuse new requests from now on."""
        self.phase = ServerPhase.CLOSING

    @property
    def backend(self) -> Backend:
        """
        Return the backend, while requests are taken.

        Raises:
            Unavailable: the model is still loading, or the server is shutting down.
        """
        if self.phase is ServerPhase.CLOSING:
            raise Unavailable("The server is shutting down.")
        if self._backend is None:
            raise Unavailable("The model is still loading. Try again in a moment; /ping is 200 when it is ready.")
        return self._backend

    @property
    def health(self) -> ServerPhase:
        """The phase, or FAILED if the backend can no longer generate, or the formatters are given up."""
        if self.phase not in {ServerPhase.READY, ServerPhase.TERMINATING}:
            return self.phase
        parts = (self._backend, self.formatters)
        return self.phase if all(part.is_healthy for part in parts if part is not None) else ServerPhase.FAILED

    def info(self) -> ModelInfo | None:
        """Return facts about the model; None while it loads."""
        return None if self._backend is None else self._backend.info

    @property
    def model_names(self) -> frozenset[str]:
        """Names of the base model; where adapters have names too, requests may use no others."""
        return frozenset({self.backend.info.name, self.settings.model, *_CHAT_NAMES})

    @property
    def adapter_names(self) -> frozenset[str]:
        """Names of the loaded adapters."""
        return frozenset(adapter.name for adapter in self._backend.adapters) if self._backend else frozenset()

    @property
    def is_managed(self) -> bool:
        """True on a platform, which has already chosen model and adapter: its clients know them by other names."""
        return self.fetch_adapter is not None

    def stats(self) -> EngineStats:
        """Return the engine's size and load."""
        return EngineStats() if self._backend is None else self._backend.stats()

    @asynccontextmanager
    async def admit(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """
        Read a body and admit its request until the block ends.

        A request that is still arriving does not count: clients that send slowly would lock out all others.

        Raises:
            PayloadTooLarge, Busy, ClientGone: see `server.limits`.
        """
        self.limiter.check()
        with self.budget.share() as share:
            body = await read_request_body(scope, receive, share, max_bytes=self.settings.max_body_bytes)
            with self.limiter.admit():
                yield body

    async def understand(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """
        Parse a body with `read`; a large one on another thread, so that other requests get their tokens meanwhile.

        One large body at a time, because its values may take many times the memory of its bytes.

        Raises:
            PayloadTooLarge: it has too many values, see `check_json_size`.
        """
        if len(body) <= INLINE_BODY_BYTES:
            return read(body)
        async with self._large_bodies:
            await asyncio.to_thread(check_json_size, body)
            return await asyncio.to_thread(read, body)

    def context(self, request_id: str) -> RequestContext:
        """Return the facts about server and request by which a dialect parses a body."""
        return RequestContext(
            request_id=request_id,
            created_s=int(time.time()),
            model=self.backend.info,
            limits=self.limits,
            default_max_new_tokens=self.settings.default_max_new_tokens,
            accepted_models=self.model_names if self.settings.enable_lora and not self.is_managed else None,
            adapters=self.adapter_names,
        )
