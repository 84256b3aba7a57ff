"""The reconciler's reads and writes, off the event loop: the store's methods block for a moment."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.state.records import Json, Kind, Record
from headrace.state.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the reconciler looks at, read at one time."""

    endpoints: Sequence[Record]
    workers: Sequence[Record]
    routes: Mapping[str, Record]
    """By endpoint name."""

    def workers_by_endpoint(self) -> dict[str, list[Record]]:
        """Workers by the uid of their endpoint."""
        grouped: dict[str, list[Record]] = defaultdict(list)
        for worker in self.workers:
            grouped[worker.spec["endpoint_uid"]].append(worker)
        return grouped


async def read_all(store: Store) -> Snapshot:
    """Read what the reconciler looks at."""

    def read() -> Snapshot:
        return Snapshot(
            endpoints=store.list(Kind.ENDPOINT),
            workers=store.list(Kind.WORKER),
            routes={record.name: record for record in store.list(Kind.ROUTE)},
        )

    return await asyncio.to_thread(read)


async def create(store: Store, kind: Kind, name: str, spec: Json) -> Record:
    """Add a record."""
    return await asyncio.to_thread(lambda: store.create(kind, name, spec=spec))


async def write(store: Store, record: Record, *, status: Json | None = None, is_deleting: bool = False) -> Record:
    """Write a status if it is another one, and that somebody wants the thing gone if nobody did yet."""
    is_same = status is None or status == record.status
    if is_same and not (is_deleting and record.deleting_s is None):
        return record
    return await asyncio.to_thread(lambda: store.update(record, status=status, is_deleting=is_deleting))


async def publish(store: Store, record: Record | None, name: str, spec: Json | None) -> None:
    """Bring the route of an endpoint up to date; None removes it."""
    if spec is None:
        if record is not None:
            await asyncio.to_thread(store.remove, record)
    elif record is None:
        await create(store, Kind.ROUTE, name, spec)
    elif record.spec != spec:
        await asyncio.to_thread(lambda: store.update(record, spec=spec))


async def remove(store: Store, record: Record) -> None:
    """Forget a record."""
    await asyncio.to_thread(store.remove, record)
