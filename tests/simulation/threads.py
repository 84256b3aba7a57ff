"""
Threads of the simulated processes: functions that may be interrupted, executors and locks.

A strand is a real thread. It runs only while the loop, or another strand that needs its lock, waits for it.
"""

import asyncio
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop


class Killed(BaseException):
    """The process is dead: what it was doing ends here."""


class Strand:
    """A thread that runs one function at a time, and only while its caller waits for it."""

    def __init__(self) -> None:
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._loop: SimulatedLoop | None = None
        self._run: Callable[[], None] = lambda: None
        self.is_suspended = False
        self.num_resumed = 0
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        return self._loop is None

    def begin(self, loop: "SimulatedLoop", run: Callable[[], None]) -> None:
        """Run a function until it ends or gives up its turn."""
        self._loop, self._run = loop, run
        self.resume()

    def resume(self) -> None:
        loop = self._loop
        assert loop is not None
        outer, loop.strand = loop.strand, self
        self.is_suspended = False
        self.num_resumed += 1
        self._turn.release()
        self._back.acquire()
        loop.strand = outer

    def end_pause(self, num_resumed: int) -> None:
        """End a pause, unless it was ended before: by a function that needed a lock."""
        if self.is_suspended and num_resumed == self.num_resumed:
            self.resume()

    def give_up_turn(self) -> None:
        """Let the caller go on until `resume` is called; called by the function."""
        self.is_suspended = True
        self._back.release()
        self._turn.acquire()
        if self._loop is not None and self._loop.is_closing:
            raise Killed

    def _work(self) -> None:
        while True:
            self._turn.acquire()
            events._set_running_loop(self._loop)
            self._run()
            self._loop = None
            self._back.release()


STRANDS: Final[list[Strand]] = []
"""Threads of this process, which the next simulation uses again."""


def idle_strand() -> Strand:
    for strand in STRANDS:
        if strand.is_idle:
            return strand
    STRANDS.append(Strand())
    return STRANDS[-1]


class SimulatedExecutor:
    """A `ThreadPoolExecutor` with one thread whose functions run on the simulated loop, in their order."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        """What begins the function that runs, and each one after it."""

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().run_in_executor(cast("Any", self), function, *args)

    def begin_in_turn(self, run: Callable[[], Any], begin: Callable[[Callable[[], Any]], None]) -> None:
        """Begin a function when those before it have ended, whether their callers still wait or not."""

        def run_and_go_on() -> Any:
            try:
                return run()
            finally:
                self._waiting.popleft()
                if self._waiting:
                    self._waiting[0]()

        self._waiting.append(lambda: begin(run_and_go_on))
        if len(self._waiting) == 1:
            self._waiting[0]()

    def shutdown(self, *, wait: bool = True) -> None:
        """End nothing: the simulation ends what runs."""


class SimulatedLock:
    """A `threading.Lock`: who needs it lets the strand that holds it run on until it is free."""

    def __init__(self) -> None:
        self._is_held = False
        self._holder: Strand | None = None

    def __enter__(self) -> None:
        while self._is_held:
            assert self._holder is not None, "only a strand can be interrupted while it holds a lock"
            self._holder.resume()
        self._is_held, self._holder = True, getattr(events._get_running_loop(), "strand", None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_held = False
