"""Servers under test: each in its own session, frozen except in its turn."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.cpu_serving.proc import session_cpu_s, session_pids
from benchmarks.cpu_serving.servers import MODEL_NAME, Launch

_POLL_S = 0.005
_HOST = "127.0.0.1"


class ServerFailed(Exception):
    """A server did not start or did not answer; says where its log is."""


class ServerProcess:
    """One running server."""

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

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"http://{_HOST}:{self.port}"

    @property
    def session(self) -> int:
        """The session that all its processes belong to."""
        return self._process.pid

    def wait_for_token(self, *, timeout_s: float) -> float:
        """
        Return the seconds from the start of the process until the first token of a stream arrived.

        Raises:
            ServerFailed: The server ended, or took too long.
        """
        deadline_s = self._started_s + timeout_s
        while time.perf_counter() < deadline_s:
            if self._process.poll() is not None:
                raise ServerFailed(f"The server ended with {self._process.returncode}, see {self._log}.")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if _first_token(self.port, timeout_s=timeout_s):
                    return time.perf_counter() - self._started_s
            time.sleep(_POLL_S)
        raise ServerFailed(f"No token within {timeout_s:.0f} s, see {self._log}.")

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

    def close(self) -> None:
        """End all its processes. Idempotent."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for pid in session_pids(self.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _first_token(port: int, *, timeout_s: float) -> bool:
    """Return whether the server streams a token; False while it is not ready."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=timeout_s)
    body = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status == http.client.OK and bool(response.read(1))
    finally:
        connection.close()
