"""The engines under test, each in a process of its own that waits while another one is measured."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.embeddings.worker import time_batches

_HOST = "127.0.0.1"
_START_S = 180.0
_ANSWER_S = 120.0


class Contender(Protocol):
    """An engine that embeds texts."""

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors."""

    def time(self, batches: list[list[str]], seconds: float) -> list[float]:
        """Embed batches until the time is over; return the seconds of each."""

    def close(self) -> None:
        """End the process."""


class InProcess:
    """An engine without HTTP: `worker.py` in a process."""

    def __init__(self, name: str, settings: Mapping[str, Any], log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.embeddings.worker", name, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def embed(self, texts: list[str]) -> list[list[float]]:
        return self._ask({"embed": texts})

    def time(self, batches: list[list[str]], seconds: float) -> list[float]:
        return self._ask({"batches": batches, "seconds": seconds})

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, command: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a log line of the engine
                return json.loads(line)
        raise RuntimeError(f"The worker ended with {self._process.wait()}; see its log.")


class Server:
    """A server with `/v1/embeddings`, asked over one connection."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            self._port = int(probe.getsockname()[1])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._connection = http.client.HTTPConnection(_HOST, self._port, timeout=_ANSWER_S)
        self._wait(log)

    def embed(self, texts: list[str]) -> list[list[float]]:
        self._connection.close()  # servers close idle connections: each turn opens its own
        return self._post(texts)

    def time(self, batches: list[list[str]], seconds: float) -> list[float]:
        self._connection.close()
        return time_batches(self._post, batches, seconds)

    def _post(self, texts: list[str]) -> list[list[float]]:
        body = json.dumps({"model": "model", "input": texts, "encoding_format": "float"})
        self._connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"The server answered {response.status}: {answer[:500]!r}")
        return [entry["embedding"] for entry in json.loads(answer)["data"]]

    def close(self) -> None:
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self, log: Path) -> None:
        deadline = time.perf_counter() + _START_S
        while time.perf_counter() < deadline and self._process.poll() is None:
            try:
                self.embed(["ready"])
            except (OSError, RuntimeError, http.client.HTTPException):
                time.sleep(0.1)
            else:
                return
        self.close()
        raise RuntimeError(f"The server did not start; see {log}.")
