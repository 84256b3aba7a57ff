"""State shared by the routes of a server for a model's own code: its children, its phase, limits of requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.core.errors import Unavailable
from headrace.handlers.pool import HandlerPool, PoolPhase
from headrace.handlers.spec import HandlerSpec
from headrace.http.asgi import Receive, Scope
from headrace.http.body_budget import BodyBudget
from headrace.server.limits import RequestLimiter, read_request_body
from headrace.server.service import ServerPhase
from headrace.settings.server_settings import ServerSettings


class HandlerService:
    """The state that all routes of a server for handlers share."""

    def __init__(self, settings: ServerSettings, spec: HandlerSpec, pool: HandlerPool | None = None) -> None:
        """Begin with a pool that has started, or without one until `attach`."""
        self.settings = settings
        self.spec = spec
        self.phase = ServerPhase.LOADING if pool is None else ServerPhase.READY
        self.limiter = RequestLimiter(settings.max_concurrent_requests)
        self.budget = BodyBudget(settings.max_buffered_bytes)
        self._pool = pool

    def attach(self, pool: HandlerPool) -> None:
        """Serve with a pool that has started."""
        self._pool = pool
        self.spec = pool.spec
        self.phase = ServerPhase.READY

    def terminate(self) -> None:
        """Fail health checks from now on and keep serving."""
        self.phase = ServerPhase.TERMINATING

    def close(self) -> None:
        """Refuse new requests from now on."""
        self.phase = ServerPhase.CLOSING

    @property
    def pool(self) -> HandlerPool:
        """
        Return the children, while requests are taken.

        Raises:
            Unavailable: the code is still being loaded, or the server is shutting down.
        """
        if self.phase is ServerPhase.CLOSING:
            raise Unavailable("The server is shutting down.")
        if self._pool is None:
            raise Unavailable("The model is still loading. Try again in a moment; /ping is 200 when it is ready.")
        return self._pool

    @property
    def health(self) -> ServerPhase:
        """The phase, or FAILED if the model has been given up."""
        is_serving = self.phase in {ServerPhase.READY, ServerPhase.TERMINATING}
        if is_serving and self._pool is not None and self._pool.phase is PoolPhase.FAILED:
            return ServerPhase.FAILED
        return self.phase

    @asynccontextmanager
    async def admit(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """
        Read a body and admit its request until the block ends.

        Raises:
            PayloadTooLarge, Busy, ClientGone: see `server.limits`.
        """
        self.limiter.check()
        with self.budget.share() as share:
            body = await read_request_body(scope, receive, share, max_bytes=self.settings.max_body_bytes)
            with self.limiter.admit():
                yield body
