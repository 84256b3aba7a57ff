"""
A scenario: what clients do and what goes wrong, drawn from a seed, as data that can be stored, replayed and shrunk.

Pure. The seed also decides the order of steps and all delays, so that a scenario runs in the same way each time.
"""

import random
from collections.abc import Mapping
from typing import Final

import msgspec


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of the platform's loops, seconds."""

    heartbeat_s: float = 0.5
    lease_s: float = 2.0
    busy_s: float = 0.2
    watch_s: float = 0.5
    burst_s: float = 0.02
    scaling_burst_s: float = 0.1


AS_SHIPPED: Final = Knobs()
SLOWER: Final = Knobs(heartbeat_s=3.0, lease_s=12.0, busy_s=1.5, watch_s=4.0, burst_s=0.1, scaling_burst_s=1.0)
CALM: Final = Knobs(heartbeat_s=30.0, lease_s=120.0, busy_s=1.0, watch_s=30.0, burst_s=0.1, scaling_burst_s=1.0)
"""For a day in which nothing happens."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong."""

    at_s: float
    """Seconds after the first endpoints serve."""
    kind: str
    duration_s: float
    """Seconds until it is undone."""
    target: int
    """Chooses among the members or workers of that time, by remainder."""
    amount: float = 0.0
    """Seconds of a clock's jump, or statements until a member dies."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A call or a request of a client."""

    at_s: float
    kind: str
    target: int
    amount: int = 0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    members: int
    knobs: Knobs
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    quiet_s: float = 0.0
    """Seconds without requests or faults after everything has settled."""

    def kinds(self) -> frozenset[str]:
        """Return the kinds of its operations."""
        return frozenset(operation.kind for operation in self.operations)

    def loses_workers(self) -> bool:
        """Return whether workers may fail, or be out of reach: only then may the work that needs them fail."""
        return any(fault.kind.startswith(("worker", "launch")) for fault in self.faults)


FAULTS_S: Final[Mapping[str, tuple[float, float]]] = {
    "worker-kill": (0.0, 0.0),
    "worker-die": (0.0, 0.0),
    "worker-loop": (0.0, 0.0),
    "worker-stop": (0.5, 40.0),
    "platform-kill": (0.5, 15.0),
    "platform-die": (0.5, 10.0),
    "platform-stop": (0.5, 20.0),
    "leader-stop": (1.0, 2.0),
    "workers-cut": (0.5, 10.0),
    "database-cut": (0.5, 20.0),
    "database-fail": (0.5, 8.0),
    "network-slow": (1.0, 10.0),
    "storage-fail": (1.0, 15.0),
    "launch-fail": (1.0, 15.0),
    "clock-jump": (0.0, 0.0),
}
"""Kind of a fault → its shortest and longest duration, seconds; for a stop of the leader, leases."""
WEIGHTS: Final = {
    "request": 8,
    "create": 2,
    "update": 2,
    "scale": 2,
    "delete": 2,
    "bound": 1,
    "component": 2,
    "zero": 1,
    "async": 3,
    "job": 2,
    "stack": 2,
    "tag": 2,
    "move": 2,
    "policy": 2,
    "serverless": 1,
}
"""Kind of an operation → how often it is drawn, among those of a scenario."""
_SHARE_FOCUSED: Final = 0.3
_FOCUSED: Final = ("async", "async", "job", "job", "stack", "bound", "policy")
_MAX_JUMP_S: Final = 600.0
LAST_S: Final = 30.0
"""Seconds in which faults and operations begin."""


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed; some have operations of one kind only, and many losses."""
    chooser = random.Random(f"{seed}/scenario")
    if chooser.random() < _SHARE_FOCUSED:
        return draw_only(seed, chooser.choice(_FOCUSED))
    knobs = AS_SHIPPED if chooser.random() < 0.1 else SLOWER
    members = chooser.choice((1, 2, 2, 3))
    kinds = list(FAULTS_S)
    faults = [_fault(chooser, chooser.choice(kinds)) for _ in range(chooser.randint(0, 6))]
    others = chooser.sample(sorted(WEIGHTS.keys() - {"request"}), k=chooser.randint(1, 4))
    numbers = ["request", *others]
    weights = [WEIGHTS[kind] for kind in numbers]
    operations = [_operation(chooser, kind) for kind in chooser.choices(numbers, weights, k=chooser.randint(4, 14))]
    return Scenario(
        seed=seed,
        members=members,
        knobs=knobs,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        operations=tuple(sorted(operations, key=lambda operation: operation.at_s)),
    )


_LOSSES: Final = (
    *("platform-die", "platform-die", "platform-kill", "worker-die"),
    *("leader-stop", "database-fail", "storage-fail", "launch-fail"),
)


def draw_only(seed: int, kind: str) -> Scenario:
    """Return a scenario with operations of one kind only, and many losses of members, answers and commits."""
    chooser = random.Random(f"{seed}/focus")
    faults = [_fault(chooser, chooser.choice(_LOSSES)) for _ in range(chooser.randint(2, 6))]
    operations = [_operation(chooser, kind) for _ in range(chooser.randint(3, 7))]
    return Scenario(
        seed=seed,
        members=chooser.choice((1, 2, 3)),
        knobs=AS_SHIPPED if chooser.random() < 0.1 else SLOWER,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        operations=tuple(sorted(operations, key=lambda operation: operation.at_s)),
    )


_SPECIAL: Final = {
    "platform-kill": (20.0, "platform-term"),
    "platform-die": (12.0, "leader-die"),
    "platform-stop": (10.0, "thread-hang"),
    "leader-stop": (12.0, "term-stop"),
}
"""Kind of a fault → the amount up to which it is of a more special kind, and that kind."""


def _operation(chooser: random.Random, kind: str) -> Operation:
    return Operation(
        at_s=round(chooser.uniform(0, LAST_S), 3),
        kind=kind,
        target=chooser.randrange(1000),
        amount=chooser.randrange(1000),
    )


def _fault(chooser: random.Random, kind: str) -> Fault:
    """Draw a fault; some are of another kind by their amount, so that the others of a seed stay what they were."""
    amount = chooser.uniform(-_MAX_JUMP_S, _MAX_JUMP_S) if kind == "clock-jump" else float(chooser.randint(1, 40))
    return Fault(
        at_s=round(chooser.uniform(0, LAST_S), 3),
        kind=_SPECIAL[kind][1] if kind in _SPECIAL and amount <= _SPECIAL[kind][0] else kind,
        duration_s=round(chooser.uniform(*FAULTS_S[kind]), 3),
        target=chooser.randrange(1000),
        amount=round(amount, 3),
    )
