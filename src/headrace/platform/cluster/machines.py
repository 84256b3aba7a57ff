"""
The launcher of workers on the machines of a platform: each machine runs its own, and the leader asks them.

A machine is known by the address that it advertises. Its workers listen on it, and require a token. A worker whose
machine has no live member is lost unless it still answers: a machine may be cut off from the database only, or its
platform be restarting. When the machine returns, `known` shows the workers that were replaced meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import (
    Handle,
    LaunchFailed,
    Observation,
    StartPending,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.machine import AskMachine, Machine, OtherMachine, OwnMachine, machine_of
from headrace.platform.cluster.placement import Room, in_order
from headrace.platform.cluster.worker_ping import PING_TIMEOUT_S, ping

LOST_S: Final = 1.5
"""Seconds without a live member after which a machine whose workers do not answer is lost."""
ABANDONED_S: Final = 60.0
"""Seconds without a live member after which workers that still answer are replaced: nothing could stop them."""
ISOLATED_S: Final = 10.0
"""
Seconds without an answer of most machines after which a leader lets another one lead: longer than a network needs to
heal by itself, as nothing is lost meanwhile.
"""
SILENT_S: Final = 2.0
"""Seconds for which a machine that has not answered is not asked again."""
_ISOLATION_GAP_S: Final = 10.0
"""Seconds without a sign of it after which an isolation is over."""
_MIN_MAJORITY: Final = 3
"""Machines of which a majority can do without one."""


class Presence:
    """The machines with live members, as this process's heartbeats show them."""

    def __init__(self, own: str, *, max_gap_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """After `max_gap_s` without a heartbeat of this process nothing is known of the others: their time begins."""
        self._own = own
        self._clock = clock
        self._max_gap_s = max_gap_s
        self.live: frozenset[str] = frozenset({own})
        self._updated_s = clock()
        self._seen_s: dict[str, float] = {}
        """Machine without a live member → when it was seen last, or was asked for first."""
        self._isolation = (0.0, 0.0)
        """Since when no majority of the machines has answered, and when that was seen last."""

    def note_isolation(self, *, is_isolated: bool) -> None:
        """Note whether no majority of the machines answers this one, which asks again while one is silent."""
        now_s, (began_s, last_s) = self._clock(), self._isolation
        if not is_isolated or now_s - last_s > _ISOLATION_GAP_S:
            began_s = now_s
        self._isolation = (began_s, now_s)

    def take_isolation(self) -> bool:
        """Return whether this machine has been cut off from most others for `ISOLATED_S`; that time begins again."""
        began_s, last_s = self._isolation
        if len(self.live) < _MIN_MAJORITY or last_s - began_s < ISOLATED_S:
            return False
        self._isolation = (last_s, last_s)
        return True

    def update(self, live: Iterable[str]) -> None:
        """Note the machines with live members."""
        now_s, before = self._clock(), self.live
        self.live = frozenset(live) | {self._own}
        if now_s - self._updated_s > self._max_gap_s:
            self._seen_s.clear()
        self._updated_s = now_s
        gone = before - self.live
        self._seen_s = {name: at_s for name, at_s in self._seen_s.items() if name not in self.live}
        self._seen_s |= dict.fromkeys(gone - self._seen_s.keys(), now_s)

    def absent_s(self, machine: str) -> float:
        """Return the time for which a machine has had no live member, as far as this process knows."""
        now_s = self._clock()
        return now_s - self._seen_s.setdefault(machine, now_s)


class MachinesLauncher:
    """A `Launcher` over all machines of a platform."""

    name = OwnMachine.name

    def __init__(
        self, own: OwnMachine, presence: Presence, ask: AskMachine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = own
        self._presence = presence
        self._ask = ask
        self._clock = clock
        self._silent_until_s: dict[str, float] = {}
        """Machine that has not answered → when it is asked again."""
        self._asked: dict[str, str] = {}
        """Worker → the machine that was asked to start it, and may have done so."""

    async def start(self, spec: WorkerSpec) -> Handle:
        """Start a worker on a machine with room, the machine that was asked before first; see `Launcher.start`."""
        before = self._asked.get(spec.name)
        if before in self._presence.live and self._is_silent(before):
            raise StartPending(f"The machine {before} was asked to start the worker {spec.name}, and has not answered.")
        rooms = await self._rooms()
        order = in_order(spec, rooms)
        if before in rooms:
            order.sort(key=lambda machine: machine != before)
        errors: list[Exception] = []
        for machine in order:
            self._asked[spec.name] = machine
            try:
                return await self._start_on(machine, spec)
            except _Silent:
                raise
            except (LaunchFailed, StartPending) as error:
                errors.append(error)
        raise _most_hopeful(errors)

    async def _start_on(self, machine: str, spec: WorkerSpec) -> Handle:
        try:
            handle = await self._on(machine).start(spec)
        except Unavailable as error:  # it may have started the worker: while it answers, it is asked again
            raise _Silent(error.message) from error
        except (LaunchFailed, StartPending):
            del self._asked[spec.name]
            raise
        del self._asked[spec.name]
        return handle

    async def poll(self, name: str, handle: Handle) -> Observation:
        machine = machine_of(handle)
        if machine in self._presence.live:
            return await self._poll_live(machine, name, handle)
        absent_s = self._presence.absent_s(machine)
        if absent_s < ABANDONED_S and await ping(handle.url, PING_TIMEOUT_S):
            return Observation(phase=WorkerPhase.READY)
        if absent_s < LOST_S:
            raise Unavailable(f"The machine {machine} of the worker {name} has no live member.")
        message = f"the machine {machine} was lost: no platform has run there for {absent_s:.0f} s."
        return Observation(phase=WorkerPhase.EXITED, message=message, was_lost=True, is_blameless=True)

    async def _poll_live(self, machine: str, name: str, handle: Handle) -> Observation:
        """
        Observe a worker of a machine with live members, by its `/ping` if the machine does not answer.

        A worker that is unhealthy for long is replaced. So this one is only if most machines hear this one: else it is
        this machine that is cut off from the others, which serve on with their workers.
        """
        try:
            return await self._on(machine).poll(_plain(name), handle)
        except Unavailable:
            is_healthy, rooms = await asyncio.gather(ping(handle.url, PING_TIMEOUT_S), self._rooms())
            is_majority = 2 * len(rooms) > len(self._presence.live)
            self._presence.note_isolation(is_isolated=not is_majority)
            if is_healthy:
                return Observation(phase=WorkerPhase.READY)
            if not is_majority:
                raise
            return Observation(phase=WorkerPhase.UNHEALTHY)

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        machine = machine_of(handle)
        if machine in self._presence.live:
            await self._on(machine).stop(_plain(name), handle, grace_s=grace_s)

    async def known(self) -> dict[str, Handle]:
        """
        Return the running workers of all machines that answer.

        If two have a worker of one name, because its start was repeated elsewhere, the second is `name@machine`.
        """
        found: dict[str, Handle] = {}
        for machine, workers in (await self._from_all("known")).items():
            found |= {(f"{name}@{machine}" if name in found else name): handle for name, handle in workers.items()}
        return found

    async def forget(self, name: str) -> None:
        """Remove the folder of an exited worker, wherever there is one."""
        self._asked.pop(name, None)
        worker, _, machine = name.partition("@")
        await self._from_all("forget", worker, machines=[machine] if machine else None)

    async def close(self) -> None:
        await self._own.close()

    async def _rooms(self) -> dict[str, Room]:
        return await self._from_all("room")

    async def _from_all(self, method: str, *arguments: object, machines: Iterable[str] | None = None) -> dict[str, Any]:
        """Return what a method returns, for each live machine that answers."""

        async def ask(machine: str) -> Any:
            try:
                return await getattr(self._on(machine), method)(*arguments)
            except Unavailable as error:
                return error

        names = sorted(self._presence.live if machines is None else self._presence.live & set(machines))
        answers = await asyncio.gather(*map(ask, names))
        return {
            name: answer for name, answer in zip(names, answers, strict=True) if not isinstance(answer, Unavailable)
        }

    def _on(self, machine: str) -> Machine:
        return self._own if machine == self._own.machine else OtherMachine(machine, self._ask_other)

    def _is_silent(self, machine: str | None) -> bool:
        return self._clock() < self._silent_until_s.get(machine or "", 0.0)

    async def _ask_other(self, machine: str, question: str, argument: object, *, timeout_s: float) -> Any:
        """Ask another machine; one that has just not answered is not waited for, which would delay all others."""
        if self._is_silent(machine):
            raise Unavailable(f"The machine {machine} has not answered for a moment.")
        try:
            answer = await self._ask(machine, question, argument, timeout_s=timeout_s)
        except Unavailable as error:
            if machine not in self._silent_until_s:
                get_logger().warning("machine.silent", machine=machine, reason=error.message)
            self._silent_until_s[machine] = self._clock() + SILENT_S
            raise
        if self._silent_until_s.pop(machine, None) is not None:
            get_logger().info("machine.answers", machine=machine)
        return answer


class _Silent(StartPending):
    """A machine that was asked to start a worker has not answered."""


def _plain(name: str) -> str:
    return name.partition("@")[0]


def _most_hopeful(errors: Sequence[Exception]) -> Exception:
    """Return the error to raise if no machine has started a worker: one after which another try may succeed."""
    pending = next((error for error in errors if isinstance(error, StartPending)), None)
    return pending or next(iter(errors), StartPending("No machine of the platform answers."))
