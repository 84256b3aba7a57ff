"""
A launcher without processes, for tests: workers follow a script of phases while the test moves the clock.

The workers are on a `FakeMachine`. Several `FakeLauncher`s on one machine, one after the other, represent successive
processes of one platform, which adopt the workers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.platform.cluster.launcher import Handle, LaunchFailed, Observation, StartPending, WorkerPhase, WorkerSpec

FIRST_PORT = 20_000


class ManualClock:
    """A clock that stands still until `advance`; call it for the time, seconds since 1970."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def advance(self, seconds: float) -> float:
        """Move the clock forward; returns the new time."""
        self.now_s += seconds
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The phases of a worker, as long as the test does not override them."""

    phases: tuple[tuple[float, Observation], ...]
    """Seconds after the start, and the observation from then on."""
    stop_s: float = 0.0
    """Seconds from SIGTERM to the exit, limited by the grace period of the stop."""

    def at(self, age_s: float) -> Observation:
        """Return the observation at `age_s` seconds after the start."""
        seen = Observation(phase=WorkerPhase.STARTING)
        for from_s, observation in self.phases:
            if age_s >= from_s:
                seen = observation
        return seen


def ready_after(seconds: float = 0.0, *, fetch_s: float = 0.0, stop_s: float = 0.0) -> Script:
    """Script a worker that becomes ready and stays ready."""
    phases = (
        (0.0, Observation(phase=WorkerPhase.FETCHING if fetch_s else WorkerPhase.STARTING)),
        (fetch_s, Observation(phase=WorkerPhase.STARTING)),
        (seconds, Observation(phase=WorkerPhase.READY)),
    )
    return Script(phases=phases, stop_s=stop_s)


def fails_after(
    seconds: float = 0.0,
    *,
    message: str = "The model is broken.",
    exit_code: int | None = 2,
    ended_in: WorkerPhase | None = WorkerPhase.STARTING,
) -> Script:
    """Script a worker that exits before it is ready; without a report if `ended_in` is None."""
    exited = Observation(phase=WorkerPhase.EXITED, exit_code=exit_code, message=message, ended_in=ended_in)
    return Script(phases=((0.0, Observation(phase=WorkerPhase.STARTING)), (seconds, exited)))


@dataclass(slots=True, kw_only=True)
class FakeWorker:
    """A worker on a `FakeMachine`."""

    spec: WorkerSpec
    handle: Handle
    script: Script
    started_s: float
    override: Observation | None = None
    """Observation that replaces the script's; see `FakeMachine.show`."""
    stops_s: float | None = None
    """When the worker exits after a stop; None: it has not been stopped."""


@dataclass(slots=True)
class FakeMachine:
    """The machine on which the workers of `FakeLauncher`s run."""

    clock: Callable[[], float] = field(default_factory=ManualClock)
    script: Callable[[WorkerSpec], Script] = lambda _spec: ready_after()
    """Chooses the script of a worker when it starts."""
    refusal: str = ""
    """If not empty, starts fail with this message."""
    waits_for: str = ""
    """If not empty, starts are pending with this message."""
    is_silent: bool = False
    """True: starts time out."""
    url: str = ""
    """If not empty, the address of a server that answers for all workers."""
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    """All workers by name, exited ones too until they are forgotten."""
    started: list[str] = field(default_factory=list)
    """The names of all workers, in the order of their starts."""
    asked_to_stop: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def show(self, name: str, phase: WorkerPhase, *, exit_code: int | None = None, message: str = "") -> None:
        """Override the observation of a worker from now on: a crash, a failing `/ping`, a recovery."""
        self.workers[name].override = Observation(phase=phase, exit_code=exit_code, message=message)

    def lose(self, name: str, message: str) -> None:
        """Let a worker end with its node."""
        self.workers[name].override = Observation(phase=WorkerPhase.EXITED, message=message, was_lost=True)

    def crash(self, name: str, *, exit_code: int = -9, message: str = "") -> None:
        """Let a worker exit by itself."""
        self.show(name, WorkerPhase.EXITED, exit_code=exit_code, message=message)

    def look(self, name: str) -> Observation:
        """Return the observation of a worker; an unknown worker has exited."""
        worker = self.workers.get(name)
        if worker is None:
            return Observation(phase=WorkerPhase.EXITED)
        if worker.override is not None and worker.override.phase is WorkerPhase.EXITED:
            return worker.override
        now_s = self.clock()
        if worker.stops_s is not None and now_s >= worker.stops_s:
            return Observation(phase=WorkerPhase.EXITED, exit_code=0)
        return worker.override or worker.script.at(now_s - worker.started_s)

    def living(self) -> Iterable[FakeWorker]:
        """Return the workers that have not exited."""
        return [worker for name, worker in self.workers.items() if self.look(name).phase is not WorkerPhase.EXITED]


class FakeLauncher:
    """A `Launcher` for the workers of a `FakeMachine`."""

    name = "fake"

    def __init__(self, machine: FakeMachine | None = None) -> None:
        self.machine = machine or FakeMachine()
        self.is_closed = False

    async def start(self, spec: WorkerSpec) -> Handle:
        """Add a worker, or return the handle of the running one of that name."""
        machine = self.machine
        if machine.is_silent:
            raise TimeoutError
        if machine.refusal:
            raise LaunchFailed(machine.refusal)
        if machine.waits_for:
            raise StartPending(machine.waits_for)
        if spec.name in machine.workers and machine.look(spec.name).phase is not WorkerPhase.EXITED:
            return machine.workers[spec.name].handle
        number = len(machine.started)
        url = machine.url or f"http://127.0.0.1:{FIRST_PORT + number}"
        handle = Handle(launcher=self.name, url=url, facts={"number": number})
        machine.workers[spec.name] = FakeWorker(
            spec=spec, handle=handle, script=machine.script(spec), started_s=machine.clock()
        )
        machine.started.append(spec.name)
        return handle

    async def poll(self, name: str, handle: Handle) -> Observation:
        """Observe a worker; an earlier worker of the same name has exited."""
        worker = self.machine.workers.get(name)
        if worker is not None and worker.handle != handle:
            return Observation(phase=WorkerPhase.EXITED)
        return self.machine.look(name)

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Let the worker exit after its script's `stop_s`, or after `grace_s` if that is shorter."""
        worker = self.machine.workers.get(name)
        self.machine.asked_to_stop.append(name)
        if worker is not None and worker.handle == handle:
            ends_s = self.machine.clock() + min(worker.script.stop_s, grace_s)
            worker.stops_s = ends_s if worker.stops_s is None else min(worker.stops_s, ends_s)

    async def known(self) -> dict[str, Handle]:
        """Return all running workers."""
        return {worker.spec.name: worker.handle for worker in self.machine.living()}

    async def forget(self, name: str) -> None:
        """Remove an exited worker; a running one stays."""
        if self.machine.look(name).phase is WorkerPhase.EXITED:
            self.machine.workers.pop(name, None)
            self.machine.forgotten.append(name)

    async def close(self) -> None:
        """Close the launcher; workers keep running."""
        self.is_closed = True
