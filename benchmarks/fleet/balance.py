"""
Simulation of many gateways that share many replicas, each knowing its own requests, and those of others late or never.

Requests arrive at random (Poisson), a random gateway sends each to a replica, a replica
answers `slots` at once, first come first served, each for an exponential time. Pure except for its random generator.
"""

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rule = Literal["random", "own least", "own least of two", "shared least", "true least of two", "true least"]
RULES: tuple[Rule, ...] = ("random", "own least", "own least of two", "shared least", "true least of two", "true least")
"""
`own`: of the requests that this gateway sent; `shared`: of these, and of those in the last reports of the others;
`true`: of all that the replica has, known without delay.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The sizes of a simulation."""

    replicas: int
    gateways: int
    slots: int
    """Requests that a replica answers at once."""
    service_s: float
    requests_per_s: float
    report_s: float = 0.2
    """Seconds between the reports of a gateway to the others."""

    @property
    def load(self) -> float:
        """The average share of busy slots."""
        return self.requests_per_s * self.service_s / (self.replicas * self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waiting times of requests for a slot, seconds."""

    mean_s: float
    p50_s: float
    p99_s: float


class _Reports:
    """The last report of each gateway to the others; they report in turns."""

    def __init__(self, loads: NDArray[np.int32], report_s: float) -> None:
        self._loads = loads
        self._report_s = report_s
        self._told = np.zeros_like(loads)
        self._sum = np.zeros_like(loads[0])
        self._due = [(report_s * row / len(loads), row) for row in range(len(loads))]

    def seen_by(self, row: int, now_s: float) -> NDArray[np.int32]:
        """Return the loads of the replicas as a gateway knows them."""
        while self._due[0][0] <= now_s:
            due_s, reporting = heapq.heappop(self._due)
            self._sum += self._loads[reporting] - self._told[reporting]
            self._told[reporting] = self._loads[reporting]
            heapq.heappush(self._due, (due_s + self._report_s, reporting))
        seen: NDArray[np.int32] = self._loads[row] + self._sum - self._told[row]
        return seen


def simulate(fleet: Fleet, rule: Rule, *, num_requests: int, seed: int) -> Waits:
    """Send requests by a rule; the first fifth warms up and does not count."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / fleet.requests_per_s, num_requests))
    services = rng.exponential(fleet.service_s, num_requests)
    senders = rng.integers(fleet.gateways, size=num_requests)
    is_own = rule.startswith(("own", "shared"))
    loads = np.zeros((fleet.gateways if is_own else 1, fleet.replicas), dtype=np.int32)
    reports = _Reports(loads, fleet.report_s)
    free = [[0.0] * fleet.slots for _ in range(fleet.replicas)]
    ends: list[tuple[float, int, int]] = []
    waits = np.zeros(num_requests)
    for index in range(num_requests):
        now_s = arrivals[index]
        while ends and ends[0][0] <= now_s:
            _, row, replica = heapq.heappop(ends)
            loads[row, replica] -= 1
        row = int(senders[index]) if is_own else 0
        seen = reports.seen_by(row, now_s) if rule == "shared least" else loads[row]
        replica = _chosen(rule, seen, rng)
        begin_s = max(now_s, free[replica][0])
        end_s = float(begin_s + services[index])
        heapq.heapreplace(free[replica], end_s)
        loads[row, replica] += 1
        heapq.heappush(ends, (end_s, row, replica))
        waits[index] = begin_s - now_s
    counted = waits[num_requests // 5 :]
    p50, p99 = np.quantile(counted, [0.5, 0.99])
    return Waits(mean_s=float(counted.mean()), p50_s=float(p50), p99_s=float(p99))


def _chosen(rule: Rule, loads: NDArray[np.int32], rng: np.random.Generator) -> int:
    if rule == "random":
        return int(rng.integers(len(loads)))
    if rule.endswith("of two"):
        first, second = (int(which) for which in rng.integers(len(loads), size=2))
        return first if loads[first] <= loads[second] else second
    least = np.flatnonzero(loads == loads.min())
    return int(least[rng.integers(len(least))])
