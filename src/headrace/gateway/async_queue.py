"""
A queue of asynchronous invocations, which returns those that start, expire or have lost their endpoint. Pure.

First come, first served within an endpoint; endpoints do not wait for each other.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.gateway.async_files import PendingInvocation
from headrace.gateway.routing import replicas_of
from headrace.state.routes import Route

_FEW_STARTED = 1000
"""Started invocations that may stay in the expiry heap."""


@dataclass(slots=True)
class DueInvocations:
    """Invocations that have just left the queue, by what happens to them next."""

    begin: list[PendingInvocation] = field(default_factory=list)
    expired: list[PendingInvocation] = field(default_factory=list)
    orphaned: list[PendingInvocation] = field(default_factory=list)
    """Invocations whose endpoint has been deleted."""
    starved: list[str] = field(default_factory=list)
    """Endpoints with waiting invocations and no replica."""
    next_s: float | None = None
    """When the next invocation expires, seconds since 1970."""


@dataclass(slots=True)
class Backlog:
    """The accepted invocations of an endpoint that have not ended."""

    size: int = 0
    """Waiting and running invocations."""
    oldest_s: float = math.inf
    """When the oldest of them was accepted, seconds since 1970."""

    def add(self, pending: PendingInvocation) -> None:
        self.size += 1
        self.oldest_s = min(self.oldest_s, pending.accepted_s)


class AsyncQueue:
    """Waiting and running invocations, by endpoint."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingInvocation] = {}
        self._by_endpoint: dict[str, deque[str]] = {}
        self._expiries: list[tuple[float, str]] = []
        self._running: dict[str, dict[str, PendingInvocation]] = {}
        """The running invocations of each endpoint, by their ids."""

    def __len__(self) -> int:
        return len(self._waiting)

    def backlogs(self) -> dict[str, Backlog]:
        found: dict[str, Backlog] = {}
        for pending in self._waiting.values():
            found.setdefault(pending.endpoint, Backlog()).add(pending)
        for endpoint, running in self._running.items():
            backlog = found.setdefault(endpoint, Backlog())
            for pending in running.values():
                backlog.add(pending)
        return found

    def add(self, pending: PendingInvocation) -> None:
        self._waiting[pending.id] = pending
        self._by_endpoint.setdefault(pending.endpoint, deque()).append(pending.id)
        heapq.heappush(self._expiries, (pending.expires_s, pending.id))

    def ended(self, pending: PendingInvocation) -> None:
        """Record that a running invocation has ended, so that another one can start."""
        running = self._running[pending.endpoint]
        del running[pending.id]
        if not running:
            del self._running[pending.endpoint]

    def due(self, routes: Mapping[str, Route], now_s: float) -> DueInvocations:
        """Remove and return the invocations that are due at `now_s`."""
        due = DueInvocations()
        while self._expiries and self._expiries[0][0] <= now_s:
            _, pending_id = heapq.heappop(self._expiries)
            if pending_id in self._waiting:
                due.expired.append(self._waiting.pop(pending_id))
        for endpoint in list(self._by_endpoint):
            self._take(endpoint, routes.get(endpoint), due)
        self._drop_started_expiries()
        if self._expiries:
            due.next_s = self._expiries[0][0]
        return due

    def _take(self, endpoint: str, route: Route | None, due: DueInvocations) -> None:
        queue = self._by_endpoint[endpoint]
        capacity = capacity_of(route)
        while queue:
            pending = self._waiting.get(queue[0])
            if pending is None:
                queue.popleft()
            elif is_orphaned(pending, route):
                due.orphaned.append(self._waiting.pop(queue.popleft()))
            elif len(self._running.get(endpoint, ())) < capacity:
                due.begin.append(self._waiting.pop(queue.popleft()))
                self._running.setdefault(endpoint, {})[pending.id] = pending
            else:
                if capacity == 0:
                    due.starved.append(endpoint)
                return
        del self._by_endpoint[endpoint]

    def _drop_started_expiries(self) -> None:
        """Remove started invocations from the expiry heap: at its head they cause wake-ups, and many take memory."""
        if len(self._expiries) > 2 * len(self._waiting) + _FEW_STARTED:
            self._expiries = [entry for entry in self._expiries if entry[1] in self._waiting]
            heapq.heapify(self._expiries)
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)


def is_orphaned(pending: PendingInvocation, route: Route | None) -> bool:
    """Return whether the endpoint of an invocation has no route; one that was created again has another uid."""
    return route is None or pending.endpoint_uid != route.endpoint_uid


def capacity_of(route: Route | None) -> int:
    """Return the number of asynchronous invocations that an endpoint runs at a time."""
    if route is None or route.async_output is None:
        return 0
    return num_endpoint_replicas(route) * route.async_output.max_concurrent_per_replica


def num_endpoint_replicas(route: Route) -> int:
    """Return the number of replicas that serve an endpoint, over all of its variants."""
    return sum(len(replicas_of(variant)) for variant in route.variants)
