"""
Requests that wait for a replica: what they want sleeps at zero, or its first copies are on their way.

They wait in rooms, one for each thing that requests name (an endpoint, a variant of it, an inference component), and
leave a room in the order in which they came, as fast as replicas can take them: who comes later and wants the same
waits behind them. How many wait is bounded, and how long. Whoever can wake what sleeps is told at once, and again as
long as somebody waits. Used by one thread, the event loop's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

REMIND_S = 2.0
"""Between two words to whoever wakes: the first may have come while the thing was being changed."""

RELEASED_PER_REPLICA = 64
"""So many requests a replica has at most while others wait. A worker takes 256 before it refuses any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeTarget:
    """What a request named; or what is to be woken: then a variant or a component."""

    endpoint: str
    variant: str | None = None
    component: str | None = None
    """An inference component; its variant is left out."""


Wake = Callable[[WakeTarget], None]
"""Brings a copy of something that sleeps. It returns at once, and may be called again and again."""

Capacity = Callable[[WakeTarget], int | None]
"""How many requests replicas can take now; None: there is nothing to wait for any more."""


class WaitQueueFull(Exception):
    """As many requests wait as may."""


class WaitQueue:
    """All rooms."""

    def __init__(
        self,
        *,
        capacity: Capacity,
        wake: Wake | None,
        max_of_endpoint: int,
        max_in_all: int,
        remind_s: float = REMIND_S,
    ) -> None:
        """
        Begin with nobody waiting.

        Args:
            capacity: asked before requests leave a room.
            wake: told what is wanted. None: nothing wakes, and requests fail where nobody can answer.
            max_of_endpoint: how many may wait for one endpoint.
            max_in_all: and for all together.
            remind_s: between two words to `wake`.
        """
        self._capacity = capacity
        self._wake = wake
        self._max_of_endpoint = max_of_endpoint
        self._max_in_all = max_in_all
        self._remind_s = remind_s
        self._rooms: dict[WakeTarget, _Waiters] = {}
        self._num_of_endpoint: dict[str, int] = {}
        self.num_held = 0
        """Requests that wait now."""

    @property
    def is_possible(self) -> bool:
        """Whether it is any use to wait."""
        return self._wake is not None

    def of_endpoints(self) -> dict[str, int]:
        """Endpoint → requests that wait for it; only endpoints with some."""
        return dict(self._num_of_endpoint)

    def is_queue_for(self, wanted: WakeTarget) -> bool:
        """Whether others wait for it, so that it would be unfair to go first."""
        return bool(self._rooms) and wanted in self._rooms

    def poke(self, asleep: WakeTarget) -> None:
        """Wake something that nobody has to wait for."""
        if self._wake is not None:
            self._wake(asleep)

    async def wait(self, wanted: WakeTarget, asleep: WakeTarget | None) -> None:
        """
        Wait until it is this request's turn; whether somebody can answer it is to be looked at anew then.

        Args:
            wanted: what the request named.
            asleep: what would answer it; None behind others, who have asked for it already.

        Raises:
            WaitQueueFull: too many wait already.
        """
        endpoint = wanted.endpoint
        if self.num_held >= self._max_in_all or self._num_of_endpoint.get(endpoint, 0) >= self._max_of_endpoint:
            raise WaitQueueFull
        room = self._rooms.get(wanted)
        if room is None:
            room = self._rooms[wanted] = _Waiters()
            room.reminder = asyncio.get_running_loop().call_later(self._remind_s, self._remind, wanted)
        if asleep is not None and asleep not in room.asleep:
            room.asleep.add(asleep)
            self.poke(asleep)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        room.turns[turn] = None
        self._count(endpoint, 1)
        try:
            await turn
        finally:
            self._count(endpoint, -1)
            if turn in room.turns:
                del room.turns[turn]
            else:
                room.num_called -= 1
            self._close_if_empty(wanted, room)

    def look(self) -> None:
        """Something has changed, a route or a load: let those go whose turn it is."""
        for wanted, room in list(self._rooms.items()):
            self._release(wanted, room)

    def _release(self, wanted: WakeTarget, room: "_Waiters") -> None:
        capacity = self._capacity(wanted)
        number = len(room.turns) if capacity is None else min(capacity - room.num_called, len(room.turns))
        for _ in range(number):
            turn = next(iter(room.turns))
            del room.turns[turn]
            room.num_called += 1
            if not turn.done():  # a cancelled one comes to its end by itself
                turn.set_result(None)

    def _remind(self, wanted: WakeTarget) -> None:
        room = self._rooms.get(wanted)
        if room is None:
            return
        room.reminder = asyncio.get_running_loop().call_later(self._remind_s, self._remind, wanted)
        self._release(wanted, room)
        if room.turns and self._capacity(wanted) == 0:
            for asleep in room.asleep:
                self.poke(asleep)

    def _count(self, endpoint: str, change: int) -> None:
        self.num_held += change
        number = self._num_of_endpoint.get(endpoint, 0) + change
        if number:
            self._num_of_endpoint[endpoint] = number
        else:
            del self._num_of_endpoint[endpoint]

    def _close_if_empty(self, wanted: WakeTarget, room: "_Waiters") -> None:
        if not room.turns and not room.num_called and self._rooms.get(wanted) is room:
            del self._rooms[wanted]
            if room.reminder is not None:
                room.reminder.cancel()


class _Waiters:
    """Requests that want the same."""

    __slots__ = ("asleep", "num_called", "reminder", "turns")

    def __init__(self) -> None:
        self.turns: dict[asyncio.Future[None], None] = {}
        """Who waits, in their order."""
        self.num_called = 0
        """Whose turn has come, and who have not gone yet: they are in no replica's load."""
        self.asleep: set[WakeTarget] = set()
        self.reminder: asyncio.TimerHandle | None = None
