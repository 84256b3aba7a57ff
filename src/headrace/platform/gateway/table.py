"""
The routes in memory, kept in sync with the store.

A request that a known route can serve never waits for the store: changes are read in a thread as soon as the store
reports a write. A request that would be refused waits for that read, so that an endpoint that `DescribeEndpoint` has
reported as InService accepts the next call. Another process may have reported it, and its writes are announced later:
the store is asked for its newest revision. Requests that ask at the same time share the answer, so that any number of
them occupies one thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.state.records import NoStatus, Record, Unreadable
from headrace.platform.state.routes import ROUTE, Route
from headrace.platform.state.store import Store

RETRY_S = 1.0
"""Pause after the store could not be read."""

SETTLE_TIMEOUT_S = 5.0
"""Seconds that a request waits for the store before it uses the routes read earlier."""


class RouteTable:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._routes: dict[str, Route] = {}
        self._components: dict[str, str] = {}
        self._read: dict[str, tuple[int, Route]] = {}
        self._listeners: list[Callable[[Mapping[str, Route]], None]] = []
        self._counting = threading.Lock()
        self._written = 0
        """Writes that the store has reported."""
        self._seen = -1
        """`_written` just before the last read."""
        self._revision = -1
        """The store's revision just before the last read."""
        self._wake = asyncio.Event()
        self._was_read = asyncio.Condition()
        self._asking = asyncio.Lock()
        self._next_answer: asyncio.Task[int | None] | None = None
        """Reads the store's revision when the running read has ended."""
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def routes(self) -> Mapping[str, Route]:
        """All routes as last read, by endpoint."""
        return self._routes

    @property
    def components(self) -> Mapping[str, str]:
        """The endpoint of each inference component, as last read."""
        return self._components

    def on_change(self, listener: Callable[[Mapping[str, Route]], None]) -> None:
        """Call `listener` with all routes after each read."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Read all routes, and follow the store's changes from now on."""
        loop = asyncio.get_running_loop()

        def written() -> None:
            self._count_write()
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and the table with it
                loop.call_soon_threadsafe(self._wake.set)

        self._unsubscribe = self._store.subscribe(written)
        await self._refresh()
        self._task = asyncio.create_task(self._follow(), name="routes")

    async def close(self) -> None:
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def route(self, endpoint: str, *, is_newest: bool = False) -> Route | None:
        """
        Return the route of an endpoint; None if there is no such endpoint.

        The store is asked if the endpoint is unknown or `is_newest` is set. Raises `Unavailable`: it does not answer.
        """
        is_known = endpoint in self._routes or endpoint in self._components
        if (is_newest or not is_known) and not await self._is_current():
            raise Unavailable(f"The store cannot be read, and endpoint {endpoint} may have changed.")
        return self._routes.get(endpoint)

    async def catch_up(self) -> bool:
        """Read what any process wrote before this call; return whether there was anything to read."""
        return await self._is_behind() and await self.settled()

    async def _is_current(self) -> bool:
        """Read what any process wrote before this call; False: the store does not answer within `SETTLE_TIMEOUT_S`."""
        if self._seen == self._written:
            newest = await self._newest_revision()
            if newest is None or newest == self._revision:
                return newest is not None
            self._count_write()
            self._wake.set()
        return await self.settled()

    async def _is_behind(self) -> bool:
        """Return whether this process or another one has made writes that were not read yet."""
        if self._seen != self._written:
            return True
        newest = await self._newest_revision()
        if newest is None or newest == self._revision:
            return False
        self._count_write()
        self._wake.set()
        return True

    async def _newest_revision(self) -> int | None:
        """Return the store's revision, read after this call; None if it cannot be read within `SETTLE_TIMEOUT_S`."""
        if self._next_answer is None:
            self._next_answer = asyncio.create_task(self._ask_revision())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                return await asyncio.shield(self._next_answer)
        return None

    async def _ask_revision(self) -> int | None:
        async with self._asking:
            self._next_answer = None  # calls from now on need a later answer
            with contextlib.suppress(Unavailable):
                return await asyncio.to_thread(self._store.revision)
        return None

    async def settled(self) -> bool:
        """Wait until all reported writes before this call have been read; False: not within `SETTLE_TIMEOUT_S`."""
        target = self._written
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._was_read:
                await self._was_read.wait_for(lambda: self._seen >= target)
                return True
        return False

    async def read_again(self) -> bool:
        """Read what any process wrote before this call, reported or not; False: not within `SETTLE_TIMEOUT_S`."""
        self._count_write()
        self._wake.set()
        return await self.settled()

    def _count_write(self) -> None:
        with self._counting:
            self._written += 1

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 -- an edge: any error of the store; the routes stay, and the read is retried
                get_logger().exception("routes.unreadable", retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _refresh(self) -> None:
        before = self._written
        revision, records = await asyncio.to_thread(lambda: (self._store.revision(), self._store.list(ROUTE)))
        read = {record.name: self._route_of(record) for record in records if record.deleting_s is None}
        self._read = {name: entry for name, entry in read.items() if entry is not None}
        self._routes = {name: route for name, (_, route) in self._read.items()}
        self._components = {
            component.name: name for name, route in self._routes.items() for component in route.components
        }
        for listener in self._listeners:
            listener(self._routes)
        async with self._was_read:
            self._seen, self._revision = before, revision
            self._was_read.notify_all()

    def _route_of(self, record: Record[Route, NoStatus] | Unreadable) -> tuple[int, Route] | None:
        known = self._read.get(record.name)
        if known is not None and known[0] == record.revision:
            return known
        if isinstance(record, Unreadable):
            get_logger().error("route.malformed", endpoint=record.name, reason=record.reason)
            return known if record.is_newer else None  # during an upgrade, requests go where they went before
        return record.revision, record.spec
