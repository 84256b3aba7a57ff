"""The simulated platform: its members, machine, network and database."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.chaos.history import History

from headrace.platform.cloudwatch.series.memory import MemorySeries
from tests.simulation.database import LONG_S, TERM, Database, open_database
from tests.simulation.invariants import Invariants
from tests.simulation.loop import EPOCH_S, PROCESS, Process, SimulatedLoop
from tests.simulation.member import SimulatedMember
from tests.simulation.network import Network
from tests.simulation.objects import Objects
from tests.simulation.scenario import Scenario
from tests.simulation.workers import Machine

T = TypeVar("T")


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
    next_leader_stall_s: float = 0.0
    """How long the next leader is stopped before it begins its term."""
    effects_until_death: dict[Process, int] = field(default_factory=dict)
    """Leader → calls of launchers and of the object storage until it dies: each counts before and after its effect."""

    def __post_init__(self) -> None:
        seed = str(self.scenario.seed)
        self.loop = loop = SimulatedLoop(seed)
        self.trace = Trace(is_kept=self.is_traced)
        self.network = loop.network = Network(loop, random.Random(f"{seed}/network"))
        self.machine = Machine(loop=loop, network=self.network, rng=random.Random(f"{seed}/workers"))
        self.machine.on_act, self.machine.on_effect = self._acting, self._effect
        self.invariants = Invariants()
        self.database = Database(
            loop=loop,
            network=self.network,
            rng=random.Random(f"{seed}/database"),
            late=random.Random(f"{seed}/late"),
            on_commit=self._committed,
            on_death=self._died,
        )
        self.objects = Objects(loop, self.network, random.Random(f"{seed}/objects"), on_effect=self._effect)
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

    def _effect(self) -> None:
        """Kill the process, if its time has come, beside something that it does outside of the database."""
        process = PROCESS.get()
        left = self.effects_until_death.pop(process, 0) - 1
        if left == 0:
            self.kill(process)
        elif left > 0:
            self.effects_until_death[process] = left

    def _stall(self, process: Process) -> None:
        """Stop a process that has just got the lease, if one is due."""
        if self.next_leader_stall_s:
            process.is_paused = True
            self.loop.call_later(self.next_leader_stall_s, self.loop.resume, process, context=self.network.context)
            self.next_leader_stall_s = 0.0

    # Members

    def start_member(self, index: int) -> None:
        """Start the process of a member, or the next one in place of one that was killed."""
        self.num_processes += 1
        process = self.loop.add_process(f"member-{index}.{self.num_processes}")
        if index < len(self.slots):
            process.skew_s = self.slots[index].process.skew_s
        folder = Path(self.folder.name) / str(index)
        member = SimulatedMember(process, self.machine, self.series, self.scenario.knobs, self.objects, folder)
        member.on_lead = lambda: self._stall(process)
        self.slots[index : index + 1] = [member]
        self.database.announce[process] = member.store.listeners.call
        task = self.loop.spawn(process, member.run())
        task.add_done_callback(lambda task: self._ended(member, task))
        self.note(f"start {process.name}")

    def _ended(self, member: SimulatedMember, task: "asyncio.Task[None]") -> None:
        if self.loop.is_closing:
            return
        if member.is_stopping and task.exception() is None:
            self.kill(member.process)
        else:
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
        member.num_requests += 1
        task = self.loop.spawn(member.process, work(member))
        task.add_done_callback(lambda _: setattr(member, "num_requests", member.num_requests - 1))
        task.add_done_callback(lambda task: self.loop.call_later(self.network.delay_s(), _hand_over, task, answer))
        try:
            return await answer
        finally:
            self.pending.pop(answer, None)

    async def watch_leaders(self) -> None:
        """Check every second, until cancelled, that one member leads, and no two."""
        last, since_s = self.slots[0], self.loop.now_s
        while True:
            await asyncio.sleep(1.0)
            able = [member for member in self.slots if self._can_lead(member)]
            for member in able:
                if self.database.is_over(member.leads_in, member.process):
                    self.history.incidents.append(f"{member.process.name} leads on after term {member.leads_in}.")
                    return
            leaders = [member for member in self.slots if member.leads_in is not None]
            last = leaders[0] if leaders else last
            if not able or leaders:
                since_s = self.loop.now_s
            elif self.loop.now_s - since_s > (longest_s := self._longest_gap_s(last, since_s)):
                self.history.incidents.append(f"No member leads for {longest_s:.0f} s.")
                return

    def _longest_gap_s(self, last: SimulatedMember, since_s: float) -> float:
        """Return the longest time until another member leads: soon if the last one could give its lease up."""
        knobs, process = self.scenario.knobs, last.process
        cut_s = self.network.cut_from_database.get(process, 0.0)
        disturbed_s = max(self.database.failing_until_s, self.network.slow_until_s, cut_s, process.continued_s)
        is_in_order = last.is_stopping and (last.has_left or not process.is_dead) and not process.is_paused
        if is_in_order and disturbed_s <= since_s:
            return knobs.heartbeat_s + 2 * LONG_S
        return knobs.lease_s + 2 * knobs.heartbeat_s + 4 * LONG_S

    def _can_lead(self, member: SimulatedMember) -> bool:
        process, now_s = member.process, self.loop.now_s
        is_reached = now_s >= max(self.network.cut_from_database.get(process, 0.0), self.database.failing_until_s)
        is_fast = now_s >= self.network.slow_until_s
        return member.is_serving and not process.is_dead and not process.is_paused and is_reached and is_fast


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
