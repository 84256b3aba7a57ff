"""Reads and writes of those who act, off the event loop: the store's methods block for a moment."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.cloudwatch.alarms.records import ALARM
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT, WORKER
from headrace.state.records import Json, NoStatus, RawKind, RawRecord, Record, StoredRecord, Unreadable
from headrace.state.routes import ROUTE, Route
from headrace.state.store import Store

RouteRecord = Record[Route, NoStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the reconciler looks at, read at one time."""

    endpoints: Sequence[RawRecord]
    workers: Sequence[RawRecord]
    routes: Mapping[str, RouteRecord | Unreadable]
    """By endpoint name."""
    components: Sequence[RawRecord] = ()
    alarms: frozenset[str] = frozenset()
    """Those of `AutoRollbackConfiguration`s that are in ALARM."""

    def workers_by_endpoint(self) -> dict[str, list[RawRecord]]:
        """Workers by the uid of their endpoint."""
        grouped: dict[str, list[RawRecord]] = defaultdict(list)
        for worker in self.workers:
            grouped[worker.spec["endpoint_uid"]].append(worker)
        return grouped

    def components_by_endpoint(self) -> dict[str, list[RawRecord]]:
        """Inference components by the uid of their endpoint."""
        grouped: dict[str, list[RawRecord]] = defaultdict(list)
        for component in self.components:
            grouped[component.spec.get("endpoint_uid", "")].append(component)
        return grouped


@contextmanager
def changes(store: Store) -> Iterator[asyncio.Event]:
    """An event of the running loop, set when something was written, by any thread; whoever waits for it clears it."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        loop.call_soon_threadsafe(changed.set)

    unsubscribe = store.subscribe(notify)
    try:
        yield changed
    finally:
        unsubscribe()


async def read_all(store: Store) -> Snapshot:
    """Read what the reconciler looks at."""

    def read() -> Snapshot:
        endpoints, components = store.list(ENDPOINT), store.list(INFERENCE_COMPONENT)
        return Snapshot(
            endpoints=endpoints,
            components=components,
            alarms=_ringing(store, [*endpoints, *components]),
            workers=store.list(WORKER),
            routes={record.name: record for record in store.list(ROUTE)},
        )

    return await asyncio.to_thread(read)


def _ringing(store: Store, deployed: Sequence[RawRecord]) -> frozenset[str]:
    """The alarms that updates are rolled back by, and that are in ALARM."""
    names = {name for record in deployed for name in _alarms_of(record)}
    found = {name: store.get(ALARM, name) for name in names}
    return frozenset(
        name for name, alarm in found.items() if isinstance(alarm, Record) and alarm.status.state == "ALARM"
    )


def _alarms_of(record: RawRecord) -> list[str]:
    """Of the version that was asked for last; none if the record is broken, which is its own matter."""
    try:
        return rollback_alarms(record.spec.get("version") or {})
    except (AttributeError, TypeError):
        return []


def rollback_alarms(version: Json) -> list[str]:
    """Names of the alarms of a version's `AutoRollbackConfiguration`."""
    configuration = (version.get("deployment") or {}).get("AutoRollbackConfiguration") or {}
    return [alarm["AlarmName"] for alarm in configuration.get("Alarms") or [] if "AlarmName" in alarm]


async def create(store: Store, kind: RawKind, name: str, spec: Json) -> RawRecord:
    """Add a record."""
    return await asyncio.to_thread(lambda: store.create(kind, name, spec=spec))


async def write(store: Store, record: RawRecord, *, status: Json | None = None, is_deleting: bool = False) -> RawRecord:
    """Write a status if it is another one, and that somebody wants the thing gone if nobody did yet."""
    is_same = status is None or status == record.status
    if is_same and not (is_deleting and record.deleting_s is None):
        return record
    return await asyncio.to_thread(lambda: store.update(record, status=status, is_deleting=is_deleting))


async def publish(store: Store, record: RouteRecord | Unreadable | None, name: str, route: Route | None) -> None:
    """Bring the route of an endpoint up to date; None removes it."""
    if isinstance(record, Unreadable) or (route is None and record is not None):
        await asyncio.to_thread(store.remove, record)
        record = None
    if route is None:
        return
    if record is None:
        await asyncio.to_thread(lambda: store.create(ROUTE, name, spec=route))
    elif record.spec != route:
        await asyncio.to_thread(lambda: store.update(record, spec=route))


async def remove(store: Store, record: StoredRecord) -> None:
    """Forget a record."""
    await asyncio.to_thread(store.remove, record)
