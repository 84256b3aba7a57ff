"""The faults of one simulation: each is applied at its time, undone, and noted in the history."""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from benchmarks.chaos.history import Applied

from headrace.platform.cluster.launcher import WorkerPhase
from tests.simulation.loop import Process
from tests.simulation.member import SimulatedMember
from tests.simulation.scenario import LAST_S, Fault
from tests.simulation.world import World

_RECOVERY_S: Final = 15.0
"""Seconds after a restart of a member until it serves, with the intervals as shipped."""
_CRASHES: Final = 3
"""Crashes of a fleet that come after the first."""
_LONGEST_STOP_S: Final = 120.0
"""Seconds until a member has ended in order: its requests, its lease, its workers, and all other faults meanwhile."""
_REPLACED_S: Final = 45.0
"""Seconds until a worker that hangs for good is replaced."""
_KINDS: Final = {
    "worker-die": "worker-kill",
    "worker-loop": "worker-kill",
    "platform-die": "platform-kill",
    "leader-die": "platform-kill",
    "leader-stop": "platform-stop",
    "term-stop": "platform-kill",
    "thread-hang": "platform-stop",
    "workers-cut": "platform-stop",
    "database-cut": "database-stop",
}
"""The faults that have another name in chaos runs."""


@dataclass
class Faults:
    """Applies the faults of a scenario to its members, workers, network and storage."""

    world: World
    _ends_s: float = 0.0
    """When the last fault has begun."""

    async def run(self) -> None:
        """Apply the faults of the scenario at their times, and undo each."""
        began_s = self.world.loop.now_s
        self._ends_s = began_s + LAST_S
        async with asyncio.TaskGroup() as group:
            for fault in self.world.scenario.faults:
                group.create_task(self._run_fault(fault, began_s))

    async def _run_fault(self, fault: Fault, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + fault.at_s - self.world.loop.now_s))
        applied_s = self.world.loop.now_s
        what = await getattr(self, f"_{fault.kind.replace('-', '_')}")(fault)
        self.world.note(f"fault {fault.kind} {what} {applied_s:.3f}")
        self.world.history.faults.append(self._applied(fault, applied_s, what))

    def _applied(self, fault: Fault, applied_s: float, what: str) -> Applied:
        return Applied(
            kind=_KINDS.get(fault.kind, fault.kind),
            began_s=applied_s,
            undone_s=self.world.loop.now_s,
            ended_s=self.world.loop.now_s + self._recovery_s(fault),
            what=what,
        )

    def _recovery_s(self, fault: Fault) -> float:
        knobs = self.world.scenario.knobs
        return 0.0 if fault.kind in {"worker-kill", "worker-loop", "clock-jump"} else _RECOVERY_S + 2 * knobs.lease_s

    def _member(self, fault: Fault) -> tuple[int, SimulatedMember]:
        index = fault.target % len(self.world.slots)
        return index, self.world.slots[index]

    async def _worker_kill(self, fault: Fault) -> str:
        names = self.world.machine.living_names()
        if not names:
            return ""
        name = names[fault.target % len(names)]
        self.world.machine.crash(name)
        return name

    def crash_worker_of(self, endpoint: str) -> None:
        """Kill a worker of an endpoint, as the fault does."""
        names = [name for name in self.world.machine.living_names() if name.startswith(f"{endpoint}-")]
        if names:
            self.world.machine.crash(names[0])
            self.note_death(names[0])

    def note_death(self, worker: str) -> None:
        """Note in the history that a worker has died without a fault of the scenario."""
        fault = Fault(at_s=0.0, kind="worker-kill", duration_s=0.0, target=0)
        self.world.history.faults.append(self._applied(fault, self.world.loop.now_s, worker))

    async def _worker_loop(self, fault: Fault) -> str:
        """Let the workers of one fleet die one after the other, each when it is ready."""
        name = await self._worker_kill(fault)
        fleet = name.rpartition("-i-")[0]
        for _ in range(_CRASHES if fleet else 0):
            self.world.history.faults.append(self._applied(fault, self.world.loop.now_s, name))
            name = await self._until_ready(fleet)
            if not name:
                break
            self.world.machine.crash(name)
        return name or fleet

    async def _until_ready(self, fleet: str) -> str:
        """Return a worker of a fleet that is ready, soon; empty if there is none."""
        for _ in range(20):
            await asyncio.sleep(1.0)
            for name in self.world.machine.living_names():
                if name.startswith(f"{fleet}-i-") and self.world.machine.look(name).phase is WorkerPhase.READY:
                    return name
        return ""

    async def _worker_die(self, _fault: Fault) -> str:
        """Let a worker die in the middle of an answer."""
        self.world.machine.dies_in_answer, self.world.machine.died_in_answer = True, ""
        while self.world.machine.dies_in_answer and self.world.loop.now_s < self._ends_s:
            await asyncio.sleep(0.05)
        self.world.machine.dies_in_answer = False
        return self.world.machine.died_in_answer

    async def _worker_stop(self, fault: Fault) -> str:
        names = self.world.machine.living_names()
        if not names:
            return ""
        name = names[fault.target % len(names)]
        is_for_good = fault.amount % 4 == 0
        self.world.machine.hung[name] = math.inf if is_for_good else self.world.loop.now_s + fault.duration_s
        began_s = self.world.loop.now_s
        await asyncio.sleep(fault.duration_s)
        # Its time limit begins again with each leader.
        while is_for_good and self.world.loop.now_s < max(began_s, self.world.database.term_began_s) + _REPLACED_S:
            await asyncio.sleep(1.0)
        return name

    async def _platform_kill(self, fault: Fault) -> str:
        index, member = self._member(fault)
        if not member.process.is_dead:
            self.world.kill(member.process)
            await self._restart(index, fault)
        return member.process.name

    async def _platform_term(self, fault: Fault) -> str:
        """Stop a member in order, as SIGTERM does; it ends, with its lease released, unless it is stopped meanwhile."""
        index, member = self._member(fault)
        process = member.process
        if process.is_dead or not member.is_serving:
            return ""
        member.stop()
        for _ in range(int(_LONGEST_STOP_S)):
            await asyncio.sleep(1.0)
            if process.is_dead:
                await self._restart(index, fault)
                return process.name
        self.world.history.incidents.append(f"{process.name} has not ended {_LONGEST_STOP_S:.0f} s after its SIGTERM.")
        return process.name

    async def _platform_die(self, fault: Fault) -> str:
        """Kill a member at one of its next statements."""
        return await self._die(*self._member(fault), self.world.database.dies_after, fault)

    async def _leader_die(self, fault: Fault) -> str:
        """Kill the leader before or after it starts or stops a worker, or writes an object."""
        leaders = [(index, member) for index, member in enumerate(self.world.slots) if member.leads_in is not None]
        return await self._die(*leaders[0], self.world.effects_until_death, fault) if leaders else ""

    async def _die(self, index: int, member: SimulatedMember, dies_after: dict[Process, int], fault: Fault) -> str:
        dies_after[member.process] = int(fault.amount)
        for _ in range(30):
            await asyncio.sleep(1.0)
            if member.process.is_dead:
                await self._restart(index, fault)
                break
        dies_after.pop(member.process, None)
        return member.process.name

    async def _restart(self, index: int, fault: Fault) -> None:
        await asyncio.sleep(fault.duration_s)
        if self.world.slots[index].process.is_dead:  # no other fault has restarted it
            self.world.start_member(index)

    async def _platform_stop(self, fault: Fault) -> str:
        process = self._member(fault)[1].process
        process.is_paused = True
        await asyncio.sleep(fault.duration_s)
        self.world.loop.resume(process)
        return process.name

    async def _leader_stop(self, fault: Fault) -> str:
        """Stop the leader for longer than its lease, between two transactions of a function."""
        leaders = [member.process for member in self.world.slots if member.leads_in is not None]
        if not leaders:
            return ""
        process, duration_s = leaders[0], fault.duration_s * self.world.scenario.knobs.lease_s
        self.world.database.stalls[process] = duration_s
        for _ in range(100):
            await asyncio.sleep(0.2)
            if process not in self.world.database.stalls:
                await asyncio.sleep(duration_s)
                break
        self.world.database.stalls.pop(process, None)
        return process.name

    async def _term_stop(self, fault: Fault) -> str:
        """Kill the leader, and stop the next one before it begins its term, for longer than its lease."""
        leaders = [(index, member) for index, member in enumerate(self.world.slots) if member.leads_in is not None]
        if not leaders:
            return ""
        index, member = leaders[0]
        duration_s = self.world.next_leader_stall_s = fault.duration_s * self.world.scenario.knobs.lease_s
        self.world.kill(member.process)
        await self._restart(index, fault)
        await asyncio.sleep(duration_s + self.world.scenario.knobs.lease_s)
        return member.process.name

    async def _thread_hang(self, fault: Fault) -> str:
        """Let a transaction of a member hang, such as one of its heartbeats; its other threads go on."""
        process = self._member(fault)[1].process
        self.world.database.hangs[process] = fault.duration_s
        await asyncio.sleep(2 * fault.duration_s)
        self.world.database.hangs.pop(process, None)
        return process.name

    async def _workers_cut(self, fault: Fault) -> str:
        return await self._cut(self.world.network.cut_from_workers, fault)

    async def _database_cut(self, fault: Fault) -> str:
        return await self._cut(self.world.network.cut_from_database, fault)

    async def _cut(self, cut: dict[Process, float], fault: Fault) -> str:
        process = self._member(fault)[1].process
        cut[process] = self.world.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return process.name

    async def _database_fail(self, fault: Fault) -> str:
        self.world.database.failing_until_s = self.world.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "database"

    async def _storage_fail(self, fault: Fault) -> str:
        self.world.objects.failing_until_s = self.world.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "object storage"

    async def _network_slow(self, fault: Fault) -> str:
        self.world.network.slow_until_s = self.world.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "network"

    async def _launch_fail(self, fault: Fault) -> str:
        self.world.machine.refusing_until_s = self.world.loop.now_s + fault.duration_s
        await asyncio.sleep(fault.duration_s)
        return "launcher"

    async def _clock_jump(self, fault: Fault) -> str:
        process = self._member(fault)[1].process
        process.skew_s += fault.amount
        self.world.invariants.jumped()
        return process.name
