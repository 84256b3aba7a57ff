"""
Requests held until a replica can take them: their target is scaled to zero, or its first replicas are starting.

Each target (an endpoint, a variant, an inference component) has a first-come, first-served queue. Requests leave it as
fast as the replicas can take them, and a request that arrives later for the same target waits behind them. The number
of held requests is bounded, and so is their time. Targets scaled to zero are woken at once, and again while requests
are held for them. Used by one thread, the event loop's.
"""

import asyncio
from collections.abc import Callable

from headrace.platform.state.signals import Wake, WakeTarget

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
