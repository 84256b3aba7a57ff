"""
A Ray cluster of one node on this machine, for `--cluster ray`.

It listens on loopback and requires a token that only this user can read. Its port, token and process id are in its
folder, so that the next platform finds it again. Methods block; call them from a thread.
"""

import os
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

from headrace.core.processes import ProcessId, is_running, is_session_running, kill_session, reap, spawn
from headrace.inference.runner.cpu import default_threads
from headrace.platform.cluster.local import worker_environment
from headrace.platform.cluster.ports import PLATFORM_PORTS, free_ports
from headrace.platform.cluster.worker_files import LOOPBACK, read_value, write_atomically, write_value

_COMMAND: Final = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block")
_WORKERS_PER_CORE: Final = 4
"""Workers that may share a core: idle workers leave theirs to the others, as without a cluster."""
_OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""About the minimum that Ray accepts; Headrace stores nothing in it."""
_MAX_SESSIONS_CHARACTERS: Final = 40
"""Longest path of Ray's session folder: paths of its sockets are about 65 characters longer, of 107 (`unix(7)`)."""
_OPEN: Final = "r"
"""Ray makes its folder writable for all users, so it is put into a private one."""
_POLL_S: Final = 0.05
_NUM_TAIL_BYTES: Final = 400
QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "PYTHONUNBUFFERED": "1"}
"""Disables Ray's usage reports."""
ON_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Without it Ray replaces 127.0.0.1 by this machine's network address, where such a cluster does not listen."""
_AGENTS: Final = ("dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export", "runtime-env-agent")
"""Agents that get their ports from us: a node waits at most 15 s for a port that the agent chooses (Ray #65983)."""
PATIENT: Final = {"RAY_agent_register_timeout_ms": "300000", "RAY_worker_register_timeout_seconds": "300"}
"""Start timeouts of Ray's processes: a busy machine exceeds the defaults, 30 and 60 s."""
_STEADY: Final = {"RAY_memory_monitor_refresh_ms": "0", "RAY_health_check_timeout_ms": "60000"}
"""
Ray's memory monitor kills the actor of a worker once all programs of the machine together use 95 % of its memory; here
that is the kernel's task, as without Ray (`worker._OOM_SCORE`). A busy node is not a lost one: its end is seen by its
process, so its health checks (default 10 s) may take long.
"""
_NO_SPARE_WORKERS: Final = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}


class HeadFailed(Exception):
    """Ray does not start on this machine; the message has its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The state that outlives the platform."""

    port: int
    sessions: str
    """Folder of Ray's sockets and logs, accessible to this user only."""
    process: ProcessId | None = None


class RayHead:
    """A head node on this machine, and its folder."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        """
        Prepare the node; nothing is started yet.

        `folder` has its state, token and log, and is created on the first start; of `environment`, that of this
        process, Ray gets the safe part (`worker_environment`).
        """
        self._folder = folder
        self._log = folder / "log.txt"
        self._environment = environment
        self._lock = threading.Lock()
        self._is_ended = False
        self.is_empty = False
        """True if this object started the node and no worker has been started on it since."""

    @property
    def address(self) -> str:
        """The `host:port` of its control service; the port is 0 before the first start."""
        return f"{LOOPBACK}:{state.port if (state := self._state()) is not None else 0}"

    @property
    def access(self) -> dict[str, str]:
        """The environment variables with which a program may join the cluster."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._folder / "token")}

    def is_alive(self) -> bool:
        """Return whether the node runs, started by this platform or an earlier one."""
        state = self._state()
        if state is None or state.process is None:
            return False
        reap(state.process)
        return is_running(state.process)

    def start(self, *, timeout_s: float) -> None:
        """
        Start the node unless it runs already, and wait until it answers.

        Raises:
            HeadFailed: it cannot be started, or does not answer within `timeout_s`.
        """
        try:
            with self._lock:
                if self._is_ended:
                    raise HeadFailed("Ray was stopped on this machine.")
                if not self.is_alive():
                    self._start()
            self._wait(time.monotonic() + timeout_s)
        except OSError as error:
            raise HeadFailed(f"Ray cannot be started on this machine: {error}.") from error

    def end(self) -> bool:
        """Kill the node with all its workers, and remove its folder; False if there is no node."""
        with self._lock:
            self._is_ended = True
            state = self._state()
            if state is None:
                return False
            _remove(state)
            shutil.rmtree(self._folder, ignore_errors=True)
            return True

    def _start(self) -> None:
        if (before := self._state()) is not None:
            _remove(before)  # some of its processes may still run
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / "token", secrets.token_hex(32).encode())
        state = _State(port=choose_ports(1)[0], sessions=str(_sessions(self._folder)))
        write_value(self._folder / "state.json", state)
        self._log.write_bytes(b"")
        environment = {
            **worker_environment(self._environment),
            **QUIET,
            **ON_LOOPBACK,
            **_NO_SPARE_WORKERS,
            **PATIENT,
            **_STEADY,
            **self.access,
        }
        self.is_empty = True
        process = spawn([*_COMMAND, *_flags(state)], environment, self._log)
        write_value(self._folder / "state.json", replace(state, process=process))

    def _wait(self, deadline_s: float) -> None:
        while True:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if (state := self._state()) is not None and probe.connect_ex((LOOPBACK, state.port)) == 0:
                    return
            if not self.is_alive():
                raise HeadFailed(
                    f"Ray did not start on this machine: {self._last_line()}. The whole output is in {self._log}."
                )
            if time.monotonic() > deadline_s:
                raise HeadFailed(f"Ray did not start on this machine in time. Its output is in {self._log}.")
            time.sleep(_POLL_S)

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = self._log.read_bytes()[-_NUM_TAIL_BYTES:].decode(errors="replace").split("\n")
            return next((line.strip().rstrip(".") for line in reversed(lines) if line.strip()), "it ended at once")
        return "it ended at once"

    def _state(self) -> _State | None:
        return read_value(self._folder / "state.json", _State)


def _remove(state: _State) -> None:
    """Kill all processes of a node at once: after SIGTERM Ray waits half a minute for its actors. Remove its files."""
    while state.process is not None and is_session_running(state.process):
        kill_session(state.process)
        reap(state.process)
        time.sleep(_POLL_S)
    shutil.rmtree(state.sessions, ignore_errors=True)


def _flags(state: _State) -> list[str]:
    # NOTE: if Ray's client is installed its server starts too, and its default port may be in use.
    client = [f"--ray-client-server-port={choose_ports(1)[0]}"] if find_spec("grpc") is not None else []
    return [
        *client,
        *agent_flags(),
        f"--node-ip-address={LOOPBACK}",
        f"--port={state.port}",
        "--min-worker-port=0",  # free ports, chosen by the kernel
        "--max-worker-port=0",
        f"--num-cpus={default_threads() * _WORKERS_PER_CORE}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        f"--temp-dir={state.sessions}/{_OPEN}",
    ]


def _sessions(folder: Path) -> Path:
    """Create a folder for Ray's sockets: in our folder, or on a shorter path if socket paths would be too long."""
    inside = folder / "s"
    if len(os.fsencode(inside / _OPEN)) <= _MAX_SESSIONS_CHARACTERS:
        inside.mkdir(mode=0o700, exist_ok=True)
        return inside
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _MAX_SESSIONS_CHARACTERS - len(f"/headrace-12345678/{_OPEN}"):
        base = "/tmp"  # noqa: S108 -- a folder for us alone is made in it
    return Path(tempfile.mkdtemp(prefix="headrace-", dir=base))


def agent_flags() -> list[str]:
    """Return the options of `ray start` that assign ports to its agents."""
    return [f"--{agent}-port={port}" for agent, port in zip(_AGENTS, choose_ports(len(_AGENTS)), strict=True)]


def choose_ports(number: int) -> list[int]:
    """Choose distinct free ports outside the ranges of workers and clients; raises `OSError` if fewer are free."""
    ports = list(islice(free_ports(PLATFORM_PORTS), number))
    if len(ports) < number:
        raise OSError(f"fewer than {number} ports between {PLATFORM_PORTS.start} and {PLATFORM_PORTS.stop} are free")
    return ports
