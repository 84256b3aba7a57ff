"""The end of a worker: its exit status or signal, the likely cause, and a line about it in the worker's own log."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import Observation, WorkerPhase
from headrace.platform.cluster.worker_logs import WorkerLogs

EVENT: Final = "worker.exited"
_START: Final = f'{{"event": "{EVENT}"'
_OUT_OF_MEMORY: Final = "most likely the memory ran out: the kernel killed a process for it at that time"
_STOPPED: Final = "the platform stopped it"
_CAUSES: Final = {
    signal.SIGKILL: "sent by another program, or by a container engine or a cluster that ran out of memory",
    signal.SIGSEGV: "native code crashed: it used memory that it does not have",
    signal.SIGBUS: "native code crashed: a file or shared memory was cut short while it was mapped",
    signal.SIGABRT: "native code gave up: its last lines say why",
    signal.SIGFPE: "native code crashed: it divided by zero",
    signal.SIGILL: "native code has an instruction that this CPU lacks",
    signal.SIGTERM: "sent by another program",
    signal.SIGINT: "sent by another program",
    signal.SIGHUP: "sent by another program",
}
_CONTAINER_SIGNAL: Final = 128
"""Shells and container engines report a signal by an exit status above this one."""


def likely_cause(code: int | None, *, was_stopped: bool, ran_out_of_memory: bool) -> str:
    """
    Return the likely cause of a worker's end; empty if its exit status says enough.

    Args:
        code: the exit code, negative for a signal; None: unknown.
        was_stopped: the platform had sent SIGTERM.
        ran_out_of_memory: the kernel killed a process for lack of memory since the worker was last seen.
    """
    if was_stopped:
        return _STOPPED
    number = signal_of(code)
    if ran_out_of_memory and (code is None or number == signal.SIGKILL):
        return _OUT_OF_MEMORY
    if code is None:
        return "it was killed or crashed: a process that ends by itself leaves its exit status"
    return _CAUSES.get(number, "") if number is not None else ""


def signal_of(code: int | None) -> signal.Signals | None:
    """Return the signal that ended a process, also one in a container."""
    number = 0 if code is None else -code if code < 0 else code - _CONTAINER_SIGNAL
    return signal.Signals(number) if number > 0 and number in signal.valid_signals() else None


def exit_line(code: int | None, cause: str, *, phase: str, now_s: float) -> bytes:
    number = signal_of(code)
    facts = {
        "event": EVENT,
        "exit_code": code,
        "signal": number.name if number is not None else None,
        "cause": cause or None,
        "phase": phase or None,
        "level": "info" if cause == _STOPPED or code == 0 else "error",
        "timestamp": datetime.fromtimestamp(now_s, UTC).isoformat().replace("+00:00", "Z"),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return f"{json.dumps(known)}\n".encode()


def is_exit_line(text: str) -> bool:
    return text.startswith(_START)


def num_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes this kernel has killed for lack of memory, in all control groups; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in vmstat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


class ExitLog:
    """Notes the ends of workers in their logs, which killed ones cannot do themselves. Not thread-safe."""

    def __init__(
        self,
        logs: WorkerLogs,
        *,
        now_s: Callable[[], float],
        is_pinged: bool = True,
        oom_kills: Callable[[], int] = num_oom_kills,
    ) -> None:
        """Create a log of ends; `is_pinged`: this process finds out that a worker is ready, not another one."""
        self._logs = logs
        self._now_s = now_s
        self._is_pinged = is_pinged
        self._num_oom_kills = oom_kills
        self._seen: dict[str, int] = {}
        """Worker → the count of processes killed for lack of memory when it was last seen running."""

    def saw_running(self, worker: str) -> None:
        self._seen[worker] = self._num_oom_kills()

    def cause(self, worker: str, code: int | None, *, was_stopped: bool) -> str:
        """Return the likely cause of a worker's end; see `likely_cause`."""
        num_kills = self._num_oom_kills()
        ran_out_of_memory = num_kills > self._seen.get(worker, num_kills)
        return likely_cause(code, was_stopped=was_stopped, ran_out_of_memory=ran_out_of_memory)

    def note(self, worker: str, code: int | None, cause: str, *, phase: str) -> None:
        """Add the line about a worker's end to its log, with the phase if it is known."""
        phase = "" if phase == WorkerPhase.STARTING and not self._is_pinged else phase
        try:
            self._logs.add_line(worker, exit_line(code, cause, phase=phase, now_s=self._now_s()))
        except OSError as error:  # a full disk
            get_logger().warning("worker.end_not_logged", worker=worker, reason=error.strerror)

    def forget(self, worker: str) -> None:
        self._seen.pop(worker, None)


def exit_reason(seen: Observation) -> str:
    """Return the reason why a worker ended, as far as it is known."""
    if seen.message:
        return seen.message
    cause = f" ({seen.cause})" if seen.cause else ""
    if seen.exit_code is None:
        return f"it ended without an exit status{cause}."
    if seen.exit_code < 0:
        number = signal_of(seen.exit_code)
        name = f", {number.name}" if number is not None else ""
        return f"it was ended by signal {-seen.exit_code}{name}{cause}."
    return f"it ended with exit status {seen.exit_code}{cause}."
