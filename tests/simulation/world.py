"""The simulated platform: its members, machine, network and database, and the faults that hit them."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.chaos.history import Applied, History

from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.launcher import WorkerPhase
from tests.simulation.database import LONG_S, TERM, Database, open_database
from tests.simulation.invariants import Invariants
from tests.simulation.loop import EPOCH_S, PROCESS, Process, SimulatedLoop
from tests.simulation.member import SimulatedMember
from tests.simulation.network import Network
from tests.simulation.objects import Objects
from tests.simulation.scenario import Fault, Scenario
from tests.simulation.workers import Machine

T = TypeVar("T")
_RECOVERY_S = 15.0
"""Seconds after a restart of a member until it serves, with the intervals as shipped."""


_CRASHES = 3
"""Crashes of a fleet that come after the first."""
_REPLACED_S = 45.0
"""Seconds until a worker that hangs for good is replaced."""


class Broken(Exception):
    """The connection to a member ended without an answer."""


class Trace:
    """The events of a run, as lines that the same seed gives again, and their hash."""

    def __init__(self, *, is_kept: bool) -> None:
        self.lines: list[str] = []
        self._hash = blake2b(digest_size=16)
        self._is_kept = is_kept

    def add(self, line: str) -> None:
        self._hash.update(line.encode())
        if self._is_kept:
            self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


@dataclass
class World:
    """Everything of one simulation."""

    scenario: Scenario
    is_traced: bool = False
    history: History = field(default_factory=History)
    slots: list[SimulatedMember] = field(default_factory=list)
    """The members; one that was killed is replaced by its next process."""
    pending: dict["asyncio.Future[Any]", Process] = field(default_factory=dict)
    """Answers that clients wait for, and who owes them."""
    num_processes: int = 0
    _faults_end_s: float = 0.0

    def __post_init__(self) -> None:
        seed = str(self.scenario.seed)
        self.loop = loop = SimulatedLoop(seed)
        self.trace = Trace(is_kept=self.is_traced)
        self.network = loop.network = Network(loop, random.Random(f"{seed}/network"))
        self.machine = Machine(loop=loop, network=self.network, rng=random.Random(f"{seed}/workers"))
        self.machine.on_act = self._acting
        self.invariants = Invariants()
        self.database = Database(
            loop=loop,
            network=self.network,
            rng=random.Random(f"{seed}/database"),
            on_commit=self._committed,
            on_death=self._died,
        )
        self.objects = Objects(loop, self.network, random.Random(f"{seed}/objects"))
        self.series = MemorySeries()
        self.folder = TemporaryDirectory(prefix="simulation-")
        open_database(self.database)

    def close(self) -> None:
        self.loop.close()
        open_database(None)
        self.folder.cleanup()

    def note(self, line: str) -> None:
        self.trace.add(f"{self.loop.now_s:.6f} {line}")

    def _committed(self, process: Process) -> None:
        self.note(f"{process.name} {self.invariants.committed(EPOCH_S + self.loop.now_s)}")

    def _acting(self, what: str) -> None:
        """Check that only the leader acts on workers: no fence of the database keeps others from it."""
        process = PROCESS.get()
        if self.database.is_over(TERM.get(), process):
            self.history.incidents.append(f"{process.name} {what} after its term.")

    # Members

    def start_member(self, index: int) -> None:
        """Start the process of a member, or the next one in place of one that was killed."""
        self.num_processes += 1
        process = self.loop.add_process(f"member-{index}.{self.num_processes}")
        if index < len(self.slots):
            process.skew_s = self.slots[index].process.skew_s
        folder = Path(self.folder.name) / str(index)
        member = SimulatedMember(process, self.machine, self.series, self.scenario.knobs, self.objects, folder)
        self.slots[index : index + 1] = [member]
        self.database.announce[process] = member.store.listeners.call
        task = self.loop.spawn(process, member.run())
        task.add_done_callback(lambda task: self._ended(member, task))
        self.note(f"start {process.name}")

    def _ended(self, member: SimulatedMember, task: "asyncio.Task[None]") -> None:
        if not self.loop.is_closing:
            self.history.incidents.append(f"{member.process.name} ended: {task.exception()!r}.")

    def kill(self, process: Process) -> None:
        """Kill a process; its clients lose their connections."""
        self.loop.kill(process)
        self.network.drop_process(process)
        self.database.announce.pop(process, None)
        self.database.dies_after.pop(process, None)
        for future in [found for found, owner in self.pending.items() if owner is process]:
            self.loop.call_later(self.network.delay_s(), _break, future, context=self.network.context)
        self.note(f"killed {process.name}")

    def _died(self, process: Process) -> None:
        """Kill a process at a statement, and start it again later."""
        self.kill(process)

    async def ask(self, index: int, work: Callable[[SimulatedMember], Coroutine[Any, Any, T]]) -> T:
        """Let a member do something for a client, with the delays of the network; raise `Broken`."""
        member = self.slots[index % len(self.slots)]
        await asyncio.sleep(self.network.delay_s())
        if member.process.is_dead or not member.is_serving:
            raise Broken("connection refused")
        answer: asyncio.Future[T] = self.loop.create_future()
        self.pending[answer] = member.process
        task = self.loop.spawn(member.process, work(member))
        task.add_done_callback(lambda task: self.loop.call_later(self.network.delay_s(), _hand_over, task, answer))
        try:
            return await answer
        finally:
            self.pending.pop(answer, None)

    async def watch_leaders(self) -> None:
        """Check every second, until cancelled, that one member leads, and no two."""
        knobs, since_s = self.scenario.knobs, self.loop.now_s
        longest_s = knobs.lease_s + 2 * knobs.heartbeat_s + 4 * LONG_S
        while True:
            await asyncio.sleep(1.0)
            able = [member for member in self.slots if self._can_lead(member)]
            for member in able:
                if self.database.is_over(member.leads_in, member.process):
                    self.history.incidents.append(f"{member.process.name} leads on after term {member.leads_in}.")
                    return
            if not able or any(member.leads_in is not None for member in self.slots):
                since_s = self.loop.now_s
            elif self.loop.now_s - since_s > longest_s:
                self.history.incidents.append(f"No member leads for {longest_s:.0f} s.")
                return

    def _can_lead(self, member: SimulatedMember) -> bool:
        process, now_s = member.process, self.loop.now_s
        is_reached = now_s >= max(self.network.cut_from_database.get(process, 0.0), self.database.failing_until_s)
        is_fast = now_s >= self.network.slow_until_s
        return member.is_serving and not process.is_dead and not process.is_paused and is_reached and is_fast

    # Faults

    async def run_faults(self) -> None:
        """Apply the faults of the scenario at their times, and undo each."""
        began_s = self.loop.now_s
        self._faults_end_s = began_s + 30.0
        async with asyncio.TaskGroup() as group:
            for fault in self.scenario.faults:
                group.create_task(self._run_fault(fault, began_s))

    async def _run_fault(self, fault: Fault, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + fault.at_s - self.loop.now_s))
        applied_s = self.loop.now_s
        what = await getattr(self, f"_{fault.kind.replace('-', '_')}")(fault)
        self.note(f"fault {fault.kind} {what} {applied_s:.3f}")
        self.history.faults.append(self._applied(fault, applied_s, what))

    def _applied(self, fault: Fault, applied_s: float, what: str) -> Applied:
        return Applied(
            kind=_KINDS.get(fault.kind, fault.kind),
            began_s=applied_s,
            undone_s=self.loop.now_s,
            ended_s=self.loop.now_s + self._recovery_s(fault),
            what=what,
        )

    def _recovery_s(self, fault: Fault) -> float:
        knobs = self.scenario.knobs
        return 0.0 if fault.kind in {"worker-kill", "worker-loop", "clock-jump"} else _RECOVERY_S + 2 * knobs.lease_s

    def _member(self, fault: Fault) -> tuple[int, SimulatedMember]:
        index = fault.target % len(self.slots)
        return index, self.slots[index]

    async def _worker_kill(self, fault: Fault) -> str:
        names = self.machine.living_names()
        if not names:
            return ""
        name = names[fault.target % len(names)]
        self.machine.crash(name)
        return name

    def crash_worker_of(self, endpoint: str) -> None:
        """Kill a worker of an endpoint, as the fault does."""
        names = [name for name in self.machine.living_names() if name.startswith(f"{endpoint}-")]
        if names:
            self.machine.crash(names[0])
            fault = Fault(at_s=0.0, kind="worker-kill", duration_s=0.0, target=0)
            self.history.faults.append(self._applied(fault, self.loop.now_s, names[0]))

    async def _worker_loop(self, fault: Fault) -> str:
        """Let the workers of one fleet die one after the other, each when it is ready."""
        name = await self._worker_kill(fault)
        fleet = name.rpartition("-i-")[0]
        for _ in range(_CRASHES if fleet else 0):
            self.history.faults.append(self._applied(fault, self.loop.now_s, name))
            name = await self._until_ready(fleet)
            if not name:
                break
            self.machine.crash(name)
        return name or fleet

    async def _until_ready(self, fleet: str) -> str:
        """Return a worker of a fleet that is ready, soon; empty if there is none."""
        for _ in range(20):
            await asyncio.sleep(1.0)
            for name in self.machine.living_names():
                if name.startswith(f"{fleet}-i-") and self.machine.look(name).phase is WorkerPhase.READY:
                    return name
        return ""

    async def _worker_die(self, _fault: Fault) -> str:
        """Let a worker die in the middle of an answer."""
        self.machine.dies_in_answer, self.machine.died_in_answer = True, ""
        while self.machine.dies_in_answer and self.loop.now_s < self._faults_end_s:
            await asyncio.sleep(0.05)
        self.machine.dies_in_answer = False
        return self.machine.died_in_answer

    async def _worker_stop(self, fault: Fault) -> str:
        names = self.machine.living_names()
        if not names:
            return ""
        name = names[fault.target % len(names)]
        is_for_good = fault.amount % 4 == 0
        self.machine.hung[name] = math.inf if is_for_good else self.loop.now_s + fault.duration_s
        await asyncio.sleep(max(fault.duration_s, _REPLACED_S) if is_for_good else fault.duration_s)
        return name

    async def _platform_kill(self, fault: Fault) -> str:
        index, member = self._member(fault)
        if not member.process.is_dead:
            self.kill(member.process)
            await self._restart(index, fault)
        return member.process.name

    async def _platform_die(self, fault: Fault) -> str:
        """Kill a member at one of its next statements."""
        index, member = self._member(fault)
        self.database.dies_after[member.process] = int(fault.amount)
        for _ in range(30):
            await asyncio.sleep(1.0)
            if member.process.is_dead:
                await self._restart(index, fault)
                break
        self.database.dies_after.pop(member.process, None)
        return member.process.name

    async def _restart(self, index: int, fault: Fault) -> None:
        await asyncio.sleep(fault.duration_s)
        if self.slots[index].process.is_dead:  # no other fault has restarted it
            self.start_member(index)

    async def _platform_stop(self, fault: Fault) -> str:
        process = self._member(fault)[1].process
        process.is_paused = True
        await asyncio.sleep(fault.duration_s)
        self.loop.resume(process)
        return process.name

    async def _leader_stop(self, fault: Fault) -> str:
        """Stop the leader for longer than its lease, between two transactions of a function."""
        leaders = [member.process for member in self.slots if member.leads_in is not None]
        if not leaders:
            return ""
        process, duration_s = leaders[0], fault.duration_s * self.scenario.knobs.lease_s
        self.database.stalls[process] = duration_s
        for _ in range(100):
            await asyncio.sleep(0.2)
            if process not in self.database.stalls:
                await asyncio.sleep(duration_s)
                break
        self.database.stalls.pop(process, None)
        return process.name

    async def _workers_cut(self, fault: Fault) -> str:
        return await self._cut(self.network.cut_from_workers, fault)

    async def _database_cut(self, fault: Fault) -> str:
        return await self._cut(self.network.cut_from_database, fault)

    async def _cut(self, cut: dict[Process, float], fault: Fault) -> str:
        process = self._member(fault)[1].process
        cut[process] = self.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return process.name

    async def _database_fail(self, fault: Fault) -> str:
        self.database.failing_until_s = self.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "database"

    async def _storage_fail(self, fault: Fault) -> str:
        self.objects.failing_until_s = self.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "object storage"

    async def _network_slow(self, fault: Fault) -> str:
        self.network.slow_until_s = self.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "network"

    async def _launch_fail(self, fault: Fault) -> str:
        self.machine.refusing_until_s = self.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "launcher"

    async def _clock_jump(self, fault: Fault) -> str:
        process = self._member(fault)[1].process
        process.skew_s += fault.amount
        self.invariants.jumped()
        return process.name


_KINDS = {
    "worker-die": "worker-kill",
    "worker-loop": "worker-kill",
    "platform-die": "platform-kill",
    "leader-stop": "platform-stop",
    "workers-cut": "platform-stop",
    "database-cut": "database-stop",
}
"""The faults that have another name in chaos runs."""


def _break(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(Broken("connection reset"))


def _hand_over(task: "asyncio.Task[T]", answer: "asyncio.Future[T]") -> None:
    if answer.done():
        task.cancelled() or task.exception()  # retrieved: its client has gone
    elif task.cancelled():
        answer.set_exception(Broken("the member cancelled the request"))
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
