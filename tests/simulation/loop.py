"""
An event loop under virtual time, whose order of steps comes from a seed.

Each simulated process has a queue of callbacks of its own, which stay in order as asyncio promises; the seed chooses
whose callback runs next. Time passes only while nothing is ready. A process can be paused, as by SIGSTOP, and killed:
its callbacks then never run again. Functions for threads run on the loop after a drawn delay. Some of them may be
interrupted between two transactions: those are strands (`threads`), which never run at the same time as the loop.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.threads import STRANDS, Killed, SimulatedExecutor, Strand, idle_strand

if TYPE_CHECKING:
    from tests.simulation.network import Network

EPOCH_S: Final = 1_700_000_000.0
"""Wall-clock time at which each simulation begins, seconds since 1970."""
_SPAN_S: Final = 5.0
_MAX_STEPS: Final = 50_000
"""Steps within that time that mean an endless loop."""
SHARE_INTERRUPTIBLE: Final = 0.2
"""Share of the functions for threads that may be interrupted: each costs two switches of threads."""


@dataclass(slots=True, eq=False)
class Process:
    """A simulated process."""

    name: str
    ready: deque[events.Handle] = field(default_factory=deque)
    is_paused: bool = False
    is_dead: bool = False
    continued_s: float = 0.0
    """When it was continued after a pause."""
    skew_s: float = 0.0
    """Seconds by which its wall clock is ahead."""
    rng: random.Random = field(default_factory=random.Random)
    """Draws its ids, so that an operation less elsewhere changes none of them."""


OUTSIDE: Final = Process("outside")
PROCESS: Final[ContextVar[Process]] = ContextVar("process", default=OUTSIDE)


class _Task(asyncio.Task[Any]):
    """A task that hashes by its number: sets of tasks have the same order in each run."""

    def __init__(self, *args: Any, number: int, **kwargs: Any) -> None:
        self.number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of all simulated processes."""

    def __init__(self, seed: str) -> None:
        self.now_s = 0.0
        self.num_steps = 0
        self._mark = 0.0, 0
        """A time, and the number of steps until then."""
        self.rng = random.Random(f"{seed}/schedule")
        self.network: Network | None = None
        self.processes: list[Process] = [OUTSIDE]
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._numbers = count(1)
        self._tasks: dict[_Task, None] = {}
        self.strand: Strand | None = None
        """The interruptible function that runs now."""
        self.is_closing = False

    def add_process(self, name: str, *, skew_s: float = 0.0) -> Process:
        process = Process(name, skew_s=skew_s, rng=random.Random(f"{self.rng.random()}/{name}"))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """End a process; what it holds, and what it would do next, stays until the simulation is closed."""
        process.is_dead = True

    def resume(self, process: Process) -> None:
        process.is_paused, process.continued_s = False, self.now_s

    def context_of(self, process: Process) -> Context:
        context = copy_context()
        context.run(PROCESS.set, process)
        return context

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as a task of a process."""
        return self.create_task(work, context=self.context_of(process))

    def run(self, work: Coroutine[Any, Any, Any], *, until_s: float) -> Any:
        """Run a coroutine to its end; raise `TimeoutError` if it has none before a time."""
        events._set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done():
                if not self._step(until_s):
                    raise TimeoutError(f"The simulation did not end within {until_s:g} virtual seconds.")
            return task.result()
        finally:
            events._set_running_loop(None)

    def close(self) -> None:
        """End all tasks and threads of the simulation; what they still do has no effect."""
        self.is_closing = True
        events._set_running_loop(self)
        try:
            for process in self.processes:
                process.is_paused = process.is_dead = False
            for task in list(self._tasks):
                task.cancel()
            for strand in STRANDS:
                if strand.is_suspended:
                    strand.resume()
            for _ in range(100_000):
                if not self._tasks or not self._step(self.now_s + 3600.0):
                    break
        finally:
            events._set_running_loop(None)

    def _step(self, until_s: float) -> bool:
        """Run one callback, or move the clock to the next timer; False: there is none in time."""
        runnable = [
            process for process in self.processes if process.ready and not (process.is_paused or process.is_dead)
        ]
        if not runnable:
            return self._advance(until_s)
        number = len(runnable)
        process = runnable[0] if number == 1 else runnable[int(self.rng.random() * number)]
        self._check_rest(process)
        handle = process.ready.popleft()
        if not handle.cancelled():
            self.num_steps += 1
            handle._run()
        return True

    def _check_rest(self, process: Process) -> None:
        """Raise `RuntimeError` if the loops do not rest: time may then never pass."""
        since_s, num_steps = self._mark
        if self.now_s > since_s + _SPAN_S:
            self._mark = self.now_s, self.num_steps
        elif self.num_steps - num_steps > _MAX_STEPS and not self.is_closing:
            raise RuntimeError(f"{process.name} does not rest: {_MAX_STEPS} steps within {_SPAN_S:g} s.")

    def _advance(self, until_s: float) -> bool:
        timers = self._timers
        while timers and (timers[0][2].cancelled() or _process_of(timers[0][2]).is_dead):
            heapq.heappop(timers)
        if not timers or timers[0][0] > until_s:
            return False
        self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            handle = heapq.heappop(timers)[2]
            self._add(handle)
        return True

    def _add(self, handle: events.Handle) -> None:
        _process_of(handle).ready.append(handle)

    # The parts of an event loop that asyncio and Headrace call.

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._add(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> events.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        pass

    def create_future(self) -> "asyncio.Future[Any]":
        future = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        number = next(self._numbers)
        task = _Task(coro, loop=self, name=name or f"task-{number}", context=context, number=number)
        self._tasks[task] = None
        task.add_done_callback(self._forget, context=Context())
        return task

    def _forget(self, task: Any) -> None:
        self._tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise what no task has handled, unless it is the end of a process."""
        error = context.get("exception")
        if self.is_closing or isinstance(error, Killed) or error is None:
            return
        raise error

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.network is not None
        return await self.network.connect(factory, int(port), PROCESS.get())

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Run a function after a drawn delay, in one piece or with interruptions."""
        if self.is_closing:
            raise Killed
        future, context = self.create_future(), Context()  # threads of an executor do not have that of the caller
        context.run(PROCESS.set, PROCESS.get())
        assert self.network is not None
        delay_s = self.network.database_delay_s(PROCESS.get())
        can_pause = self.rng.random() < SHARE_INTERRUPTIBLE
        run = partial(context.run, partial(func, *args))
        start = self._start_strand if can_pause else self._run_whole
        if isinstance(executor, SimulatedExecutor):
            executor.begin_in_turn(run, lambda run: self.call_later(delay_s, start, run, future))
        else:
            self.call_later(delay_s, start, run, future)
        return future

    def _run_whole(self, run: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        _settle(future, run)

    def _start_strand(self, run: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        idle_strand().begin(self, partial(_settle, future, run))

    def pause_function(self, delay_s: float) -> bool:
        """Let the others run for a while, if this function may be interrupted; return whether it was."""
        strand = self.strand
        if strand is None or self.is_closing:
            return False
        self.call_later(delay_s, strand.end_pause, strand.num_resumed)
        strand.give_up_turn()
        return True


def _settle(future: "asyncio.Future[Any]", run: Callable[[], Any]) -> None:
    """Run a function, and give its outcome to a future; a function of a process that dies has none."""
    try:
        result = run()
    except Killed:
        return
    except Exception as error:  # noqa: BLE001 -- the caller's
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _process_of(handle: events.Handle) -> Process:
    process: Process = handle._context.get(PROCESS, OUTSIDE)  # type: ignore[attr-defined]
    return process
