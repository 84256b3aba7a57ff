"""One real server with the real small model for the whole session, started as a user would."""

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.waiting import WAIT_S

PORTS = range(11_000, 16_000)
"""Below those that our own servers choose from, and those that Linux gives to clients: none is taken meanwhile."""
_RESERVED = ExitStack()
"""Abstract sockets, one for each port that was handed out, closed when this process ends."""
atexit.register(_RESERVED.close)


@dataclass(frozen=True)
class Served:
    """A running `headrace serve`."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT_S)


def headrace_command() -> str:
    return shutil.which("headrace", path=str(Path(sys.executable).parent)) or "headrace"


def free_port() -> int:
    """A port that is free, and that no other test on this machine takes before this process ends."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0headrace-tests-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _RESERVED.enter_context(reservation)
        return port
    raise AssertionError(f"no free port in {PORTS}")


def ending_with_us() -> list[str]:
    """Command prefix by which a server is stopped in order when this process ends, even by SIGKILL."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "TERM"] if program else []


def serve(
    model: str | Path, folder: Path, *flags: str, env: dict[str, str] | None = None, command: Sequence[str] = ()
) -> Served:
    """Start a server and wait until `/ping` is 200; the log lies in `folder`."""
    port = free_port()
    log_path = folder / f"serve-{port}.log"
    program = command or (headrace_command(),)
    arguments = [*ending_with_us(), *program, "serve", str(model), "--port", str(port), *flags]
    with log_path.open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    served = Served(f"http://127.0.0.1:{port}", process, log_path)
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            if plain_http.get(f"{served.url}/ping", timeout=WAIT_S).status_code == 200:
                return served
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(f"no server: {log_path.read_text()}")


@pytest.fixture(scope="session")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`headrace serve` on the real model with default settings; its threads spin, which those of other tests do not."""
    folder, policy = tmp_path_factory.mktemp("serve"), {"OMP_WAIT_POLICY": "ACTIVE"}
    served = serve(smollm2_path, folder, "--served-model-name", "smollm2", env=policy)
    yield served
    served.stop()
