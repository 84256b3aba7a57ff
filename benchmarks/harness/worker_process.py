"""Workers: one process per engine, which answers commands, and is stopped by a signal while another one runs."""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class WorkerFailed(Exception):
    """An engine failed, with the reason."""


class Worker:
    """One engine in its own process group; frozen except while it runs a command."""

    def __init__(
        self, script: Path, *, python: str, settings: Mapping[str, Any], environment: Mapping[str, str], log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._started_s = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(script), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                start_new_session=True,
            )
        self._unread = b""

    @property
    def group(self) -> int:
        """The process group of this engine."""
        return self._process.pid

    def wait_ready(self, *, timeout_s: float) -> tuple[float, dict[str, Any]]:
        """
        Wait until the engine is ready, then freeze.

        Returns:
            Seconds from the start of the process, and what the engine reports about itself.

        Raises:
            WorkerFailed: The process ended or took too long.
        """
        answer = self._read(timeout_s)
        seconds = time.perf_counter() - self._started_s
        self._signal(signal.SIGSTOP)
        return seconds, answer["description"]

    def ask(self, command: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """
        Thaw, run a command, freeze, and return the answer.

        Raises:
            WorkerFailed: It failed, or took too long.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"The process has ended, see {self._log.name}.") from None
        answer = self._read(timeout_s)
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process and all its children. Idempotent."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # unsent bytes of a command have no receiver left
                if pipe is not None:
                    pipe.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next message."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline_s = time.perf_counter() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.perf_counter())):
                    raise WorkerFailed(f"No answer within {timeout_s:.0f} s, see {self._log.name}.")
                piece = os.read(stdout.fileno(), 1 << 16)
                if not piece:
                    raise WorkerFailed(f"The process ended without an answer, see {self._log.name}.")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{answer['error']} (see {self._log.name})")
        return answer
