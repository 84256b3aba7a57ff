"""
The other ranks of a model: processes that load their part and execute the steps that rank 0 sends them.

Rank 0 is the server itself. A socket pair leads to each process: it carries the task, then steps and adapters. When
the server dies, however it dies, the sockets close and the processes end; when a process ends, the server's end
closes, the runner is unhealthy from then on, and every later step fails with a message that names the process.
"""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import numpy as np
import torch.distributed as dist

from headrace.core.errors import EngineFailed, HeadraceError
from headrace.core.telemetry import get_logger
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.step import SAMPLING_DTYPE, StepInput
from headrace.inference.runner.torch.plan import TorchPlan

START_TIMEOUT_S: Final = 120.0
"""Seconds in which a process imports torch and reads the model's configuration."""
_END_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """The plan, the model and the meeting point of a process that becomes a rank."""

    rank: int
    plan: TorchPlan
    model: Path
    """The model's folder or file, which the process reads itself."""
    rope: Mapping[str, object] | None
    meeting_point: str
    threads: int | None


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """An adapter for a slot of each rank."""

    slot: int
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class Ready:
    """The report of a process that is about to join the other ranks."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The report of a process that ends because of an error."""

    error: HeadraceError | None
    """The error, if it is meant for users."""
    text: str


class Ranks:
    """The processes of all ranks but the first, watched by a thread."""

    def __init__(self, tasks: Sequence[RankTask]) -> None:
        self.meeting_point = tasks[0].meeting_point
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._failed = threading.Event()
        self._error: HeadraceError | None = None
        self._is_closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for task in tasks:
            process, connection = _start(task)
            self._processes.append(process)
            self._connections.append(connection)
        self._ready = threading.Semaphore(0)
        self._watcher = threading.Thread(target=self._watch, name="headrace-ranks", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def failure(self) -> str | None:
        return self._failure

    def wait_until_ready(self) -> None:
        """Wait until all processes are about to join each other; raises the error of one that failed."""
        for _ in self._processes:
            if not self._ready.acquire(timeout=START_TIMEOUT_S):
                self.fail(f"a process did not start within {START_TIMEOUT_S:.0f} s")
            self.check()

    def check(self) -> None:
        """Raise the error of a rank that has failed or ended."""
        if self._error is not None:
            raise self._error
        if self._failure is not None:
            raise EngineFailed(f"The tensor-parallel ranks cannot go on: {self._failure}. Restart the server.")

    def send_step(self, step: StepInput) -> None:
        """Send a step to all ranks, without the fields that only the sampler reads."""
        self._send(replace(step, sampling=np.zeros(len(step.rows), SAMPLING_DTYPE), histories=(), biases=(), masks=()))

    def send_adapter(self, slot: int, adapter: Adapter) -> None:
        self._send(LoadAdapter(slot, adapter))

    def fail(self, reason: str) -> None:
        """Record and log why the ranks cannot continue; the first reason is kept."""
        if self._failure is None:
            self._failure = reason
            get_logger().error("torch.ranks_failed", reason=reason)
        self._failed.set()

    def wait_for_failure(self, otherwise: str) -> None:
        """Wait a moment for the reason why the ranks cannot continue; record `otherwise` if none arrives."""
        self._failed.wait(_END_TIMEOUT_S)
        self.fail(otherwise)

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._is_closing = True
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.send(None)
        for process in self._processes:
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._watcher.join(_END_TIMEOUT_S)
        for connection in self._connections:
            connection.close()
        Path(self.meeting_point).unlink(missing_ok=True)

    def _send(self, message: object) -> None:
        content = pickle.dumps(message)
        with self._lock:
            self.check()
            try:
                for connection in self._connections:
                    connection.send_bytes(content)
            except OSError as exc:
                self.wait_for_failure(f"a rank cannot be reached ({exc.strerror})")
                self.check()

    def _watch(self) -> None:
        ranks = {connection: rank for rank, connection in enumerate(self._connections, start=1)}
        while ranks:
            for connection in wait(list(ranks)):
                assert isinstance(connection, Connection)
                try:
                    report = connection.recv()
                except (EOFError, OSError):
                    self._ended(ranks.pop(connection))
                    continue
                if isinstance(report, Failed):
                    self._error = report.error
                    self.fail(report.text)
                self._ready.release()

    def _ended(self, rank: int) -> None:
        if self._is_closing:
            return
        process = self._processes[rank - 1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
        self.fail(f"the process of rank {rank} (pid {process.pid}) ended with status {process.returncode}")
        self._ready.release()
        if dist.is_initialized() and dist.get_backend() == "nccl":
            # NCCL would wait for the dead rank for minutes; gloo notices that the connection closed.
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - it has no public name yet


def meeting_point() -> str:
    handle, path = tempfile.mkstemp(prefix="headrace-ranks-")
    os.close(handle)
    return path


def _start(task: RankTask) -> tuple["subprocess.Popen[bytes]", Connection]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "headrace.inference.runner.torch.rank_process", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    connection = Connection(ours.detach())
    connection.send(task)
    return process, connection
