"""
The process of a worker with several containers: each is a worker process of its own below it, and it is their front.

To the platform the group is one worker: one record, one URL, one `/ping`, which answers 200 while all containers are
ready. It ends with its first lost container and takes the others with it, so rollout, scaling, draining and crash
recovery are those of any worker. A kill of the group kills its containers (`dies_with_parent`).
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from headrace.core.processes import ProcessId
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.container_relay import ContainerRelay
from headrace.platform.cluster.host_resources import Given
from headrace.platform.cluster.launcher import Handle, Launcher, LaunchFailed, Observation, WorkerPhase, WorkerSpec
from headrace.platform.cluster.local import LocalLauncher, ProcessOptions
from headrace.platform.cluster.worker_exit import exit_reason
from headrace.platform.cluster.worker_files import CONTAINERS, Assignment, WorkerFiles, write_value
from headrace.serving.http.protocol import HttpLimits
from headrace.serving.http.server import http_server
from headrace.serving.http.tls import bind, server_context

_POLL_S: Final = 0.25
"""Seconds between looks at containers that start; afterwards an exit or `/ping` is the reason for one."""
_PING_TIMEOUT_S: Final = 1.5
"""Below the 2 s in which the group itself has to answer `/ping`."""
_DRAIN_S: Final = 15.0
"""Time for requests in flight at the end of the group; after a loss, those to the other containers may end."""
_STOP_GRACE_S: Final = 10.0
"""Time between SIGTERM and SIGKILL of containers; with `_DRAIN_S` less than the 30 s that the platform gives."""
_CODE_BYTES: Final = 512 << 20
"""Memory that is left to a container that runs code only."""
_LIMITS: Final = HttpLimits(max_connections=8192, receive_timeout_s=300.0, send_timeout_s=300.0)
_SIGNAL_CODE: Final = 128


@dataclass(slots=True, kw_only=True)
class _Container:
    name: str
    handle: Handle
    seen: Observation

    @property
    def process(self) -> ProcessId:
        return msgspec.convert(self.handle.facts["process"], ProcessId)


def run_group(assignment: Assignment, files: WorkerFiles) -> int:
    """Run the containers of a worker until a signal, or until one of them ends; return the exit code."""
    launcher = LocalLauncher(
        files.folder / CONTAINERS,
        cache_folder=Path(assignment.cache_folder),
        environment=os.environ,
        ping_timeout_s=_PING_TIMEOUT_S,
        options=ProcessOptions(dies_with_parent=True, given=_given(assignment)),
    )
    with (
        bind(assignment.host, assignment.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_Group(assignment, launcher, files).run(listener))


class _Group:
    def __init__(self, assignment: Assignment, launcher: Launcher, files: WorkerFiles) -> None:
        spec = self._spec = assignment.spec
        self._launcher = launcher
        self._report = files.report
        self._containers: list[_Container] = []
        self._reported: Observation | None = None
        self._reporting = asyncio.Lock()
        self._is_stopping = False
        self._changed = asyncio.Event()
        names = [container.name for container in spec.containers]
        self._relay = ContainerRelay(names, is_direct=spec.is_direct, is_ready=self._is_ready, token=assignment.token)
        tls = server_context(files.certificate if assignment.pin else None, None)
        self._server = http_server(self._relay, limits=_LIMITS, tls=tls)

    async def run(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        try:
            await self._start()
            lost = await self._watch()
            return 0 if lost is None else _code_of(lost)
        except LaunchFailed as error:
            print(f"Error: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            # First the listener closes, then requests in flight pass through the containers, which end last.
            self._server.stop(grace_s=_DRAIN_S)
            await asyncio.wait([serving])
            await self._relay.close()
            await self._end()

    async def _start(self) -> None:
        for spec in shared_out(self._spec):
            handle = await self._launcher.start(spec)
            container = _Container(name=spec.name, handle=handle, seen=Observation(phase=WorkerPhase.FETCHING))
            self._containers.append(container)
            self._relay.urls[spec.name] = handle.url
            # An exit wakes the loop at once; a container that has ended already has no descriptor, and is seen so.
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(container.process.pid)
                asyncio.get_running_loop().add_reader(descriptor, self._on_exit, descriptor)

    def _on_exit(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._server.stop_listening()
        self._relay.lost.set()
        self._changed.set()

    def _stop(self) -> None:
        self._is_stopping = True
        self._changed.set()

    async def _watch(self) -> _Container | None:
        """Report how the containers start, and return the first that ends; None after a signal."""
        while not self._is_stopping:
            self._changed.clear()
            is_ready = await self._is_ready()
            lost = next((found for found in self._containers if found.seen.phase is WorkerPhase.EXITED), None)
            if lost is not None:
                return lost
            with suppress(TimeoutError):
                async with asyncio.timeout(None if is_ready else _POLL_S):
                    await self._changed.wait()
        return None

    async def _is_ready(self) -> bool:
        """Look at all containers, report what has changed, and return whether all of them are ready."""
        if len(self._containers) < len(self._spec.containers):
            return False
        found = await asyncio.gather(*(self._launcher.poll(each.name, each.handle) for each in self._containers))
        for container, seen in zip(self._containers, found, strict=True):
            container.seen = seen
        async with self._reporting:
            report = _summary(self._containers)
            if report != self._reported:
                await asyncio.to_thread(write_value, self._report, report)
                self._reported = report
        return all(container.seen.phase is WorkerPhase.READY for container in self._containers)

    async def _end(self) -> None:
        for container in self._containers:
            await self._launcher.stop(container.name, container.handle, grace_s=_STOP_GRACE_S)
        while any(container.seen.phase is not WorkerPhase.EXITED for container in self._containers):
            for container in self._containers:
                container.seen = await self._launcher.poll(container.name, container.handle)
            await asyncio.sleep(_POLL_S / 5)
        await self._launcher.close()


def _summary(containers: Sequence[_Container]) -> Observation:
    """Return the report of a group: it fetches while one of its containers does, or has failed to."""
    phases = {each.seen.ended_in or each.seen.phase for each in containers}
    first = next((each.name for each in containers if each.seen.phase is WorkerPhase.EXITED), None)
    waiting = next((each.name for each in containers if each.seen.phase is not WorkerPhase.READY), "")
    return Observation(
        phase=WorkerPhase.FETCHING if WorkerPhase.FETCHING in phases else WorkerPhase.STARTING,
        container=waiting if first is None else first,
        notices=tuple(f"{each.name}: {notice}" for each in containers for notice in each.seen.notices),
    )


def _code_of(lost: _Container) -> int:
    """Log the end of a container, and return the exit code of the group: that of the container, as shells do."""
    seen = lost.seen
    get_logger().error("container.ended", container=lost.name, exit_code=seen.exit_code, reason=exit_reason(seen))
    if seen.message:
        print(f"Error: {seen.message}", file=sys.stderr, flush=True)
    code = seen.exit_code or 1
    return _SIGNAL_CODE - code if code < 0 else code


def shared_out(spec: WorkerSpec) -> list[WorkerSpec]:
    """
    Return the containers of a group with their shares of its cores and memory.

    Language models share both equally, after some memory for each container that runs code only. Code may use all
    cores: on an instance of AWS, too, no container has cores of its own.
    """
    models = [container for container in spec.containers if not container.runs_code]
    num_code, num_models = len(spec.containers) - len(models), max(1, len(models))
    threads, memory_bytes = spec.threads, spec.memory_bytes
    if memory_bytes is None and len(models) > 1:
        from headrace.core.host_memory import available_memory_bytes

        memory_bytes = available_memory_bytes()
    share = None if memory_bytes is None else max(memory_bytes - num_code * _CODE_BYTES, memory_bytes // 2)
    return [
        replace(
            container,
            threads=threads if threads is None or container.runs_code else max(1, threads // num_models),
            memory_bytes=None if share is None or container.runs_code else share // num_models,
            artifact_timeout_s=spec.artifact_timeout_s,
            grants=spec.grants,
        )
        for container in spec.containers
    ]


def _given(assignment: Assignment) -> Given:
    """Return the GPUs of each container: those of the group, which its language models share."""
    num_models = sum(not container.runs_code for container in assignment.spec.containers)
    num_users = assignment.given.workers_per_gpu * max(1, num_models)
    return replace(assignment.given, num_cores=0, workers_per_gpu=num_users)
