"""
Each replica as this gateway sees it: its in-flight requests, whether it can be reached, and the requests that wait.

A request is held until a replica can take it: its target is scaled to zero, or its first replicas are starting. Each
target (an endpoint, a variant, an inference component) has a first-come, first-served queue. Requests leave it as fast
as the replicas can take them, and a request that arrives later for the same target waits behind them. The number of
held requests is bounded, and so is their time. Targets scaled to zero are woken at once, and again while requests are
held for them. Used by one thread, the event loop's.
"""

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from headrace.platform.state.routes import Replica, Wake, WakeTarget


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


REMIND_S = 2.0
"""Seconds between wake-up reminders; the first may arrive while the target is being updated and be lost."""

RELEASED_PER_REPLICA = 64
"""In-flight requests of a replica up to which held requests are released. A worker refuses requests beyond 256."""


class WaitQueueFull(Exception):
    """The limit of held requests is reached."""


class WaitQueue:
    """The queues of all targets, with one limit for each endpoint and one for all together."""

    def __init__(
        self,
        *,
        capacity: Callable[[WakeTarget], int | None],
        wake: Wake | None,
        max_per_endpoint: int,
        max_total: int,
        remind_s: float = REMIND_S,
    ) -> None:
        """
        Create empty queues.

        `capacity` returns how many requests the replicas of a target can take now; None if the target is gone, so that
        there is nothing to wait for. `wake` scales a target up from zero, again every `remind_s`; None: requests are
        never held.
        """
        self._capacity = capacity
        self._wake = wake
        self._max_per_endpoint = max_per_endpoint
        self._max_total = max_total
        self._remind_s = remind_s
        self._waiters: dict[WakeTarget, _Waiters] = {}
        self._num_by_endpoint: dict[str, int] = {}
        self.num_held = 0
        """Requests that are held now."""

    @property
    def can_hold(self) -> bool:
        """Return whether requests may be held at all: without a wake signal no replica would come."""
        return self._wake is not None

    def num_by_endpoint(self) -> dict[str, int]:
        """Return the number of held requests by endpoint; endpoints without any are left out."""
        return dict(self._num_by_endpoint)

    def has_waiters(self, target: WakeTarget) -> bool:
        """Return whether requests are held for `target`, so that a new one has to queue behind them."""
        return bool(self._waiters) and target in self._waiters

    def wake(self, target: WakeTarget) -> None:
        """Scale `target` up from zero without holding a request for it."""
        if self._wake is not None:
            self._wake(target)

    async def wait(self, target: WakeTarget, asleep: WakeTarget | None) -> None:
        """
        Hold a request until its turn has come; the caller then chooses a replica again. Raises `WaitQueueFull`.

        `asleep` is the part that is scaled to zero and has to be woken. None: requests ahead have woken it.
        """
        endpoint, loop = target.endpoint, asyncio.get_running_loop()
        if self.num_held >= self._max_total or self._num_by_endpoint.get(endpoint, 0) >= self._max_per_endpoint:
            raise WaitQueueFull
        waiters = self._waiters.get(target)
        if waiters is None:
            waiters = self._waiters[target] = _Waiters()
            waiters.reminder = loop.call_later(self._remind_s, self._remind, target)
        if asleep is not None and asleep not in waiters.asleep:
            waiters.asleep.add(asleep)
            self.wake(asleep)
        turn: asyncio.Future[None] = loop.create_future()
        waiters.turns[turn] = None
        self._count(endpoint, 1)
        # The requests ahead may have been released already, so that no other event would release this one.
        # Not at once: they choose their replicas first.
        loop.call_soon(self._release, target, waiters)
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(target, waiters, turn)
            self._release(target, waiters)  # if its turn had come, the next request takes it
            raise
        else:
            self._leave(target, waiters, turn)

    def release(self) -> None:
        """Release the requests whose turn has come; call it after a route or a load has changed."""
        for target, waiters in list(self._waiters.items()):
            self._release(target, waiters)

    def _release(self, target: WakeTarget, waiters: "_Waiters") -> None:
        capacity = self._capacity(target)
        number = len(waiters.turns) if capacity is None else min(capacity - waiters.num_released, len(waiters.turns))
        for _ in range(number):
            turn = next(iter(waiters.turns))
            del waiters.turns[turn]
            waiters.num_released += 1
            if not turn.done():  # a cancelled request still has to run its own `finally`
                turn.set_result(None)

    def _remind(self, target: WakeTarget) -> None:
        waiters = self._waiters.get(target)
        if waiters is None:
            return
        waiters.reminder = asyncio.get_running_loop().call_later(self._remind_s, self._remind, target)
        self._release(target, waiters)
        if waiters.turns and self._capacity(target) == 0:
            for asleep in waiters.asleep:
                self.wake(asleep)

    def _count(self, endpoint: str, change: int) -> None:
        self.num_held += change
        number = self._num_by_endpoint.get(endpoint, 0) + change
        if number:
            self._num_by_endpoint[endpoint] = number
        else:
            del self._num_by_endpoint[endpoint]

    def _leave(self, target: WakeTarget, waiters: "_Waiters", turn: "asyncio.Future[None]") -> None:
        self._count(target.endpoint, -1)
        if turn in waiters.turns:
            del waiters.turns[turn]
        else:
            waiters.num_released -= 1
        if not waiters.turns and not waiters.num_released and self._waiters.get(target) is waiters:
            del self._waiters[target]
            if waiters.reminder is not None:
                waiters.reminder.cancel()


class _Waiters:
    __slots__ = ("asleep", "num_released", "reminder", "turns")

    def __init__(self) -> None:
        self.turns: dict[asyncio.Future[None], None] = {}
        """One future per held request, in order of arrival."""
        self.num_released = 0
        """Released requests that have not chosen a replica yet, so that no load counts them."""
        self.asleep: set[WakeTarget] = set()
        self.reminder: asyncio.TimerHandle | None = None
