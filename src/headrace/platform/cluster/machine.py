"""The launcher of one machine of a platform: that of this machine, and that of another one, which is asked."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from headrace.platform.cluster.launcher import (
    LAUNCH_ERRORS,
    Handle,
    Launcher,
    LaunchFailed,
    Observation,
    WorkerSpec,
)
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.placement import Room
from headrace.platform.cluster.worker_ping import PING_TIMEOUT_S

QUESTION: Final = "launcher"
"""The question to the launcher of a machine: the name of a method, and its arguments."""
OF_MACHINE: Final = "headrace:machine"
"""
A value in a worker's environment that each machine fills in: alone, the value of this variable there; with a path, one
in the machine's data folder.
"""
_TIMEOUT_S: Final = {"start": 20.0, "forget": 20.0}
"""Longest wait for the answer to a question."""
_DEFAULT_TIMEOUT_S: Final = PING_TIMEOUT_S + 1.0


class AskMachine(Protocol):
    def __call__(self, machine: str, question: str, argument: object, *, timeout_s: float) -> Awaitable[Any]:
        """Return the answer of a machine; raise `Unavailable` if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineValues:
    """The values of a machine for `OF_MACHINE`."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def localized(spec: WorkerSpec, values: MachineValues) -> WorkerSpec:
    """Return a specification with the values of the machine on which it is to run."""
    environment = {}
    for name, value in spec.environment.items():
        if value == OF_MACHINE:
            if name in values.environment:
                environment[name] = values.environment[name]
        elif value.startswith(f"{OF_MACHINE}/"):
            environment[name] = str(values.folder / value.removeprefix(f"{OF_MACHINE}/"))
        else:
            environment[name] = value
    containers = tuple(localized(container, values) for container in spec.containers)
    return replace(spec, environment=environment, containers=containers)


class Machine(Launcher, Protocol):
    """The launcher of one machine; its handles name the machine."""

    async def room(self) -> Room:
        """Return what is free on the machine."""
        ...


class OwnMachine:
    """The launcher of this machine, which also answers those of others."""

    name = "machines"

    def __init__(self, local: LocalLauncher, machine: str, *, memory_bytes: int, values: MachineValues) -> None:
        self._local = local
        self.machine = machine
        self._memory_bytes = memory_bytes
        self._values = values

    async def start(self, spec: WorkerSpec) -> Handle:
        return self._outer(await self._local.start(localized(spec, self._values)))

    async def poll(self, name: str, handle: Handle) -> Observation:
        return await self._local.poll(name, _inner(handle))

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        await self._local.stop(name, _inner(handle), grace_s=grace_s)

    async def known(self) -> dict[str, Handle]:
        return {name: self._outer(handle) for name, handle in (await self._local.known()).items()}

    async def forget(self, name: str) -> None:
        await self._local.forget(name)

    async def room(self) -> Room:
        return await self._local.room()

    async def close(self) -> None:
        await self._local.close()

    async def answer(self, argument: Any) -> Any:
        """Answer a question of the leader on another machine."""
        method, arguments = argument
        if method not in _QUESTIONS:
            raise KeyError(method)
        kinds, _ = _QUESTIONS[method]
        values = {name: msgspec.convert(arguments[name], kind) for name, kind in kinds.items()}
        try:
            return {"result": msgspec.to_builtins(await getattr(self, method)(**values))}
        except tuple(LAUNCH_ERRORS.values()) as error:
            code = next(code for code, kind in LAUNCH_ERRORS.items() if type(error) is kind)
            return {"error": code, "message": str(error)}

    def _outer(self, handle: Handle) -> Handle:
        facts = {**handle.facts, "machine": self.machine}
        return replace(handle, launcher=self.name, facts=facts, memory_bytes=self._memory_bytes)


_QUESTIONS: Final[Mapping[str, tuple[Mapping[str, Any], Any]]] = {
    "start": ({"spec": WorkerSpec}, Handle),
    "poll": ({"name": str, "handle": Handle}, Observation),
    "stop": ({"name": str, "handle": Handle, "grace_s": float}, None),
    "known": ({}, dict[str, Handle]),
    "forget": ({"name": str}, None),
    "room": ({}, Room),
}
"""Method → its arguments and its result."""


class OtherMachine:
    """The launcher of another machine, which is asked."""

    name = OwnMachine.name

    def __init__(self, machine: str, ask: AskMachine) -> None:
        self._machine = machine
        self._ask = ask

    async def start(self, spec: WorkerSpec) -> Handle:
        try:
            return await self._asked("start", spec=spec)  # type: ignore[no-any-return]
        except ValueError as error:
            raise LaunchFailed(f"The worker {spec.name} cannot be started: {error}.") from error

    async def poll(self, name: str, handle: Handle) -> Observation:
        return await self._asked("poll", name=name, handle=handle)  # type: ignore[no-any-return]

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        await self._asked("stop", name=name, handle=handle, grace_s=grace_s)

    async def known(self) -> dict[str, Handle]:
        return await self._asked("known")  # type: ignore[no-any-return]

    async def forget(self, name: str) -> None:
        await self._asked("forget", name=name)

    async def room(self) -> Room:
        return await self._asked("room")  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Do nothing: the channel has another owner."""

    async def _asked(self, method: str, **arguments: object) -> Any:
        asked = [method, msgspec.to_builtins(arguments)]
        timeout_s = _TIMEOUT_S.get(method, _DEFAULT_TIMEOUT_S)
        answer = await self._ask(self._machine, QUESTION, asked, timeout_s=timeout_s)
        if "error" in answer:
            raise LAUNCH_ERRORS.get(answer["error"], LaunchFailed)(answer["message"])
        return msgspec.convert(answer["result"], _QUESTIONS[method][1])


def machine_of(handle: Handle) -> str:
    """Return the machine of a worker."""
    return str(handle.facts.get("machine", ""))


def _inner(handle: Handle) -> Handle:
    """Return a handle as the launcher of its machine has it."""
    facts = {name: value for name, value in handle.facts.items() if name != "machine"}
    return replace(handle, launcher=LocalLauncher.name, facts=facts, memory_bytes=None)
