"""
Workers without processes: a `FakeMachine` in virtual time, with a server for each worker on the simulated network.

A worker answers an invocation with the id of the request, its own name and its endpoint. The answer leaves in two
pieces, between which the worker may die.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headrace.platform.cluster.launcher import (
    Handle,
    LaunchFailed,
    Observation,
    StartPending,
    WorkerPhase,
    WorkerSpec,
)
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine, Script, ready_after
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Connection, Network

WORK_S = (0.01, 0.6)
"""Time of an answer, shortest and longest."""
_SHARE_REFUSED = 0.5
LONG_WORK_S = (0.1, 5.0)
"""The same for what no client waits for, so that faults come in its middle."""


@dataclass
class Machine(FakeMachine):
    """The machine of all workers, which outlive the platform's processes."""

    loop: SimulatedLoop = field(kw_only=True)
    network: Network = field(kw_only=True)
    rng: random.Random = field(kw_only=True)
    executed: Counter[str] = field(default_factory=Counter)
    """Id of an attempt → how often a worker wrote its whole answer."""
    begun: set[str] = field(default_factory=set)
    """Ids of the attempts of which a gateway has received a part of the answer."""
    repeated: list[str] = field(default_factory=list)
    """Ids of the attempts that came again after that."""
    hung: dict[str, float] = field(default_factory=dict)
    """Worker → until when it answers nothing."""
    dies_in_answer: bool = False
    """The worker that answers next dies between the two pieces."""
    died_in_answer: str = ""
    """The worker that did so last."""
    working: dict[Connection, str] = field(default_factory=dict)
    """Connection → the id of the attempt that is being answered on it."""
    on_act: Callable[[str], None] = lambda _: None
    """Called when a process starts or stops a worker."""
    on_effect: Callable[[], None] = lambda: None
    """Called before and after that; the process may end there."""
    on_killed: Callable[[str, str], None] = lambda *_: None
    """Called with a worker that has died of a request, and the id of that."""
    refusing_until_s: float = 0.0
    """Until then, some workers cannot be started."""
    on_work: Callable[[Connection, str], None] = lambda *_: None
    """Called when a worker begins to answer an attempt."""

    def __post_init__(self) -> None:
        self.clock = self.loop.time
        self.script = self._draw_script

    def _draw_script(self, _spec: WorkerSpec) -> Script:
        fetch_s = self.rng.choice((0.0, self.rng.uniform(0.1, 1.0)))
        return ready_after(fetch_s + self.rng.uniform(0.2, 3.0), fetch_s=fetch_s, stop_s=self.rng.uniform(0.0, 2.0))

    def crash(self, name: str, *, exit_code: int = -9, message: str = "") -> None:
        """Let a worker die with its connections."""
        FakeMachine.crash(self, name, exit_code=exit_code, message=message)
        self.close_port(self.workers[name].handle)

    def close_port(self, handle: Handle) -> None:
        port = port_of(handle)
        if self.network.servers.pop(port, None) is not None:
            for connection in [found for found in self.network.connections if found.port == port]:
                connection.lose()

    def is_hung(self, name: str) -> bool:
        return self.loop.now_s < self.hung.get(name, 0.0)

    def look(self, name: str) -> Observation:
        """Observe a worker; one that hangs fails its health check."""
        seen = FakeMachine.look(self, name)
        if seen.phase is WorkerPhase.EXITED and name in self.workers:
            self.close_port(self.workers[name].handle)
        if seen.phase is WorkerPhase.READY and self.is_hung(name):
            return Observation(phase=WorkerPhase.UNHEALTHY)
        return seen

    def living_names(self) -> list[str]:
        return sorted(worker.spec.name for worker in self.living())


def port_of(handle: Handle) -> int:
    return urlsplit(handle.url).port or 0


@dataclass(eq=False)
class WorkerServer:
    """The HTTP server of one worker."""

    machine: Machine
    name: str

    def received(self, connection: Connection, data: bytes) -> None:
        """Answer a request, at once or after a while; never while the worker hangs."""
        phase = self.machine.look(self.name).phase
        if phase is WorkerPhase.EXITED or self.name not in self.machine.workers:
            connection.lose()
        elif self.machine.is_hung(self.name):
            self.machine.loop.call_at(self.machine.hung[self.name], self.received, connection, data)
        elif data.startswith(b"GET"):
            connection.send(_head(200 if phase is WorkerPhase.READY else 503, 0))
        elif phase is not WorkerPhase.READY:
            connection.send(_head(503, 0))
        else:
            self._work(connection, data.partition(b"\r\n\r\n")[2])

    def _work(self, connection: Connection, body: bytes) -> None:
        asked = json.loads(body)
        machine, attempt = self.machine, str(asked["id"])
        machine.working[connection] = attempt
        machine.on_work(connection, attempt)
        is_awaited = attempt[0].isdigit()
        if attempt in machine.begun and is_awaited:  # others are run again after a takeover
            machine.repeated.append(attempt)
        answer = json.dumps({"id": attempt, "worker": self.name}).encode()
        if asked.get("is_deadly"):
            machine.working.pop(connection)
            machine.crash(self.name)
            machine.on_killed(self.name, attempt)
            return
        if asked.get("is_bad"):
            machine.working.pop(connection)
            connection.send(_head(500, 0))
            return
        first_s = asked.get("work_s") or machine.rng.uniform(*(WORK_S if is_awaited else LONG_WORK_S))
        machine.loop.call_later(first_s, self._send, connection, attempt, _head(200, len(answer)) + answer[:5], False)
        machine.loop.call_later(first_s * 1.5, self._send, connection, attempt, answer[5:], True)

    def _send(self, connection: Connection, attempt: str, part: bytes, is_last: bool) -> None:
        if self.machine.look(self.name).phase is WorkerPhase.EXITED:
            return
        if self.machine.is_hung(self.name):
            self.machine.loop.call_at(self.machine.hung[self.name], self._send, connection, attempt, part, is_last)
            return
        if not connection.is_closing():
            self.machine.begun.add(attempt)
            self.machine.executed[attempt] += is_last
            connection.send(part)
            if is_last:
                self.machine.working.pop(connection, None)
            if self.machine.dies_in_answer and not is_last:
                self.machine.dies_in_answer, self.machine.died_in_answer = False, self.name
                self.machine.crash(self.name)


def _head(status: int, length: int) -> bytes:
    reason = {200: "OK", 500: "Error"}.get(status, "Unavailable")
    return f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode()


class Launcher(FakeLauncher):
    """The launcher of one member: each call takes a while, and may fail."""

    machine: Machine

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)

    async def _delayed(self) -> None:
        machine = self.machine
        await asyncio.sleep(machine.rng.uniform(0.0005, 0.05))

    async def _reached(self) -> None:
        """Let time pass, and sometimes fail while workers cannot be started."""
        await self._delayed()
        machine = self.machine
        if machine.loop.now_s < machine.refusing_until_s and machine.rng.random() < _SHARE_REFUSED:
            raise TimeoutError("The node does not answer.")

    async def start(self, spec: WorkerSpec) -> Handle:
        """Start a worker with its server."""
        machine = self.machine
        machine.on_act(f"starts {spec.name}")
        machine.on_effect()
        await self._delayed()
        if machine.loop.now_s < machine.refusing_until_s and machine.rng.random() < _SHARE_REFUSED:
            raise StartPending("There is no free core.") if machine.rng.random() < 0.5 else LaunchFailed("No memory.")
        handle = await FakeLauncher.start(self, spec)
        machine.network.servers.setdefault(port_of(handle), WorkerServer(machine, spec.name))
        machine.on_effect()
        await self._delayed()
        return handle

    async def poll(self, name: str, handle: Handle) -> Observation:
        await self._reached()
        return await FakeLauncher.poll(self, name, handle)

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        self.machine.on_act(f"stops {name}")
        self.machine.on_effect()
        await self._reached()
        await FakeLauncher.stop(self, name, handle, grace_s=grace_s)
        self.machine.on_effect()
        await asyncio.sleep(0)

    async def known(self) -> dict[str, Any]:
        await self._reached()
        return await FakeLauncher.known(self)
