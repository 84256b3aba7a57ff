"""
Substitutes for clocks, ids, random numbers and threads, for as long as a simulation runs.

Headrace takes its clocks as arguments in most places. Where a module reads one by itself, the module's own name for it
is replaced, here and nowhere else; the code under test has no hook.
"""

import asyncio
import logging
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final

import structlog

from headrace.platform.autoscaling.loops import autoscaler
from headrace.platform.cloudformation import deployment, journal, lifecycle, resources
from headrace.platform.control.loops import endpoint_pass, reconciler, timing
from headrace.platform.control.loops.timing import Clocks
from headrace.platform.host import membership
from headrace.platform.state import blobs, coordination, store
from tests.simulation.database import ENGINE, check_term, read_once
from tests.simulation.loop import EPOCH_S, OUTSIDE, PROCESS, SimulatedLoop
from tests.simulation.scenario import Knobs, Scenario
from tests.simulation.threads import SimulatedExecutor, SimulatedLock

_IMPORTED_LATE: Final = (deployment, journal, lifecycle, resources)
"""Modules that Headrace imports when it needs them: by then it would be too late to replace their ids."""


class Clock:
    """The clocks of the simulated machine, and of each process on it."""

    loop: SimulatedLoop | None = None

    def monotonic(self) -> float:
        return 1000.0 if self.loop is None else 1000.0 + self.loop.now_s

    def wall(self) -> float:
        """Return the time that the current process reads, seconds since 1970."""
        return EPOCH_S + PROCESS.get().skew_s + (0.0 if self.loop is None else self.loop.now_s)


CLOCK: Final = Clock()


class _Instead:
    """A module with some functions replaced."""

    def __init__(self, module: ModuleType, **functions: Callable[..., Any]) -> None:
        self._module = module
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _bytes(number: int) -> bytes:
    process = PROCESS.get()
    return process.rng.randbytes(number)


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=_bytes(16), version=4)


def _token_hex(number: int | None = None) -> str:
    return _bytes(number or 32).hex()


def _random() -> float:
    return PROCESS.get().rng.random()


_INSTEAD: Final[dict[int, Any]] = {
    id(time): _Instead(
        time,
        time=CLOCK.wall,
        monotonic=CLOCK.monotonic,
        perf_counter=CLOCK.monotonic,
        clock_gettime=lambda _: CLOCK.monotonic(),
    ),
    id(uuid): _Instead(uuid, uuid4=_uuid4),
    id(secrets): _Instead(secrets, token_hex=_token_hex),
    id(random): _Instead(random, random=_random),
    id(uuid.uuid4): _uuid4,
    id(time.perf_counter): CLOCK.monotonic,
    id(ThreadPoolExecutor): SimulatedExecutor,
    id(threading): _Instead(threading, Lock=SimulatedLock),
}
_NAMES: Final = ("time", "uuid", "secrets", "random", "uuid4", "perf_counter", "ThreadPoolExecutor", "threading")


def decoded_once(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that decodes each version of a record once, for all members: records do not change."""
    known: dict[tuple[Any, ...], Any] = {}

    def decoded(kind: Any, row: Any) -> Any:
        key = (row.uid, row.revision, row.deleting_s, row.tags, row.spec, row.status)
        if key not in known:
            known[key] = decode(kind, row)
        return known[key]

    return decoded


class _Idle:
    """A loop of the leader that the simulation leaves out."""

    def __init__(self, **_: Any) -> None:
        pass

    async def run(self, *_: object) -> None:
        await asyncio.Event().wait()


@contextmanager
def substituted(loop: SimulatedLoop, scenario: Scenario) -> Iterator[None]:
    """Let all modules of Headrace use the clocks, ids and threads of a simulation, and its intervals."""
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    before, configured = CLOCK.loop, structlog.get_config()
    CLOCK.loop = loop
    OUTSIDE.rng = random.Random(loop.rng.random())
    OUTSIDE.ready.clear()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        for module in [found for name, found in sys.modules.items() if name.startswith("headrace.")]:
            for name in _NAMES:
                instead = _INSTEAD.get(id(getattr(module, name, None)))
                if instead is not None:
                    replace(module, name, instead)
        for name, value in _replaced_parts(scenario.kinds()).items():
            replace(membership, name, value)
        replace(coordination, "engine_of", lambda *_, **__: ENGINE)
        replace(blobs, "check_term", check_term)
        replace(store, "decode_row", decoded_once(store.decode_row))
        for name in ("list", "revision"):
            replace(store.Store, name, read_once(getattr(store.Store, name)))
        for owner, name, value in _intervals(scenario.knobs):
            replace(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)
        CLOCK.loop = before
        structlog.configure(**configured)


def _replaced_parts(kinds: frozenset[str]) -> dict[str, Any]:
    """Return the leader's loops with clocks of the simulation, and stand-ins for those that have nothing to do."""
    return {
        "Reconciler": partial(membership.Reconciler, clocks=Clocks(CLOCK.wall, CLOCK.monotonic)),
        "Autoscaler": partial(membership.Autoscaler, clock=CLOCK.wall),
        "Jobs": partial(membership.Jobs, clock=CLOCK.wall) if "job" in kinds else _Idle,
        "StackLoop": partial(membership.StackLoop, clock=CLOCK.wall) if "stack" in kinds else _Idle,
        **dict.fromkeys(("Scraper", "CapacityRecorder", "Experiments"), _Idle),
    }


def _intervals(knobs: Knobs) -> Iterator[tuple[Any, str, float]]:
    """Yield the intervals of the loops: a slower platform decides in the same way, and costs less."""
    for owner in (coordination, membership):
        yield owner, "LEASE_S", knobs.lease_s
    for owner in (timing, endpoint_pass, reconciler):
        for name, value in (("BUSY_PAUSE_S", knobs.busy_s), ("WATCH_PAUSE_S", knobs.watch_s)):
            if hasattr(owner, name):
                yield owner, name, value
    yield reconciler, "_BURST_S", knobs.burst_s
    yield timing, "SHORTEST_S", knobs.burst_s
    yield autoscaler, "_BURST_S", knobs.scaling_burst_s
