"""Launchers for tests with workers without models: on this machine, or on a Ray cluster on it."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from headrace.core.errors import Unavailable
from headrace.core.processes import ProcessId, process_id
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.launcher import (
    Handle,
    Launcher,
    Observation,
    ResourceRequest,
    StartPending,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.machine import QUESTION, MachineValues, OwnMachine
from headrace.platform.cluster.machines import MachinesLauncher, Presence
from headrace.platform.cluster.placement import Room
from headrace.platform.cluster.ray_launcher import RayLauncher
from headrace.platform.cluster.ray_link import ClusterUnreachable
from headrace.platform.cluster.ray_messages import Connection
from headrace.platform.cluster.worker_exit import is_exit_line
from headrace.platform.cluster.worker_files import read_value
from headrace.platform.cluster.worker_logs import WorkerLogs
from tests.waiting import WAIT_S, pauses

STUB = (sys.executable, "-S", "-P", str(Path(__file__).parent / "stub_worker.py"))
LONG = pytest.mark.timeout(1200)
"""Only one process of the suite can have a cluster at a time."""
SMALL = ResourceRequest(num_cpus=0.1)


@dataclass(frozen=True)
class Site:
    """A launcher, a factory of further ones, and the folder of its workers."""

    launcher: Launcher
    another: Callable[[], Launcher]
    folders: Path
    """The folder of the workers where they run."""
    logs: WorkerLogs
    """The logs as the platform reads them."""

    def folder(self, name: str) -> Path:
        return self.folders / name

    def process(self, name: str) -> ProcessId:
        handle = read_value(self.folder(name) / "handle.json", Handle)
        assert handle is not None
        return ProcessId(**handle.facts["process"])

    def variables(self, name: str) -> dict[str, str]:
        """Return the environment with which a worker's process was started."""
        text = Path(f"/proc/{self.process(name).pid}/environ").read_text()
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)

    def child(self, name: str) -> ProcessId:
        """Return the processes that a worker has started."""
        child = process_id(int((self.folder(name) / "child").read_text()))
        assert child is not None
        return child

    def said(self, name: str) -> list[str]:
        """The lines that a worker has written itself."""
        return [event.message for event in self.logs.read(name) if not is_exit_line(event.message)]

    def ends(self, name: str) -> list[dict[str, object]]:
        """The lines about the ends of the processes of a worker."""
        return [json.loads(event.message) for event in self.logs.read(name) if is_exit_line(event.message)]

    async def healthy(self, name: str, *, resources: ResourceRequest = SMALL, **script: object) -> Handle:
        handle = await started(self.launcher, spec(name, resources=resources, **script))
        (self.folder(name) / "healthy").touch()
        await seen_as(self.launcher, name, handle, WorkerPhase.READY)
        return handle

    async def end(self) -> None:
        """Kill all workers."""
        for name, handle in (await self.launcher.known()).items():
            await self.launcher.stop(name, handle, grace_s=0)
            await seen_as(self.launcher, name, handle, WorkerPhase.EXITED)
        await self.launcher.close()


@dataclass(frozen=True, kw_only=True)
class MachinesSite(Site):
    """A launcher over two machines, and what the one that leads knows of the other."""

    presence: Presence
    answers: set[str] = field(default_factory=lambda: {"other:1"})
    """The machines that answer."""


def local_site(folder: Path, host: HostResources | None = None) -> Site:
    def launcher() -> LocalLauncher:
        environment = {"PATH": os.environ["PATH"]}
        return LocalLauncher(
            folder / "workers",
            cache_folder=folder / "cache",
            environment=environment,
            command=STUB,
            ping_timeout_s=WAIT_S,
            host=host,
        )

    return Site(launcher(), launcher, folder / "workers", WorkerLogs(folder / "workers"))


def machines_site(folder: Path, clock: Callable[[], float] = time.monotonic) -> MachinesSite:
    """Make a site whose workers start on another machine than the one that leads, while the other one answers."""
    own, other = (local_site(folder / name, HostResources(num_cores=1)) for name in ("own", "other"))
    values = MachineValues(folder=folder / "other", environment={"URL": "of the other"})
    answering = machine(other.another(), "other:1", values)

    async def ask(machine: str, question: str, argument: object, *, timeout_s: float) -> Any:
        assert (machine, question) == ("other:1", QUESTION)
        if not made.answers:
            raise Unavailable("no answer")
        asked = msgspec.json.decode(msgspec.json.encode(argument))
        return msgspec.json.decode(msgspec.json.encode(await answering.answer(asked)))

    def launcher() -> MachinesLauncher:
        leads = machine(own.another(), "own:1", values)
        room = leads.room

        async def full() -> Room:
            if made.answers:
                raise Unavailable("no room")
            return await room()

        leads.room = full  # type: ignore[method-assign]
        return MachinesLauncher(leads, presence, ask, clock)

    presence = Presence("own:1", max_gap_s=1e9, clock=clock)
    presence.update(["own:1", "other:1"])
    made = MachinesSite(launcher(), launcher, other.folders, other.logs, presence=presence)
    return made


def machine(local: Launcher, name: str, values: MachineValues) -> OwnMachine:
    assert isinstance(local, LocalLauncher)
    return OwnMachine(local, name, memory_bytes=1 << 30, values=values)


def ray_site(folder: Path, address: str, **variables: str) -> Site:
    """Make a site; `variables` are added to the platform's environment."""

    def launcher() -> RayLauncher:
        return ray_launcher(folder, address, variables)

    on_node = folder / "node" / folder.name / "workers"
    return Site(launcher(), launcher, on_node, WorkerLogs(folder / "workers"))


def ray_launcher(
    folder: Path, address: str, variables: Mapping[str, str] = MappingProxyType({}), **options: float
) -> RayLauncher:
    (folder / "workers").mkdir(exist_ok=True)
    return RayLauncher(
        folder / "workers",
        connection=Connection(address=address, namespace=folder.name, answer_s=WAIT_S),
        environment={**os.environ, **variables},
        command=STUB,
        node_folder=str(folder / "node"),
        **{"connect_s": WAIT_S, "ping_timeout_s": WAIT_S, **options},  # loading Ray alone takes long on a busy machine
    )


def spec(name: str, *, resources: ResourceRequest = SMALL, **script: object) -> WorkerSpec:
    return WorkerSpec(name=name, environment={"STUB": json.dumps(script)}, resources=resources)


async def started(launcher: Launcher, wanted: WorkerSpec) -> Handle:
    """Start a worker, and like the reconciler retry while the cluster does not answer."""
    deadline_s, waits_for = time.monotonic() + WAIT_S, ""
    while time.monotonic() < deadline_s:
        try:
            return await launcher.start(wanted)
        except (StartPending, ClusterUnreachable) as error:
            waits_for = str(error)
        await asyncio.sleep(0.02)
    raise AssertionError(waits_for)


async def seen_as(launcher: Launcher, name: str, handle: Handle, phase: WorkerPhase) -> Observation:
    """Poll until a worker is in a phase."""
    deadline_s, pause_s = time.monotonic() + WAIT_S, pauses()
    while (seen := await launcher.poll(name, handle)).phase is not phase:
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(next(pause_s))
    return seen


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline_s, pause_s = time.monotonic() + WAIT_S, pauses()
    while not await is_so():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(next(pause_s))
