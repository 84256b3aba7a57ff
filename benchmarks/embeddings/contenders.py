"""The engines under test, each in a process of its own that waits while another one is measured."""

import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.embeddings.worker import time_batches
from benchmarks.harness.servers import HOST, Launch, ServerProcess
from benchmarks.harness.worker_process import Worker

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

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        script = Path(__file__).with_name("worker.py")
        self._worker = Worker(script, python=sys.executable, settings=settings, environment={}, log=log)
        try:
            self._worker.wait_ready(timeout_s=_START_S)
        except BaseException:
            self.close()
            raise

    def embed(self, texts: list[str]) -> list[list[float]]:
        return self._worker.ask({"embed": texts}, timeout_s=_ANSWER_S)["found"]

    def time(self, batches: list[list[str]], seconds: float) -> list[float]:
        command = {"batches": batches, "seconds": seconds}
        return self._worker.ask(command, timeout_s=seconds + _ANSWER_S)["found"]

    def close(self) -> None:
        self._worker.close()


class Server(ServerProcess):
    """A server with `/v1/embeddings`, asked over one connection."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        super().__init__(Launch(arguments=tuple(command)), log=log)
        self._connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_S)
        try:
            self.wait_until(lambda _: bool(self.embed(["ready"])), timeout_s=_START_S)
        except BaseException:
            self.close()
            raise

    def embed(self, texts: list[str]) -> list[list[float]]:
        self._connection.close()  # servers close idle connections: each turn opens its own
        return self._post(texts)

    def time(self, batches: list[list[str]], seconds: float) -> list[float]:
        self._connection.close()
        return time_batches(self._post, batches, seconds)

    def close(self) -> None:
        self._connection.close()
        super().close()

    def _post(self, texts: list[str]) -> list[list[float]]:
        body = json.dumps({"model": "model", "input": texts, "encoding_format": "float"})
        self._connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"The server answered {response.status}: {answer[:500]!r}")
        return [entry["embedding"] for entry in json.loads(answer)["data"]]
