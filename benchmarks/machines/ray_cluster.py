"""A Ray cluster between the machines: a head on a machine of its own, and a node on each of the others."""

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.harness.platforms import until
from benchmarks.machines.network import Machine

from headrace.platform.cluster.ray_head import PATIENT, QUIET, agent_flags

_PORT: Final = 6379
_REDIS_PORT: Final = 6380
_NODE: Final = ("--num-cpus=64", f"--memory={256 << 30}")
"""The resources that a node claims: more than the workers of a run reserve, so that one node can take them all."""
_OBJECT_STORE: Final = f"--object-store-memory={80 << 20}"
_ANY_PORT: Final = ("--min-worker-port=0", "--max-worker-port=0")
"""Of Ray itself, so that none is that of an agent."""
_AGAIN: Final = "while :; do {command}; sleep 1; done"
"""Runs a node as a service manager does: Ray ends one that was lost for a time, and it joins as another one."""
_HEALTH: Final = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
"""
A node that is silent for some twenty seconds is lost, by default for 65; and a node goes on without the head for ten
minutes, by default for one.
"""


class RayCluster:
    """The nodes of a cluster, each started by `join`."""

    def __init__(self, folder: Path, head: Machine, redis: Machine | None) -> None:
        """The control service keeps its state in Redis on the machine `redis`, or in memory if there is none."""
        self.head = head
        self.address = f"{head.address}:{_PORT}"
        self.access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ray-token-of-this-run"}
        self._folder = folder
        self._sessions = folder / "ray"
        self._sessions.mkdir()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._storage: dict[str, str] = {}
        if redis is not None:
            self._start_redis(redis)
            self._storage = {"RAY_REDIS_ADDRESS": f"{redis.address}:{_REDIS_PORT}"}

    def _start_redis(self, machine: Machine) -> None:
        flags = ("--bind", machine.address, "--port", str(_REDIS_PORT), "--protected-mode", "no", "--save", "")
        with (self._folder / "redis.log").open("wb") as log:
            subprocess.Popen(
                [*machine.inside, "redis-server", *flags, "--dir", self._folder], stdout=log, stderr=subprocess.STDOUT
            )
        until(lambda: b"Ready to accept" in (self._folder / "redis.log").read_bytes(), "Redis accepts connections")

    def join(self, machine: Machine) -> None:
        """Start the node of a machine, again and again if it ends; that of the head takes no workers."""
        own = self._folder / machine.name / "ray"  # of one path on all machines, which share a file system here
        own.mkdir(parents=True, exist_ok=True)
        subprocess.run([*machine.inside, "mount", "--bind", own, self._sessions], check=True)
        is_head = machine is self.head
        role = (
            ("--head", f"--port={_PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self._sessions}")
            if is_head
            else (f"--address={self.address}", *_NODE)
        )
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += [*role, *_ANY_PORT, _OBJECT_STORE, *agent_flags(), f"--node-ip-address={machine.address}"]
        with (self._folder / f"{machine.name}-ray.log").open("ab") as log:
            self._nodes[machine.name] = subprocess.Popen(
                [*machine.inside, "sh", "-c", _AGAIN.format(command=shlex.join(command))],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment(machine), **(self._storage if is_head else {})},
            )

    def _environment(self, machine: Machine) -> dict[str, str]:
        home = {"HEADRACE_HOME": str(self._folder / machine.name / "home")}
        return {**os.environ, **QUIET, **PATIENT, **_HEALTH, **self.access, **home}

    def left(self, machine: Machine) -> None:
        """Forget the node of a machine that has lost its power."""
        if (node := self._nodes.pop(machine.name, None)) is not None:
            node.kill()
            node.wait()

    def wait(self, number: int) -> None:
        """Wait until the cluster has so many nodes besides the head."""
        until(lambda: self._count() >= number, f"Ray has {number} nodes")

    def _count(self) -> int:
        """Count the nodes whose log says that they run."""
        found = 0
        for path in self._folder.glob("*-ray.log"):
            with suppress(OSError):
                found += path.name != f"{self.head.name}-ray.log" and b"Ray runtime started" in path.read_bytes()
        return found
