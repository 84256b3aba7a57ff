"""
The actor of a worker on a Ray node: it holds the worker's resources and starts the worker as a process beside it.

The worker is the same process as on one machine (`cluster.local`), but the kernel kills it when its actor ends, so that
resources that Ray counts as free are really free. Only this module and `ray_bridge` import Ray.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import ray

from headrace import __version__
from headrace.core.gpus import VISIBLE_VARIABLE
from headrace.inference.runner.cpu import default_threads
from headrace.platform.cluster.launcher import Handle, LaunchFailed, WorkerPhase
from headrace.platform.cluster.local import WORKER_COMMAND, LocalLauncher, ProcessOptions
from headrace.platform.cluster.ray_messages import CHUNK_BYTES, ActorAssignment
from headrace.platform.cluster.ray_resources import NodeResources, notices_of_grant
from headrace.platform.cluster.worker_logs import WorkerLogs

_NODE_FOLDER = "nodes"


class WorkerActor:
    """
    The actor of one worker on this node.

    Results are plain JSON values, because the platform may have another version. Failures of the worker itself are not
    raised; they are in its log.
    """

    def __init__(self, assignment: bytes, granted: bytes) -> None:
        self._assignment = msgspec.json.decode(assignment, type=ActorAssignment)
        self._granted = msgspec.json.decode(granted, type=NodeResources)
        self._name = self._assignment.spec.name
        root = Path(self._assignment.folder) if self._assignment.folder else _cache_folder() / _NODE_FOLDER
        self._folder = root / self._assignment.namespace / "workers"
        here = ray.get_runtime_context().get_node_id()
        # Other nodes reach this one at the address that Ray knows.
        address = next(str(node["NodeManagerAddress"]) for node in all_nodes() if node["NodeID"] == here)
        self._launcher = LocalLauncher(
            self._folder,
            cache_folder=root / "artifacts",
            # Ray names the reserved GPUs in the environment, but hides none if none is reserved.
            environment={
                **os.environ,
                **self._assignment.isolation,
                **({} if self._granted.num_gpus else {VISIBLE_VARIABLE: ""}),
            },
            command=self._assignment.command or WORKER_COMMAND,
            options=ProcessOptions(host=address, token=self._assignment.token, dies_with_parent=True),
        )
        self._logs = WorkerLogs(self._folder)
        self._starting = asyncio.Lock()
        self._handle: Handle | None = None

    async def start(self) -> dict[str, Any]:
        """Start the worker, or describe the one already started; `refusal` is the reason of a failure."""
        if self._assignment.version != __version__:
            return {"refusal": f"This node has Headrace {__version__}; the platform has {self._assignment.version}."}
        async with self._starting:
            if self._handle is None:
                # The reserved CPUs, at most the cores of this node.
                threads = max(1, min(int(self._granted.num_cpus), default_threads()))
                try:
                    self._handle = await self._launcher.start(replace(self._assignment.spec, threads=threads))
                except LaunchFailed as error:
                    return {"refusal": str(error)}
        node = ray.get_runtime_context().get_node_id()
        resources = self._assignment.spec.resources
        notices = list(notices_of_grant(resources, self._granted)) if resources is not None else []
        facts = {"node": node, "log_position": self._assignment.log_position, "notices": notices}
        return {"url": self._handle.url, "token": self._assignment.token, "facts": facts}

    async def look(self, position: int) -> dict[str, Any]:
        """
        Observe the worker without `/ping`, and return the next chunk of its log.

        Args:
            position: position of the chunk, counted from this worker's first byte.
        """
        if self._handle is None:
            await self.start()
        if self._handle is None:
            return {"phase": WorkerPhase.EXITED.value, "position": position, "log": b"", "is_log_end": True}
        observation = await self._launcher.look(self._name, self._handle)
        start, log = await asyncio.to_thread(self._logs.read_bytes, self._name, position, CHUNK_BYTES)
        chunk = {"position": start, "log": log, "is_log_end": len(log) < CHUNK_BYTES}
        return {**msgspec.to_builtins(observation), **chunk}

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace_s`, without further calls."""
        if self._handle is not None:
            await self._launcher.stop(self._name, self._handle, grace_s=grace_s)

    async def remove_folder(self) -> None:
        await self._launcher.forget(self._name)


def all_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the cluster as Ray describes them, including lost nodes."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _cache_folder() -> Path:
    from headrace.inference.models.sources import home_folder

    return home_folder(os.environ)
