"""The store as the loops use it: off the event loop, because its methods block for a moment."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRecord
from headrace.platform.control.model.endpoint import ENDPOINT, JOB_ENDPOINT, EndpointRecord
from headrace.platform.control.model.worker import WORKER, WorkerRecord
from headrace.platform.state.records import NoStatus, Record, StoredRecord, Unreadable
from headrace.platform.state.routes import ROUTE, Route
from headrace.platform.state.store import Store

ItemT = TypeVar("ItemT")
SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")
RouteRecord = Record[Route, NoStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    endpoints: Sequence[EndpointRecord | Unreadable]
    workers: Sequence[WorkerRecord | Unreadable]
    routes: Mapping[str, RouteRecord | Unreadable]
    """By endpoint name."""
    components: Sequence[ComponentRecord | Unreadable] = ()
    alarms: frozenset[str] = frozenset()
    """Alarms of `AutoRollbackConfiguration`s that are in ALARM."""

    def readable_workers(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if isinstance(worker, Record)]


def grouped(items: Iterable[ItemT], key: Callable[[ItemT], str]) -> dict[str, list[ItemT]]:
    """Return the items by key; an unknown key has none."""
    groups: dict[str, list[ItemT]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


async def run_to_end(function: Callable[[], ItemT]) -> ItemT:
    """Run a function in a thread; a cancelled caller waits for its end, so that nothing that follows overtakes it."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # retrieved: asyncio would report it as lost
        raise


@contextmanager
def changes(store: Store) -> Iterator[asyncio.Event]:
    """Yield an event that every write sets, from any thread; its reader clears it."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        loop.call_soon_threadsafe(changed.set)

    unsubscribe = store.subscribe(notify)
    try:
        yield changed
    finally:
        unsubscribe()


async def run_periodically(
    pass_once: Callable[[], Awaitable[int]], *, store: Store, period_s: float, clock: Callable[[], float], failure: str
) -> None:
    """
    Run passes at multiples of a period until cancelled; after one that found nothing, wait for the next write.

    Args:
        pass_once: Runs one pass; returns the number of things that it found.
        store: Its writes end the wait.
        period_s: Seconds from pass to pass.
        clock: Returns the time, seconds since 1970.
        failure: Name of the log event for a failed pass; the next pass runs nevertheless.
    """
    with changes(store) as changed:
        while True:
            changed.clear()
            is_idle = False
            try:
                is_idle = not await pass_once()
            except Exception:  # noqa: BLE001 -- an edge: logged and retried
                get_logger().exception(failure)
            if is_idle:
                await changed.wait()
            await asyncio.sleep(period_s - clock() % period_s)


async def read_all(store: Store) -> Snapshot:
    def read() -> Snapshot:
        # Children first: a component that is created between the two reads would seem to have no endpoint.
        components = store.list(INFERENCE_COMPONENT)
        endpoints = [*store.list(ENDPOINT), *store.list(JOB_ENDPOINT)]
        return Snapshot(
            endpoints=endpoints,
            components=components,
            alarms=_firing_alarms(store, [*endpoints, *components]),
            workers=store.list(WORKER),
            routes={record.name: record for record in store.list(ROUTE)},
        )

    return await asyncio.to_thread(read)


def _firing_alarms(store: Store, deployed: Sequence[EndpointRecord | ComponentRecord | Unreadable]) -> frozenset[str]:
    """Return the alarms that roll back updates and are in ALARM."""
    names = {name for record in deployed if isinstance(record, Record) for name in record.spec.revision.rollback_alarms}
    found = {name: store.get(ALARM, name) for name in names}
    return frozenset(
        name for name, alarm in found.items() if isinstance(alarm, Record) and alarm.status.state == "ALARM"
    )


async def write(
    store: Store, record: Record[SpecT, StatusT], *, status: StatusT | None = None, is_deleting: bool = False
) -> Record[SpecT, StatusT]:
    """Write a status if it differs, and mark the record as deleting if it is not yet."""
    is_same = status is None or status == record.status
    if is_same and not (is_deleting and record.deleting_s is None):
        return record
    return await asyncio.to_thread(lambda: store.update(record, status=status, is_deleting=is_deleting))


async def publish(store: Store, record: RouteRecord | Unreadable | None, name: str, route: Route | None) -> None:
    """Update the route of an endpoint; None removes it."""
    if isinstance(record, Unreadable) or (route is None and record is not None):
        await asyncio.to_thread(store.remove, record)
        record = None
    if route is None:
        return
    if record is None:
        await asyncio.to_thread(lambda: store.create(ROUTE, name, spec=route))
    elif record.spec != route:
        await asyncio.to_thread(lambda: store.update(record, spec=route))


async def mark_deleting(store: Store, record: Record[Any, Any] | Unreadable) -> None:
    await asyncio.to_thread(lambda: store.update(record, is_deleting=True))


async def remove(store: Store, record: StoredRecord) -> None:
    await asyncio.to_thread(store.remove, record)
