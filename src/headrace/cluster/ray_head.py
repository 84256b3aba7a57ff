"""
A Ray cluster of one node on this machine, for `--cluster ray`: started, found again by the next platform, ended.

It listens on loopback and asks for a token that only this user can read. What has to outlive the platform (port, token,
which process it is) lies in its folder. Methods block; call them from a thread.
"""

import os
import random
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.cluster.processes import ProcessId, is_running, is_session_running, kill_session, reap, spawn
from headrace.cluster.worker_environment import worker_environment
from headrace.cluster.worker_files import LOOPBACK, read_value, write_atomically, write_value
from headrace.runner.cpu import default_threads

_COMMAND: Final = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block")
_SHARED_BY: Final = 4
"""Workers that share a core, at most: those that are idle leave theirs to the others, as without a cluster."""
_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""Nearly the least that Ray takes: nothing of ours lies in it."""
_MAX_SESSIONS_CHARACTERS: Final = 40
"""Of the folder for Ray's sessions: its sockets, some 65 characters deeper, have 107 in all. Source: `unix(7)`."""
_OPEN: Final = "r"
"""Ray lets everybody write into its folder, which therefore lies in one of ours."""
_PORTS: Final = range(16_000, 20_000)
"""Below the workers' ports and those that Linux gives to clients."""
_POLL_S: Final = 0.05
_NUM_TAIL_BYTES: Final = 400
QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "PYTHONUNBUFFERED": "1"}
"""No usage is reported to Ray's makers."""
ON_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Else Ray takes 127.0.0.1 for this machine's address on the network, where such a cluster does not listen."""
_AGENTS: Final = ("dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export", "runtime-env-agent")
"""Get their ports from us: the node waits at most 15 s for each port that an agent chooses (Ray #65983)."""
PATIENT: Final = {"RAY_agent_register_timeout_ms": "300000", "RAY_worker_register_timeout_seconds": "300"}
"""Ray gives its processes 30 and 60 s to start, which a busy machine exceeds."""
_NO_SPARE_WORKERS: Final = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}


class HeadFailed(Exception):
    """Ray does not start here; the message says what it printed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What outlives the platform."""

    port: int
    sessions: str
    """Folder in which Ray keeps its sockets and logs, for this user alone."""
    process: ProcessId | None = None


class RayHead:
    """The one node, and its folder."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        """
        Describe it; nothing happens yet.

        Args:
            folder: its state, token and log; made when it is needed.
            environment: of this process; Ray sees the harmless part of it.
        """
        self._folder = folder
        self._environment = environment
        self._lock = threading.Lock()
        self._is_over = False
        self.is_empty = False
        """Whether it was started here, and nobody has run anything in it since."""

    @property
    def address(self) -> str:
        """`host:port` of its control service; the port is 0 before the first start."""
        state = self._state()
        return f"{LOOPBACK}:{state.port if state is not None else 0}"

    @property
    def access(self) -> dict[str, str]:
        """Environment with which a program may join."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._folder / "token")}

    @property
    def log(self) -> Path:
        """What `ray start` printed."""
        return self._folder / "log.txt"

    def is_alive(self) -> bool:
        """Whether it runs: the one that was started here, or by an earlier platform."""
        state = self._state()
        if state is None or state.process is None:
            return False
        reap(state.process)
        return is_running(state.process)

    def start(self, *, patience_s: float) -> None:
        """
        Start it, unless it runs already, and wait until it answers.

        Raises:
            HeadFailed: it does not answer in time, or cannot be started at all.
        """
        try:
            with self._lock:
                if self._is_over:
                    raise HeadFailed("Ray has been ended here.")
                if not self.is_alive():
                    self._start()
            self._wait(time.monotonic() + patience_s)
        except OSError as error:
            raise HeadFailed(f"Ray cannot be started here: {error}.") from error

    def end(self) -> bool:
        """End it and all that runs in it, for good; False if there was none."""
        with self._lock:
            self._is_over = True
            state = self._state()
            if state is None:
                return False
            if state.process is not None:
                _kill(state.process)
            shutil.rmtree(state.sessions, ignore_errors=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            return True

    def _start(self) -> None:
        before = self._state()
        if before is not None:
            if before.process is not None:
                _kill(before.process)  # a part of it may live on without the others
            shutil.rmtree(before.sessions, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / "token", secrets.token_hex(32).encode())
        state = _State(port=free_ports(1)[0], sessions=str(_sessions(self._folder)))
        write_value(self._folder / "state.json", state)
        self.log.write_bytes(b"")
        environment = {
            **worker_environment(self._environment),
            **QUIET,
            **ON_LOOPBACK,
            **_NO_SPARE_WORKERS,
            **PATIENT,
            **self.access,
        }
        self.is_empty = True
        process = spawn([*_COMMAND, *_flags(state)], environment, self.log)
        write_value(self._folder / "state.json", replace(state, process=process))

    def _wait(self, deadline_s: float) -> None:
        while (state := self._state()) is None or not _answers(state.port):
            if not self.is_alive():
                raise HeadFailed(f"Ray has not started here: {self._last_line()}. All of it is in {self.log}.")
            if time.monotonic() > deadline_s:
                raise HeadFailed(f"Ray has not yet started here. What it says is in {self.log}.")
            time.sleep(_POLL_S)

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = self.log.read_bytes()[-_NUM_TAIL_BYTES:].decode(errors="replace").split("\n")
            return next((line.strip().rstrip(".") for line in reversed(lines) if line.strip()), "it ended at once")
        return "it ended at once"

    def _state(self) -> _State | None:
        return read_value(self._folder / "state.json", _State)


def _kill(process: ProcessId) -> None:
    """All of it, at once: after SIGTERM Ray waits half a minute for actors that nobody stops."""
    while is_session_running(process):
        kill_session(process)
        reap(process)
        time.sleep(_POLL_S)


def _flags(state: _State) -> list[str]:
    # NOTE: where Ray's client is installed its server starts, too, and the port that it takes by itself may be in use.
    client = [f"--ray-client-server-port={free_ports(1)[0]}"] if find_spec("grpc") is not None else []
    return [
        *client,
        *agent_flags(),
        f"--node-ip-address={LOOPBACK}",
        f"--port={state.port}",
        "--min-worker-port=0",  # free ones, chosen by the kernel
        "--max-worker-port=0",
        f"--num-cpus={default_threads() * _SHARED_BY}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        f"--temp-dir={state.sessions}/{_OPEN}",
    ]


def _sessions(folder: Path) -> Path:
    """A folder for Ray's sockets: in our own, or on a short path where theirs would be too long."""
    inside = folder / "s"
    if len(os.fsencode(inside / _OPEN)) <= _MAX_SESSIONS_CHARACTERS:
        inside.mkdir(mode=0o700, exist_ok=True)
        return inside
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _MAX_SESSIONS_CHARACTERS - len(f"/headrace-12345678/{_OPEN}"):
        base = "/tmp"  # noqa: S108 -- a folder for us alone is made in it
    return Path(tempfile.mkdtemp(prefix="headrace-", dir=base))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def agent_flags() -> list[str]:
    """Options of `ray start` that give its agents their ports."""
    return [f"--{agent}-port={port}" for agent, port in zip(_AGENTS, free_ports(len(_AGENTS)), strict=True)]


def free_ports(number: int) -> list[int]:
    """
    Choose distinct free ports outside the ranges of workers and of Linux's client ports.

    Raises:
        OSError: there are not enough.
    """
    found = list(islice(filter(_is_free, random.sample(_PORTS, len(_PORTS))), number))
    if len(found) < number:
        raise OSError(f"fewer than {number} ports between {_PORTS.start} and {_PORTS.stop} are free")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
