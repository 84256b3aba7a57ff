"""
The processes that serve a platform: forked from one that binds their sockets and restarts them.

Each process has a socket of its own on the port. The supervisor keeps them all open, so that the connections to a
process that dies wait for its successor instead of being refused. It has one thread and no asyncio loop: a fork copies
nothing that runs. The kernel kills the processes when the supervisor is killed; workers are not affected.

Another supervisor may take the sockets over (`platform.start`): when its processes are ready, those of this one
drain.
"""

import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.processes import end_with, this_process
from headrace.core.telemetry import get_logger

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_WITHOUT_DELAY: Final = signal.SIGUSR1
"""Stops a process whose successor accepts from the same sockets: no load balancer has to notice it."""
_HANDLED: Final = (*_STOPS, signal.SIGCHLD)
_MIN_LIFE_S: Final = 5.0
"""A process that dies younger is restarted with a pause."""
_MAX_PAUSE_S: Final = 10.0
_FORK_RETRY_S: Final = 1.0
_POLL_S: Final = 0.1
_UNUSABLE: Final = 2
"""Exit code of a process whose settings are wrong; the first one of each index stops the platform by it."""

NOT_RESTARTED: Final = 3
"""Exit code of a process whose successor would end as well: it stops the platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The facts that a new process gets about itself."""

    index: int
    is_first: bool
    """It is the first process of its index."""
    member_id: str
    """Its id as a member of the platform."""
    predecessor: str
    """The id of the process of its index that has ended; empty if it is the first."""
    is_ready: Callable[[], None]
    """Tells the supervisor that the process accepts requests."""


RunProcess = Callable[[Child], int]
"""Runs a process until it ends; returns its exit code."""


@dataclass(slots=True)
class _Slot:
    pid: int | None = None
    started_s: float = 0.0
    restart_s: float = 0.0
    """When to start the next process; monotonic."""
    pause_s: float = 0.0
    num_started: int = 0
    member_id: str = ""
    is_ready: bool = False


class Supervisor:
    def __init__(
        self,
        num_processes: int,
        run: RunProcess,
        *,
        on_stop: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        fork: Callable[[], int] = os.fork,
    ) -> None:
        """
        Create the supervisor; nothing is started yet.

        `run` is called in each new process; `on_stop` here when the processes are told to stop, `on_ready` here when
        all of them have accepted requests for the first time. `fork` forks this process as `os.fork` does.
        """
        self._slots = [_Slot() for _ in range(num_processes)]
        self._run = run
        self._on_stop = on_stop
        self._on_ready = on_ready
        self._clock = clock
        self._os_fork = fork
        self._process = this_process()
        self._selector = selectors.DefaultSelector()
        self._polled: Callable[[], bool] | None = None
        self._is_stopping = False
        self._exit_code = 0
        self._ready_pipe = os.pipe()

    def watch(self, source: socket.socket, on_readable: Callable[[], None]) -> None:
        """Call a function when a socket is readable, until `unwatch`."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def unwatch(self, source: socket.socket) -> None:
        self._selector.unregister(source)

    def poll(self, has_happened: Callable[[], bool]) -> None:
        """Call a function several times a second until it returns True."""
        self._polled = has_happened

    def run(self) -> int:
        """Run until all processes have ended after a signal, or one of them cannot start; return the exit code."""
        self._selector.register(self._ready_pipe[0], selectors.EVENT_READ, self._take_ready)
        with _signals() as (signals, received):
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._handle(received()))
            while True:
                for index, slot in enumerate(self._slots):
                    if slot.pid is None and not self._is_stopping and self._clock() >= slot.restart_s:
                        self._start(index, slot)
                if self._is_stopping and all(slot.pid is None for slot in self._slots):
                    return self._exit_code
                if self._polled is not None and self._polled():
                    self._polled = None
                waiting = [slot.restart_s for slot in self._slots if slot.pid is None and not self._is_stopping]
                pause_s = max(0.0, min(waiting) - self._clock()) if waiting else None
                for key, _ in self._selector.select(pause_s if self._polled is None else _POLL_S):
                    key.data()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Forward a signal; a second one kills the processes, as it kills a platform without a supervisor."""
        self._is_stopping = True
        self._on_stop()
        for slot in self._slots:
            if slot.pid is not None:
                os.kill(slot.pid, number)

    def _handle(self, numbers: set[int]) -> None:
        if signal.SIGCHLD in numbers:
            self._reap()
        for number in _STOPS:
            if number in numbers:
                self.stop(number)

    def _start(self, index: int, slot: _Slot) -> None:
        member_id = secrets.token_hex(8)

        def tell_ready() -> None:
            with suppress(OSError):
                os.write(self._ready_pipe[1], bytes([index]))

        child = Child(
            index=index,
            is_first=slot.num_started == 0,
            member_id=member_id,
            predecessor=slot.member_id,
            is_ready=tell_ready,
        )
        try:
            slot.pid = self._fork(child)
        except OSError as error:  # too many processes, or no memory: the others serve on
            slot.restart_s = self._clock() + _FORK_RETRY_S
            get_logger().error("process.not_started", index=index, reason=str(error), retry_s=_FORK_RETRY_S)
            return
        slot.started_s = self._clock()
        slot.num_started += 1
        slot.member_id = member_id

    def _fork(self, child: Child) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until the child has its own handlers
        pid = -1
        try:
            pid = self._os_fork()
        finally:
            if pid:  # not in the child
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        if pid:
            return pid
        code = 1
        try:
            end_with(self._process)
            os.setpgid(0, 0)  # Ctrl-C is for the supervisor, which passes it on
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            self._selector.close()
            code = self._run(child)
        except BaseException:  # noqa: BLE001 -- nothing of the supervisor may run in this process
            get_logger().exception("process.crashed", index=child.index)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _take_ready(self) -> None:
        was_ready = all(slot.is_ready for slot in self._slots)
        for index in os.read(self._ready_pipe[0], 4096):
            self._slots[index].is_ready = True
        if not was_ready and all(slot.is_ready for slot in self._slots):
            self._on_ready()

    def _reap(self) -> None:
        """Wait for all that has ended: as process 1 of a container this one also inherits workers."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for index, slot in enumerate(self._slots):
                    if slot.pid == ended[0]:
                        slot.pid = None
                        self._ended(index, slot, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, index: int, slot: _Slot, code: int) -> None:
        """Restart a process that ended on its own; an error that the user has to fix stops them all."""
        is_final = code == NOT_RESTARTED or (code == _UNUSABLE and slot.num_started == 1)
        if self._is_stopping or is_final:
            shown = 1 if code == NOT_RESTARTED else code if code >= 0 else 128 - code
            self._exit_code = self._exit_code or shown
            if not self._is_stopping:
                self.stop()
            return
        is_young = self._clock() - slot.started_s < _MIN_LIFE_S
        slot.pause_s = min(max(2 * slot.pause_s, 0.25), _MAX_PAUSE_S) if is_young else 0.0
        slot.restart_s = self._clock() + slot.pause_s
        get_logger().error("process.ended", index=index, exit_code=code, restart_after_s=slot.pause_s)


@contextmanager
def _signals() -> Iterator[tuple[int, Callable[[], set[int]]]]:
    """Yield a descriptor that is readable after a signal, and a function that returns the numbers received."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    earlier: dict[signal.Signals, Any] = {}
    for number in _HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under `nohup`
            earlier[number] = signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def received() -> set[int]:
        with suppress(BlockingIOError):
            return set(os.read(reading, 4096))
        return set()

    try:
        yield reading, received
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
