"""
Which asynchronous invocations begin, expire or are given up now. Pure: routes and a time in, what is due out.

First come, first served within an endpoint; endpoints do not wait for each other.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.gateway.async_files import PendingInvocation
from headrace.state.routes import Route


@dataclass(slots=True)
class DueInvocations:
    """What is to be done now; all of it has left the queue."""

    begin: list[PendingInvocation] = field(default_factory=list)
    expired: list[PendingInvocation] = field(default_factory=list)
    orphaned: list[PendingInvocation] = field(default_factory=list)
    """Their endpoint is gone."""
    starved: list[str] = field(default_factory=list)
    """Endpoints that have no replica for those that wait."""
    next_s: float | None = None
    """When to look again if nothing else happens, seconds since 1970."""


@dataclass(slots=True)
class Backlog:
    """What an endpoint has accepted and not ended."""

    size: int = 0
    """Invocations that wait, and those that have begun."""
    oldest_s: float = math.inf
    """When the oldest of them was accepted, seconds since 1970."""

    def add(self, pending: PendingInvocation) -> None:
        """Count one more."""
        self.size += 1
        self.oldest_s = min(self.oldest_s, pending.accepted_s)


class AsyncQueue:
    """Invocations that wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingInvocation] = {}
        self._by_endpoint: dict[str, deque[str]] = {}
        self._expiries: list[tuple[float, str]] = []
        self._running: dict[str, dict[str, PendingInvocation]] = {}
        """Endpoint → those of its invocations that have begun, by their ids."""

    def __len__(self) -> int:
        return len(self._waiting)

    def backlogs(self) -> dict[str, Backlog]:
        """Endpoint → its backlog; only endpoints that have one."""
        found: dict[str, Backlog] = {}
        for pending in self._waiting.values():
            found.setdefault(pending.endpoint, Backlog()).add(pending)
        for endpoint, begun in self._running.items():
            backlog = found.setdefault(endpoint, Backlog())
            for pending in begun.values():
                backlog.add(pending)
        return found

    def add(self, pending: PendingInvocation) -> None:
        """Put it at the end."""
        self._waiting[pending.id] = pending
        self._by_endpoint.setdefault(pending.endpoint, deque()).append(pending.id)
        heapq.heappush(self._expiries, (pending.expires_s, pending.id))

    def ended(self, pending: PendingInvocation) -> None:
        """One that had begun has ended: there is room for another."""
        begun = self._running[pending.endpoint]
        del begun[pending.id]
        if not begun:
            del self._running[pending.endpoint]

    def due(self, routes: Mapping[str, Route], now_s: float) -> DueInvocations:
        """Take out what is due."""
        due = DueInvocations()
        while self._expiries and self._expiries[0][0] <= now_s:
            _, pending_id = heapq.heappop(self._expiries)
            if pending_id in self._waiting:
                due.expired.append(self._waiting.pop(pending_id))
        for endpoint in list(self._by_endpoint):
            self._take(endpoint, routes.get(endpoint), due)
        self._forget_begun()
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
            elif route is None or pending.endpoint_uid != route.endpoint_uid:
                due.orphaned.append(self._waiting.pop(queue.popleft()))
            elif len(self._running.get(endpoint, ())) < capacity:
                due.begin.append(self._waiting.pop(queue.popleft()))
                self._running.setdefault(endpoint, {})[pending.id] = pending
            else:
                if capacity == 0:
                    due.starved.append(endpoint)
                return
        del self._by_endpoint[endpoint]

    def _forget_begun(self) -> None:
        """The heap's first entry is one that waits, so that nobody is woken for nothing."""
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)


def capacity_of(route: Route | None) -> int:
    """How many asynchronous invocations an endpoint runs at a time."""
    if route is None or route.async_output is None:
        return 0
    return num_serving(route) * route.async_output.max_concurrent_per_replica


def num_serving(route: Route) -> int:
    """How many replicas answer for all variants of an endpoint together."""
    return sum(len(fleet.replicas) for variant in route.variants for fleet in variant.fleets if fleet.share > 0)
