"""
The launcher of workers on the nodes of a Ray cluster.

Ray chooses a node with free resources and reports the end of actors and nodes. Readiness is checked by `/ping` from
this machine, because the gateway must reach the worker from here. The log of a worker is copied to this platform's
folder at each observation, so that it survives the loss of the node.
"""

import asyncio
import base64
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace import __version__
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import (
    Handle,
    LaunchFailed,
    Observation,
    ResourceRequest,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.local import last_error_line
from headrace.platform.cluster.ray_head import RayHead
from headrace.platform.cluster.ray_link import CONNECT_S, ClusterUnreachable, RayLink
from headrace.platform.cluster.ray_messages import ActorAssignment, Connection, NodeLost, WorkerGone
from headrace.platform.cluster.worker_exit import exit_line
from headrace.platform.cluster.worker_files import WorkerFiles, read_value, worker_files, write_value
from headrace.platform.cluster.worker_logs import WorkerLogs
from headrace.platform.cluster.worker_ping import PING_TIMEOUT_S, pinged_phase
from headrace.serving.settings.code_settings import ISOLATION_VARIABLES

_CALL_MARGIN_S: Final = 3.0
"""Added to an actor's timeout, so that the bridge's own error arrives first."""
_KNOWN_MARGIN_S: Final = 20.0
"""The same for calls of all actors."""
_MAX_CHUNKS: Final = 64
"""Log chunks copied in one observation: 64 MiB, all that a node keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The `Handle.facts` of this launcher's workers."""

    node: str
    """Ray's id of the node."""
    log_position: int
    notices: tuple[str, ...] = ()
    """Resources that the cluster does not have, in sentences."""


class RayLauncher:
    """A `Launcher` that runs workers beside Ray actors."""

    name = "ray"

    def __init__(
        self,
        folder: Path,
        *,
        connection: Connection,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
        node_folder: str = "",
        ping_timeout_s: float = PING_TIMEOUT_S,
        connect_s: float = CONNECT_S,
        head: RayHead | None = None,
    ) -> None:
        """
        Create a launcher for the workers of one namespace. It connects to the cluster on first use.

        Args:
            folder: contains a folder for each worker, with the copy of its log.
            connection: the cluster, and this platform's namespace on it; its address is ignored with `head`.
            environment: this process's environment.
            command: replaces `headrace worker` on the nodes.
            node_folder: folder for workers and artifacts on the nodes. Empty: in the user's cache folder there.
            ping_timeout_s: the timeout of `/ping`.
            connect_s: longest wait of a call for the connection; the attempt goes on in the background.
            head: a cluster on this machine, started on first use if it does not run.
        """
        self._folder = folder
        self._namespace = connection.namespace
        self._call_s = connection.answer_s + _CALL_MARGIN_S
        self._known_s = connection.answer_s + _KNOWN_MARGIN_S
        log = folder.parent / "ray.log"
        self._head = head
        self._isolation = {name: environment[name] for name in ISOLATION_VARIABLES if name in environment}
        self._link = RayLink(connection, environment=environment, log=log, connect_s=connect_s, head=head)
        self._command = tuple(command)
        self._node_folder = node_folder
        self._ping_timeout_s = ping_timeout_s
        self._logs = WorkerLogs(folder)
        self._appending = threading.Lock()

    async def start(self, spec: WorkerSpec) -> Handle:
        """Start a worker on a node with free resources; see `Launcher.start`. Raises `ClusterUnreachable`, too."""
        if spec.containers:
            raise LaunchFailed(
                "A model with several containers needs the local cluster (--cluster local). Create a model for each."
            )
        text = await asyncio.to_thread(self._prepare, spec)
        if self._head is not None:
            self._head.is_empty = False
        resources = msgspec.to_builtins(spec.resources or ResourceRequest(num_cpus=1.0))
        started = await self._link.call("start", self._call_s, name=spec.name, assignment=text, resources=resources)
        handle = _handle(started)
        await asyncio.to_thread(self._store_handle, self._files(spec.name), handle)
        return handle

    async def poll(self, name: str, handle: Handle) -> Observation:
        files = self._files(name)
        ended = await asyncio.to_thread(read_value, files.report, _Ended)
        if ended is not None and ended.handle == handle:
            return ended.seen
        current = await asyncio.to_thread(read_value, files.handle, Handle)
        if current is not None and current != handle:
            return Observation(phase=WorkerPhase.EXITED)
        try:
            observation = await self._look(name, handle)
        except WorkerGone as error:
            message = f"the node was lost, or Ray ended the worker: {error}."
            seen = Observation(phase=WorkerPhase.EXITED, is_blameless=isinstance(error, NodeLost))
            return await self._ended(name, handle, seen, message=message)
        except ClusterUnreachable:
            # a worker that answers `/ping` is healthy even if the cluster is unreachable
            observation = Observation(phase=WorkerPhase.STARTING, notices=_facts(handle).notices)
        if observation.phase is WorkerPhase.EXITED:
            return await self._ended(name, handle, observation)
        if observation.phase is not WorkerPhase.FETCHING:
            phase = await pinged_phase(files.ready, handle.url, self._ping_timeout_s)
            return Observation(phase=phase, notices=observation.notices)
        return observation

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Send SIGTERM now; the node sends SIGKILL after `grace_s`."""
        current = await asyncio.to_thread(read_value, self._files(name).handle, Handle)
        if current is not None and current != handle:
            return
        try:
            await self._link.call("stop", self._call_s, name=name, grace_s=grace_s)
        except WorkerGone:
            return

    async def known(self) -> dict[str, Handle]:
        """Return this platform's running workers on the cluster; exited ones are removed from it."""
        if self._head is not None and self._head.is_empty:
            return {}  # so that a platform that stops now does not wait for Ray
        started: dict[str, Any] = await self._link.call("known", self._known_s)
        handles = {name: _handle(facts) for name, facts in started.items()}
        observations = await asyncio.gather(*(self.poll(name, handle) for name, handle in handles.items()))
        observed = zip(handles.items(), observations, strict=True)
        alive = {
            name: handle for (name, handle), observation in observed if observation.phase is not WorkerPhase.EXITED
        }
        for name, handle in alive.items():  # one that started after `start` gave up waiting has no handle here yet
            await asyncio.to_thread(self._store_handle, self._files(name), handle)
        return alive

    async def forget(self, name: str) -> None:
        files = self._files(name)
        handle = await asyncio.to_thread(read_value, files.handle, Handle)
        if handle is not None and (await self.poll(name, handle)).phase is not WorkerPhase.EXITED:
            get_logger().warning("worker.not_forgotten", worker=name, message="It still runs.")
            return
        await asyncio.to_thread(shutil.rmtree, files.folder, ignore_errors=True)

    async def close(self) -> None:
        await self._link.close()

    def _prepare(self, spec: WorkerSpec) -> str:
        """Create the worker's folder; returns the assignment for its actor, in JSON."""
        try:
            self._files(spec.name).folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            assignment = ActorAssignment(
                spec=spec,
                token=secrets.token_urlsafe(24),
                namespace=self._namespace,
                log_position=self._logs.end_position(spec.name),
                version=__version__,
                command=self._command,
                isolation=self._isolation,
                folder=self._node_folder,
            )
            return msgspec.json.encode(assignment).decode()
        except (OSError, ValueError) as error:
            raise LaunchFailed(f"The worker {spec.name} cannot be started: {error}.") from error

    def _store_handle(self, files: WorkerFiles, handle: Handle) -> None:
        """Store the handle, and remove the files of an earlier worker of the same name."""
        if read_value(files.handle, Handle) == handle:
            return
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # another machine may have started it
        for left_over in (files.report, files.ready):
            left_over.unlink(missing_ok=True)
        write_value(files.handle, handle)

    async def _look(self, name: str, handle: Handle) -> Observation:
        """Observe a worker through its actor, and copy the rest of its log."""
        facts = _facts(handle)
        offset = facts.log_position
        for _ in range(_MAX_CHUNKS):
            position = await asyncio.to_thread(self._logs.end_position, name)
            answer = await self._link.call(
                "look", self._call_s, name=name, position=max(position - offset, 0), node=facts.node
            )
            await asyncio.to_thread(self._append, name, answer, offset)
            if answer["is_log_end"]:
                break
        seen = msgspec.convert(answer, Observation)
        return replace(seen, notices=(*facts.notices, *seen.notices))

    def _append(self, name: str, answer: dict[str, Any], offset: int) -> None:
        content = base64.b64decode(answer["log"])
        if content:
            with self._appending:
                self._logs.append(name, answer["position"] + offset, content)
                self._logs.trim(name)

    async def _ended(self, name: str, handle: Handle, seen: Observation, *, message: str = "") -> Observation:
        """Store the worker's exit, then remove it from the cluster."""
        error_line = await asyncio.to_thread(last_error_line, self._logs, name, _facts(handle).log_position)
        was_lost = bool(message) and not error_line
        if message:  # nothing on the node could write the line
            line = exit_line(None, message, phase="", now_s=time.time())
            await asyncio.to_thread(self._logs.add_line, name, line)
        seen = replace(seen, phase=WorkerPhase.EXITED, message=error_line or message, was_lost=was_lost)
        files = self._files(name)
        if files.folder.is_dir():
            await asyncio.to_thread(write_value, files.report, _Ended(handle=handle, seen=seen))
        try:
            await self._link.call("finish", self._call_s, name=name)
        except ClusterUnreachable as error:
            get_logger().warning("worker.not_put_away", worker=name, message=str(error))
        return seen

    def _files(self, name: str) -> WorkerFiles:
        return worker_files(self._folder, name)


class CopiedLogs:
    """The folders in which a machine has copies of logs from the time when it led; their workers are on the cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def known(self) -> dict[str, Handle]:
        """Return no worker: none ends with its folder."""
        return {}

    async def forget(self, name: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The end of a worker, stored here because the cluster forgets it."""

    handle: Handle
    seen: Observation


def _handle(started: dict[str, Any]) -> Handle:
    return msgspec.convert({**started, "launcher": RayLauncher.name}, Handle)


def _facts(handle: Handle) -> _Facts:
    return msgspec.convert(handle.facts, _Facts)
