"""Schedules of faults: made from a seed, stored as JSON, and shrunk while a run still fails. Pure."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

import msgspec

ItemT = TypeVar("ItemT")

DURATIONS_S: Final[Mapping[str, tuple[float, float]]] = {
    "worker-kill": (0.0, 0.0),
    "worker-stop": (0.2, 3.0),
    "platform-kill": (0.0, 2.0),
    "platform-stop": (0.2, 4.0),
    "process-kill": (0.0, 0.0),
    "process-stop": (0.2, 4.0),
    "storage-kill": (0.0, 0.0),
    "storage-stop": (0.2, 3.0),
    "database-kill": (0.0, 2.0),
    "database-stop": (0.2, 4.0),
    "database-restart": (0.0, 0.0),
    "database-cut": (0.0, 2.0),
    "database-delay": (0.5, 3.0),
    "node-kill": (0.5, 5.0),
    "node-stop": (0.2, 4.0),
    "client-cut": (0.0, 1.0),
    "client-delay": (0.5, 3.0),
    "client-corrupt": (0.5, 2.0),
    "disk-full": (0.5, 3.0),
    "clock-jump": (0.5, 5.0),
}
"""Kind of a fault → its shortest and longest duration, seconds."""
KILLS: Final = frozenset({"worker-kill", "platform-kill", "process-kill", "storage-kill", "database-kill", "node-kill"})
_WEIGHTS: Final[Mapping[str, int]] = {"worker-kill": 4}
_MAX_JUMP_S: Final = 600
"""Below the 15 minutes at which a signature expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parts of a run, which decide the possible faults."""

    processes: int = 1
    platforms: int = 1
    is_postgresql: bool = False
    nodes: int = 0
    """Ray nodes for workers; 0: workers are processes of the platform's machine, without Ray."""
    has_small_disk: bool = True
    has_fake_clock: bool = True

    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in DURATIONS_S if self._is_possible(kind))

    def _is_possible(self, kind: str) -> bool:
        if kind.startswith("process-"):
            return self.processes > 1
        if kind.startswith("database-"):
            return self.is_postgresql
        if kind.startswith("node-"):
            return self.nodes > 0
        return {"disk-full": self.has_small_disk, "clock-jump": self.has_fake_clock}.get(kind, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a schedule."""

    at_s: float
    """Seconds after the start of the load."""
    kind: str
    duration_s: float
    """Seconds until it is undone: the process continues or is restarted, the disk has room."""
    target: int
    """Chooses among the processes of its kind that run at that time, by remainder."""
    amount: int = 0
    """Seconds of a clock jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The faults of a run, and the seed of its load."""

    seed: int
    setup: Setup
    faults: tuple[Fault, ...]

    @property
    def duration_s(self) -> float:
        """Seconds until the last fault is undone."""
        return max((fault.at_s + fault.duration_s for fault in self.faults), default=0.0)


def make_schedule(
    seed: int, num_faults: int, setup: Setup, *, kinds: Sequence[str] = (), gap_s: float = 1.5
) -> Schedule:
    """Return the schedule of a seed; `gap_s` is the mean time between two faults."""
    chooser = random.Random(seed)
    possible = [kind for kind in setup.kinds() if not kinds or kind in kinds]
    if not possible:
        raise ValueError(
            f"None of the faults {', '.join(kinds)} is possible in this setup; expected some of "
            f"{', '.join(setup.kinds())}."
        )
    faults, at_s = [], 0.0
    for _ in range(num_faults):
        at_s += min(chooser.expovariate(1 / gap_s), 4 * gap_s)
        (kind,) = chooser.choices(possible, [_WEIGHTS.get(kind, 1) for kind in possible])
        faults.append(
            Fault(
                at_s=round(at_s, 3),
                kind=kind,
                duration_s=round(chooser.uniform(*DURATIONS_S[kind]), 3),
                target=chooser.randrange(1000),
                amount=chooser.randint(-_MAX_JUMP_S, _MAX_JUMP_S) if kind == "clock-jump" else 0,
            )
        )
    return Schedule(seed=seed, setup=setup, faults=tuple(faults))


def to_json(schedule: Schedule) -> str:
    return json.dumps(asdict(schedule), indent=1)


def from_json(text: str) -> Schedule:
    return msgspec.json.decode(text, type=Schedule)


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Remove faults while the run still fails; `fails` runs a schedule and returns whether it fails."""
    return replace(schedule, faults=shortest(schedule.faults, lambda faults: fails(replace(schedule, faults=faults))))


def shortest(items: tuple[ItemT, ...], fails: Callable[[tuple[ItemT, ...]], bool]) -> tuple[ItemT, ...]:
    """
    Remove items while the run still fails (delta debugging: halves first, then smaller parts).

    Args:
        items: the faults or operations of a run that fails.
        fails: runs with these items; returns whether it fails.
    """
    size = max(1, len(items) // 2)
    while True:
        removed = _remove_part(items, size, fails)
        if removed is not None:
            items = removed
            size = min(size, max(1, len(items) // 2))
        elif size == 1:
            return items
        else:
            size //= 2


def _remove_part(
    items: tuple[ItemT, ...], size: int, fails: Callable[[tuple[ItemT, ...]], bool]
) -> tuple[ItemT, ...] | None:
    """Return the items without `size` of them in a row if that still fails; None if it passes without any of them."""
    for begin in range(0, len(items), size):
        shorter = (*items[:begin], *items[begin + size :])
        if fails(shorter):
            return shorter
    return None
