"""
A worker in reserve: a process that has imported what workers need, and waits for its assignment.

Imports are half of the CPU time of a small model's start. The process is executed like any other worker and shares
nothing with the launcher but a pipe, on which it gets the path of its assignment; it ends when the launcher does.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.processes import ProcessId, reap, send_signal, spawn_connected
from headrace.platform.cluster.worker_files import WorkerFiles

FROM_INPUT: Final = "-"
"""In place of the path of an assignment: the worker reads it from its standard input."""
SPARE_BYTES: Final = 64 << 20
"""Resident memory of a process that waits."""
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


@dataclass(slots=True)
class SpareWorker:
    """At most one process that waits. All methods block briefly and may be called from any thread."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    """The output of a process until it has its assignment."""
    _waiting: tuple[ProcessId, int] | None = None
    """The process, and the end of its pipe that is written to."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> None:
        """Start a process unless one waits. Raises `OSError`."""
        with self._lock:
            if self._waiting is not None:
                return
            self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            reader, writer = os.pipe()
            output = os.open(self.log, _APPEND, 0o600)
            try:
                process = spawn_connected(
                    (*self.command, FROM_INPUT), self.environment, {0: reader, 1: output, 2: output}
                )
                self._waiting = process, writer
            except BaseException:
                os.close(writer)
                raise
            finally:
                os.close(reader)
                os.close(output)

    def take(self, assignment: Path) -> ProcessId | None:
        """Give an assignment to the process that waits, and return the process; None: there is none."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        process, writer = waiting
        try:
            os.write(writer, os.fsencode(assignment))  # less than a pipe holds
        except BrokenPipeError:
            reap(process)
            return None
        finally:
            os.close(writer)
        return process

    def close(self) -> None:
        """End the process that waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            process, writer = waiting
            os.close(writer)
            send_signal(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process.pid, 0)


def receive_assignment() -> Path:
    """Wait for an assignment on the standard input, and log to the worker's log from then on; exit if none comes."""
    path = os.fsdecode(sys.stdin.buffer.read())
    if not path:
        sys.exit(0)
    log, nothing = os.open(WorkerFiles(Path(path).parent).log, _APPEND, 0o600), os.open(os.devnull, os.O_RDONLY)
    for descriptor, replaced in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, replaced)
    os.close(log)
    os.close(nothing)
    return Path(path)
