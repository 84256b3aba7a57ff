"""
A worker's keeper on a node of a Ray cluster: an actor that holds the resources and starts the worker beside itself.

The worker is a process of its own, exactly as on one machine (`cluster.local`). It ends when the actor does, however
that ends, so that what Ray believes to be free is free. Only this file and `ray_bridge` know Ray.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import ray

from headrace import __version__
from headrace.cluster.launcher import Handle, LaunchFailed, WorkerPhase
from headrace.cluster.local import WORKER_COMMAND, LocalLauncher, ProcessOptions
from headrace.cluster.ray_messages import CHUNK_BYTES, ActorAssignment
from headrace.cluster.ray_resources import NodeResources, notices_of_grant
from headrace.cluster.worker_logs import WorkerLogs
from headrace.runner.cpu import default_threads

_NODE_FOLDER = "nodes"


class WorkerActor:
    """
    One worker on this node.

    Answers are plain JSON values: the platform may be a little older or newer. Nothing raises for what is the worker's
    own fault; that is in its log.
    """

    def __init__(self, assignment: bytes, granted: bytes) -> None:
        self._assignment = msgspec.json.decode(assignment, type=ActorAssignment)
        self._granted = msgspec.json.decode(granted, type=NodeResources)
        self._name = self._assignment.spec.name
        root = Path(self._assignment.folder) if self._assignment.folder else _cache_folder() / _NODE_FOLDER
        self._folder = root / self._assignment.namespace / "workers"
        self._launcher = LocalLauncher(
            self._folder,
            cache_folder=root / "artifacts",
            environment=os.environ,
            command=self._assignment.command or WORKER_COMMAND,
            options=ProcessOptions(host=_node_address(), token=self._assignment.token, dies_with_parent=True),
        )
        self._logs = WorkerLogs(self._folder)
        self._starting = asyncio.Lock()
        self._handle: Handle | None = None

    async def start(self) -> dict[str, Any]:
        """Start the worker; again, tell of the one that was started. `refusal` says why it cannot be."""
        if self._assignment.version != __version__:
            return {"refusal": f"This node has Headrace {__version__}, the platform {self._assignment.version}."}
        async with self._starting:
            if self._handle is None:
                try:
                    self._handle = await self._launcher.start(
                        replace(self._assignment.spec, threads=self._num_threads())
                    )
                except LaunchFailed as error:
                    return {"refusal": str(error)}
        node = ray.get_runtime_context().get_node_id()
        resources = self._assignment.spec.resources
        notices = list(notices_of_grant(resources, self._granted)) if resources is not None else []
        facts = {"node": node, "log_position": self._assignment.log_position, "notices": notices}
        return {"url": self._handle.url, "token": self._assignment.token, "facts": facts}

    def _num_threads(self) -> int:
        """As many as the CPUs that are reserved, at most the cores of this node."""
        return max(1, min(int(self._granted.num_cpus), default_threads()))

    async def look(self, position: int) -> dict[str, Any]:
        """
        What the worker is doing, without asking it, and the next piece of its log.

        Args:
            position: of the first byte that is wanted, counted from this worker's own beginning.
        """
        if self._handle is None:
            await self.start()
        if self._handle is None:
            return {"phase": WorkerPhase.EXITED.value, "position": position, "log": b"", "is_log_end": True}
        seen = await self._launcher.look(self._name, self._handle)
        start, log = await asyncio.to_thread(self._logs.read_bytes, self._name, position, CHUNK_BYTES)
        return {
            "phase": seen.phase.value,
            "exit_code": seen.exit_code,
            "ended_in": None if seen.ended_in is None else seen.ended_in.value,
            "notices": list(seen.notices),
            "position": start,
            "log": log,
            "is_log_end": len(log) < CHUNK_BYTES,
        }

    async def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after `grace_s`, also when nobody asks any more."""
        if self._handle is not None:
            await self._launcher.stop(self._name, self._handle, grace_s=grace_s)

    async def leave(self) -> None:
        """Remove the folder of a worker that has exited."""
        await self._launcher.forget(self._name)


def all_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, in Ray's words, also those that are lost."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _node_address() -> str:
    """By which the other nodes reach this one."""
    here = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in all_nodes() if node["NodeID"] == here))


def _cache_folder() -> Path:
    from headrace.models.sources import home_folder

    return home_folder(os.environ)
