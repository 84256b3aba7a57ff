"""
Quarantine of unreachable workers: they get no requests for a while if another replica can answer or is expected.

The reconciler soon notices that a worker has died; until then its replica is still in the route. A quarantine lasts one
second, and twice as long each time the worker is still unreachable, so that a machine that is gone and drops packets
delays few requests. Used by one thread, the event loop's.
"""

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass

from headrace.state.routes import Replica

FIRST_S = 1.0
"""Two passes of the reconciler."""
LONGEST_S = 30.0


@dataclass(slots=True)
class _Entry:
    next_s: float = FIRST_S
    end: asyncio.TimerHandle | None = None
    """None: the quarantine is over, and the worker may be tried again."""


class Quarantine:
    """The replicas in quarantine. A new worker at the address of an old one is a different replica."""

    def __init__(self, *, on_end: Callable[[], None]) -> None:
        """`on_end` is called when a worker may be tried again."""
        self._on_end = on_end
        self._entries: dict[Replica, _Entry] = {}

    def __bool__(self) -> bool:
        """Return whether there may be replicas in quarantine."""
        return bool(self._entries)

    def __contains__(self, replica: Replica) -> bool:
        """Return whether `replica` is in quarantine now."""
        entry = self._entries.get(replica)
        return entry is not None and entry.end is not None

    def add(self, replica: Replica) -> None:
        """Put an unreachable worker into quarantine."""
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
