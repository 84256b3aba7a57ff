"""Each replica as this gateway sees it: its in-flight requests, and whether it can be reached."""

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from headrace.platform.state.routes import Replica


class LoadLease:
    """A lease on a worker's load counter: one request, counted until `release`."""

    __slots__ = ("_loads", "_worker")

    def __init__(self, loads: "Loads", worker: str) -> None:
        self._loads: Loads | None = loads
        self._worker = worker

    def release(self) -> None:
        """Stop counting the request. Idempotent."""
        loads, self._loads = self._loads, None
        if loads is not None:
            loads.release(self._worker)


class Loads(Mapping[str, int]):
    """In-flight requests by worker, including those of other gateways; a worker without any is absent."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._others: Mapping[str, int] = {}
        self._on_release: Callable[[], None] = lambda: None

    def on_release(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each request that has ended, and after each report of the other gateways."""
        self._on_release = listener

    def acquire(self, worker: str) -> LoadLease:
        """Count one more request of `worker`, until its lease is released."""
        self._counts[worker] = self._counts.get(worker, 0) + 1
        return LoadLease(self, worker)

    def release(self, worker: str) -> None:
        """Count one request less; called by a lease."""
        count = self._counts[worker] - 1
        if count:
            self._counts[worker] = count
        else:
            del self._counts[worker]
        self._on_release()

    def own(self) -> dict[str, int]:
        return dict(self._counts)

    def set_others(self, counts: Mapping[str, int]) -> None:
        """Set the in-flight requests of the other gateways, as they reported last."""
        self._others = counts
        self._on_release()

    def __getitem__(self, worker: str) -> int:
        count = self._counts.get(worker, 0) + self._others.get(worker, 0)
        if not count:
            raise KeyError(worker)
        return count

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts.keys() | self._others.keys())

    def __len__(self) -> int:
        return len(self._counts.keys() | self._others.keys())


FIRST_S = 1.0
"""Two passes of the reconciler."""
LONGEST_S = 30.0


@dataclass(slots=True)
class _Entry:
    next_s: float = FIRST_S
    end: asyncio.TimerHandle | None = None
    """None: the quarantine is over, and the worker may be tried again."""


class Quarantine:
    """
    Unreachable workers get no requests for a while if another replica can answer or is expected.

    The reconciler soon notices that a worker has died; until then its replica is still in the route. A quarantine lasts
    one second, and twice as long each time the worker is still unreachable, so that a machine that is gone and drops
    packets delays few requests. A new worker at the address of an old one is a different replica. Used by one thread,
    the event loop's.
    """

    def __init__(self, *, on_end: Callable[[], None]) -> None:
        """`on_end` is called when a worker may be tried again."""
        self._on_end = on_end
        self._entries: dict[Replica, _Entry] = {}

    def __bool__(self) -> bool:
        """Return whether there may be replicas in quarantine."""
        return bool(self._entries)

    def __contains__(self, replica: Replica) -> bool:
        entry = self._entries.get(replica)
        return entry is not None and entry.end is not None

    def add(self, replica: Replica) -> None:
        entry = self._entries.setdefault(replica, _Entry())
        if entry.end is None:
            entry.end = asyncio.get_running_loop().call_later(entry.next_s, self._ended, entry)
            entry.next_s = min(LONGEST_S, 2 * entry.next_s)

    def lift(self, replica: Replica) -> None:
        """End the quarantine of a worker that has answered, and forget its failures."""
        entry = self._entries.pop(replica, None)
        if entry is not None and entry.end is not None:
            entry.end.cancel()
            self._on_end()

    def retain(self, replicas: Container[Replica]) -> None:
        """Drop all replicas but `replicas`: the others are no longer in a route."""
        for gone in [replica for replica in self._entries if replica not in replicas]:
            end = self._entries.pop(gone).end
            if end is not None:
                end.cancel()

    def _ended(self, entry: _Entry) -> None:
        entry.end = None
        self._on_end()
