"""
The routes in memory, kept like the store's.

A request for an endpoint that the table knows never waits for the store: what changed is read in a thread as soon as
the store says that something was written. One for an endpoint that it does not know waits for that reading, so that an
endpoint which is InService to `DescribeEndpoint` is there for the next call.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping

from headrace.core.telemetry import get_logger
from headrace.state.records import NoStatus, Record, Unreadable
from headrace.state.routes import ROUTE, Route
from headrace.state.store import Store

RETRY_S = 1.0
"""After the store could not be read."""

PATIENCE_S = 2.0
"""So long does a request wait for the store; then it goes by what was read before."""


class RouteTable:
    """Endpoint name → route."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._routes: dict[str, Route] = {}
        self._components: dict[str, str] = {}
        self._read: dict[str, tuple[int, Route]] = {}
        self._listeners: list[Callable[[Mapping[str, Route]], None]] = []
        self._counting = threading.Lock()
        self._written = 0
        """How many times the store has said that something was written."""
        self._seen = -1
        """`_written` as it was before the last reading."""
        self._wake = asyncio.Event()
        self._was_read = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def routes(self) -> Mapping[str, Route]:
        """All routes, as they were read last."""
        return self._routes

    @property
    def components(self) -> Mapping[str, str]:
        """Inference component → endpoint, as they were read last."""
        return self._components

    def on_change(self, listener: Callable[[Mapping[str, Route]], None]) -> None:
        """Call `listener` with all routes after each reading."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Read all routes, and keep them like the store's from now on."""
        loop = asyncio.get_running_loop()

        def written() -> None:
            with self._counting:
                self._written += 1
            with contextlib.suppress(RuntimeError):  # the loop has ended; so has this table
                loop.call_soon_threadsafe(self._wake.set)

        self._unsubscribe = self._store.subscribe(written)
        await self._refresh()
        self._task = asyncio.create_task(self._follow(), name="routes")

    async def close(self) -> None:
        """Let go of the store."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def route(self, endpoint: str) -> Route | None:
        """The route of an endpoint; None if there is no such endpoint."""
        route = self._routes.get(endpoint)
        if route is None and self._seen != self._written:
            await self.settled()
            route = self._routes.get(endpoint)
        return route

    async def settled(self) -> None:
        """Wait until what was written before this call has been read, or the store does not let us."""
        target = self._written
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), self._was_read:
                await self._was_read.wait_for(lambda: self._seen >= target)

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 -- the store's own errors; the routes stay as they are, and we try again
                get_logger().exception("routes.unreadable", retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _refresh(self) -> None:
        before = self._written
        records = await asyncio.to_thread(self._store.list, ROUTE)
        read = {record.name: self._route_of(record) for record in records if record.deleting_s is None}
        self._read = {name: entry for name, entry in read.items() if entry is not None}
        self._routes = {name: route for name, (_, route) in self._read.items()}
        self._components = {one.name: name for name, route in self._routes.items() for one in route.components}
        for listener in self._listeners:
            listener(self._routes)
        async with self._was_read:
            self._seen = before
            self._was_read.notify_all()

    def _route_of(self, record: Record[Route, NoStatus] | Unreadable) -> tuple[int, Route] | None:
        known = self._read.get(record.name)
        if known is not None and known[0] == record.revision:
            return known
        if isinstance(record, Unreadable):
            get_logger().error("route.malformed", endpoint=record.name, reason=record.reason)
            return None
        return record.revision, record.spec
