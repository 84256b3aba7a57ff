"""Servers under test: each in its own session, started, waited for, frozen except in its turn, and ended."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.harness.proc import session_cpu_s, session_pids

MODEL_NAME = "model"
"""The model's name on every server that has one."""
HOST = "127.0.0.1"
_POLL_S = 0.005
_STOP_S = 60.0
_ANSWER_S = 400.0
"""Some servers compile at their first request."""


class ServerFailed(Exception):
    """A server did not start or did not answer; says where its log is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command that starts a server."""

    arguments: tuple[str, ...]
    """Without the port, which is appended as `--port N`."""
    environment: tuple[tuple[str, str], ...] = ()


class ServerProcess:
    """One running server; the end of a `with` block ends it."""

    def __init__(self, launch: Launch, *, log: Path) -> None:
        self._log = log
        self.port = free_port()
        with log.open("wb") as output:
            self._started_s = time.perf_counter()
            self._process = subprocess.Popen(
                [*launch.arguments, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(launch.environment)},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def session(self) -> int:
        """The session that all its processes belong to."""
        return self._process.pid

    def wait_until(self, is_true: Callable[[int], bool], *, timeout_s: float, what: str = "answer") -> float:
        """
        Ask its port until the answer is the wanted one; return the seconds since the start of the process.

        Raises:
            ServerFailed: The server ended, or took too long.
        """
        deadline_s = self._started_s + timeout_s
        while time.perf_counter() < deadline_s:
            if self._process.poll() is not None:
                raise ServerFailed(f"The server ended with {self._process.returncode}, see {self._log}.")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if is_true(self.port):
                    return time.perf_counter() - self._started_s
            time.sleep(_POLL_S)
        raise ServerFailed(f"No {what} within {timeout_s:.0f} s, see {self._log}.")

    def wait_for_token(self, *, timeout_s: float) -> float:
        """Return the seconds from the start of the process until the first token of a stream arrived."""
        return self.wait_until(streams_token, timeout_s=timeout_s, what="token")

    def idle_cpu_share(self, seconds: float) -> float:
        """Return the share of one core that the idle server uses."""
        before_s, started_s = session_cpu_s(self.session), time.perf_counter()
        time.sleep(seconds)
        return (session_cpu_s(self.session) - before_s) / (time.perf_counter() - started_s)

    def freeze(self) -> None:
        """Stop all its processes (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue all its processes (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Let it end in order (SIGTERM)."""
        self._process.terminate()
        self._process.wait(_STOP_S)

    def close(self) -> None:
        """End all its processes. Idempotent."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for pid in session_pids(self.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def headrace_command() -> str:
    """Return the command `headrace` of this environment."""
    return shutil.which("headrace", path=str(Path(sys.executable).parent)) or "headrace"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def pings(port: int, path: str = "/ping") -> bool:
    """Return whether a server is ready."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK


def streams_token(port: int) -> bool:
    """Return whether a server streams a token by OpenAI's API; False while it is not ready."""
    body = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": True}
    return _streams(port, "/v1/completions", body)


def generates_token(port: int) -> bool:
    """Return whether a server streams a token by TGI's API, which needs no name of a model."""
    return _streams(port, "/generate_stream", {"inputs": "Hello", "parameters": {"max_new_tokens": 1}})


def _streams(port: int, path: str, body: Mapping[str, Any]) -> bool:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status == http.client.OK and bool(response.read(1))
