"""The processes of a host's models: a worker for each, started until it is ready and stopped until it has ended."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.platform.cluster.launcher import Handle, Launcher, LaunchFailed, StartPending, WorkerPhase, WorkerSpec
from headrace.platform.cluster.model_host.protocol import Reason
from headrace.platform.cluster.worker_exit import exit_reason

_FIRST_POLL_S: Final = 0.02
_LAST_POLL_S: Final = 0.2
_POLL_GROWTH: Final = 1.2
"""A load is noticed a fifth of its time later, at most."""
_STOP_GRACE_S: Final = 10.0
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
"""Characters of a model's name that the name of a worker, which is a folder, may not have."""
_NAME_CHARACTERS: Final = 40


class ModelUnavailable(HeadraceError):
    """A model cannot serve a request now; `reason` is for the gateway."""

    def __init__(self, message: str, *, reason: Reason) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(slots=True)
class ModelProcess:
    """The worker of one model."""

    name: str
    handle: Handle | None = None
    """None before it was started."""
    fetched_s: float = 0.0
    """When it had its files."""


@dataclass(slots=True, kw_only=True)
class ModelProcesses:
    """Starts, watches and stops the workers of models through a launcher."""

    launcher: Launcher
    measure: Callable[[Handle], int]
    """Returns the memory of a running worker; blocks."""
    measure_peak: Callable[[Handle], int]
    """Returns the most memory that it has had; blocks."""
    load_timeout_s: float
    """Longest time from the start of a worker until it is ready."""
    on_ended: Callable[[str], None] = lambda _worker: None
    """Called with a worker that has ended, before its folder is removed; blocks."""
    clock: Callable[[], float] = time.monotonic
    _num_started: int = field(default=0)

    def named(self, model: str) -> ModelProcess:
        """Return a new process for a model, not started yet."""
        self._num_started += 1
        return ModelProcess(f"model-{self._num_started}-{_UNSAFE.sub('-', model)[:_NAME_CHARACTERS]}")

    async def start(self, process: ModelProcess, spec: WorkerSpec) -> None:
        """Start a worker and wait until it is ready. Raises `ModelUnavailable`: it cannot be started, or has ended."""
        deadline_s, pause_s = self.clock() + self.load_timeout_s, _FIRST_POLL_S
        while self.clock() < deadline_s:
            if process.handle is None:
                with suppress(StartPending):
                    process.handle = await self._launch(spec)
            elif await self._is_ready(process):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _POLL_GROWTH, _LAST_POLL_S)
        raise ModelUnavailable(f"The model is not ready after {self.load_timeout_s:g} s.", reason="not-loaded")

    async def memory_bytes(self, process: ModelProcess) -> int:
        assert process.handle is not None, "it was started"
        return await asyncio.to_thread(self.measure, process.handle)

    async def peak_bytes(self, process: ModelProcess) -> int:
        assert process.handle is not None, "it was started"
        return await asyncio.to_thread(self.measure_peak, process.handle)

    async def why_ended(self, process: ModelProcess) -> str | None:
        """Return why a worker has ended; None: it runs."""
        if process.handle is None:
            return None
        seen = await self.launcher.poll(process.name, process.handle)
        return exit_reason(seen) if seen.phase is WorkerPhase.EXITED else None

    async def stop(self, process: ModelProcess) -> None:
        """Stop a worker, and remove its folder when it has ended."""
        if process.handle is None:
            return
        await self.launcher.stop(process.name, process.handle, grace_s=_STOP_GRACE_S)
        while await self.why_ended(process) is None:  # noqa: ASYNC110 -- no event reports the end of a process
            await asyncio.sleep(_FIRST_POLL_S)
        await asyncio.to_thread(self.on_ended, process.name)
        with suppress(OSError):
            await self.launcher.forget(process.name)

    async def _launch(self, spec: WorkerSpec) -> Handle:
        try:
            return await self.launcher.start(spec)
        except LaunchFailed as error:
            raise ModelUnavailable(str(error), reason="not-loaded") from error

    async def _is_ready(self, process: ModelProcess) -> bool:
        assert process.handle is not None, "it was started"
        seen = await self.launcher.poll(process.name, process.handle)
        if seen.phase is WorkerPhase.EXITED:
            is_fetching = seen.ended_in is WorkerPhase.FETCHING
            raise ModelUnavailable(exit_reason(seen), reason="not-fetched" if is_fetching else "not-loaded")
        if seen.phase is not WorkerPhase.FETCHING:
            process.fetched_s = process.fetched_s or self.clock()
        return seen.phase is WorkerPhase.READY
