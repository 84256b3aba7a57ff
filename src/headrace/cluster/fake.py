"""
A launcher without processes, for tests: workers go through the phases of a script while a hand moves the clock.

A `FakeMachine` has the workers; several `FakeLauncher`s on one machine, one after the other, are the lives of one
platform (adoption).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.cluster.launcher import Handle, LaunchFailed, Observation, StartPending, WorkerPhase, WorkerSpec

FIRST_PORT = 20_000


class ManualClock:
    """A clock that stands still until it is moved; call it for the time, seconds."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Tell the time."""
        return self.now_s

    def advance(self, seconds: float) -> float:
        """Move on; returns the time."""
        self.now_s += seconds
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What becomes of a worker that nobody interferes with."""

    phases: tuple[tuple[float, Observation], ...]
    """From so many seconds after its start, this is seen."""
    stop_s: float = 0.0
    """From SIGTERM to its end; never longer than the grace that it is given."""

    def at(self, age_s: float) -> Observation:
        """What is seen at that age."""
        seen = Observation(phase=WorkerPhase.STARTING)
        for from_s, observation in self.phases:
            if age_s >= from_s:
                seen = observation
        return seen


def ready_after(seconds: float = 0.0, *, fetch_s: float = 0.0, stop_s: float = 0.0) -> Script:
    """A worker that becomes ready and stays it."""
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
    """A worker that ends by itself before it is ready; `ended_in` None: it left no report."""
    exited = Observation(phase=WorkerPhase.EXITED, exit_code=exit_code, message=message, ended_in=ended_in)
    return Script(phases=((0.0, Observation(phase=WorkerPhase.STARTING)), (seconds, exited)))


@dataclass(slots=True, kw_only=True)
class FakeWorker:
    """One worker on a `FakeMachine`."""

    spec: WorkerSpec
    handle: Handle
    script: Script
    started_s: float
    override: Observation | None = None
    """Seen instead of what the script says; see `FakeMachine.show`."""
    stops_s: float | None = None
    """When it will have stopped, as it was asked to."""


@dataclass(slots=True)
class FakeMachine:
    """Where the workers of `FakeLauncher`s run."""

    clock: Callable[[], float] = field(default_factory=ManualClock)
    script: Callable[[WorkerSpec], Script] = lambda _spec: ready_after()
    """Chosen for each worker when it starts."""
    refusal: str = ""
    """Not empty: starts fail with this sentence."""
    waits_for: str = ""
    """Not empty: starts are pending with this sentence."""
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    """By name, the exited ones too until they are forgotten."""
    started: list[str] = field(default_factory=list)
    """Names in the order of their starts."""
    asked_to_stop: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def show(self, name: str, phase: WorkerPhase, *, exit_code: int | None = None, message: str = "") -> None:
        """From now on this is seen of a worker: a crash, an unhealthy worker, one that recovers."""
        self.workers[name].override = Observation(phase=phase, exit_code=exit_code, message=message)

    def crash(self, name: str, *, exit_code: int = -9, message: str = "") -> None:
        """A worker ends by itself."""
        self.show(name, WorkerPhase.EXITED, exit_code=exit_code, message=message)

    def look(self, name: str) -> Observation:
        """What is seen of a worker; one that is not there has exited."""
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
        """Workers that have not exited."""
        return [worker for name, worker in self.workers.items() if self.look(name).phase is not WorkerPhase.EXITED]


class FakeLauncher:
    """A `Launcher` on a `FakeMachine`."""

    name = "fake"

    def __init__(self, machine: FakeMachine | None = None) -> None:
        self.machine = machine or FakeMachine()
        self.is_closed = False

    async def start(self, spec: WorkerSpec) -> Handle:
        """Add a worker, or return the handle of the living one of that name."""
        machine = self.machine
        if machine.refusal:
            raise LaunchFailed(machine.refusal)
        if machine.waits_for:
            raise StartPending(machine.waits_for)
        if spec.name in machine.workers and machine.look(spec.name).phase is not WorkerPhase.EXITED:
            return machine.workers[spec.name].handle
        number = len(machine.started)
        handle = Handle(launcher=self.name, url=f"http://127.0.0.1:{FIRST_PORT + number}", facts={"number": number})
        machine.workers[spec.name] = FakeWorker(
            spec=spec, handle=handle, script=machine.script(spec), started_s=machine.clock()
        )
        machine.started.append(spec.name)
        return handle

    async def poll(self, name: str, handle: Handle) -> Observation:
        """Look at a worker; a handle of an earlier worker of the same name sees it exited."""
        worker = self.machine.workers.get(name)
        if worker is not None and worker.handle != handle:
            return Observation(phase=WorkerPhase.EXITED)
        return self.machine.look(name)

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Let it end after its script's `stop_s`, or the grace if that is shorter."""
        worker = self.machine.workers.get(name)
        self.machine.asked_to_stop.append(name)
        if worker is not None and worker.handle == handle:
            ends_s = self.machine.clock() + min(worker.script.stop_s, grace_s)
            worker.stops_s = ends_s if worker.stops_s is None else min(worker.stops_s, ends_s)

    async def known(self) -> dict[str, Handle]:
        """All living workers."""
        return {worker.spec.name: worker.handle for worker in self.machine.living()}

    async def forget(self, name: str) -> None:
        """Drop an exited worker; a living one stays."""
        if self.machine.look(name).phase is WorkerPhase.EXITED:
            self.machine.workers.pop(name, None)
            self.machine.forgotten.append(name)

    async def close(self) -> None:
        """End this life of the platform; workers run on."""
        self.is_closed = True
