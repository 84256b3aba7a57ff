"""
Check what must hold while a platform and all that it stands on is killed, stopped, cut and filled, by a seed.

A platform (`headrace up`) serves endpoints of a tiny custom image under load. Clients invoke, stream and invoke
asynchronously; an operator creates, updates, scales and deletes. Faults come by a schedule that the seed makes. Then
they end, and the history is compared with the model: `history.py`.

    python -m benchmarks.chaos.run --seed 1 --faults 100
    python -m benchmarks.chaos.run --seed 1 --faults 100 --processes 3
    python -m benchmarks.chaos.run --seed 1 --faults 100 --platforms 2 --database postgresql
    python -m benchmarks.chaos.run --seed 1 --faults 40 --nodes 2     # workers on a Ray cluster
    python -m benchmarks.chaos.run --replay schedule.json
    python -m benchmarks.chaos.run --judge history.json       # by the model as it is now
    python -m benchmarks.chaos.run --shrink schedule.json     # a shorter schedule that still fails

A run that fails prints its seed and the file of its schedule, and keeps the logs. Exit code 1: something did not hold.
"""

import heapq
import json
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from benchmarks.chaos.breakable import can_compile, can_mount
from benchmarks.chaos.clients import Load, NeverAcknowledged, Refused, in_thread
from benchmarks.chaos.history import Applied, History, summary, violations
from benchmarks.chaos.operator import STEADY, Operator
from benchmarks.chaos.schedule import KILLS, Fault, Schedule, Setup, from_json, make_schedule, shrink, to_json
from benchmarks.chaos.watch import Watch
from benchmarks.chaos.world import Undo, World
from benchmarks.harness.platforms import Platform, Target, until
from benchmarks.harness.results import exit_on_sigterm, make_parser, tell, write_result

from headrace.tools.bench.environment import describe_environment

_CALM_S = 8.0
"""Seconds of load after the last fault: these requests must be answered at the first attempt again."""
_TICK_S = 0.05
_RETRY_S = 0.25
_PATIENCE_S = 120.0
"""Longest wait of a fault for a process that it can hit; after it the fault is left out."""
_NUM_SHOWN = 20


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=20, metavar="N")
    parser.add_argument("--kinds", default="", help="only these, separated by commas; `kills` for all kills")
    parser.add_argument("--gap-s", type=float, default=1.5, help="mean time between two faults")
    parser.add_argument("--processes", type=int, default=1, help="as of `headrace up`")
    parser.add_argument("--platforms", type=int, default=1, help="more than 1 need PostgreSQL")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--nodes", type=int, default=0, help="Ray nodes for workers (default: no Ray)")
    parser.add_argument("--minutes", type=float, default=30.0, help="no fault is applied after this time")
    parser.add_argument("--threads", type=int, default=6, help="clients")
    parser.add_argument("--pause-s", type=float, default=0.1, help="mean pause of a client between two requests")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the schedule of a file")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="check the history.json of a run again")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="shorten a schedule that fails; writes FILE.shrunk")
    parser.add_argument("--output", type=Path, help="file for the result (JSON)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that passes, too")
    options = parser.parse_args()
    if options.platforms > 1 and options.database == "sqlite":
        parser.error("--platforms is above 1; expected --database postgresql with it.")
    return options


def chosen_schedule(options: Namespace) -> Schedule:
    """Return the schedule of a file or of the seed."""
    if file := options.replay or options.shrink:
        return from_json(file.read_text())
    setup = Setup(
        processes=options.processes,
        platforms=options.platforms,
        is_postgresql=options.database == "postgresql",
        nodes=options.nodes,
        has_small_disk=can_mount() and not options.nodes,  # Ray's files and clocks are not ours to break
        has_fake_clock=can_compile() and not options.nodes,
    )
    kinds = sorted(KILLS) if options.kinds == "kills" else [kind for kind in options.kinds.split(",") if kind]
    return make_schedule(options.seed, options.faults, setup, kinds=kinds, gap_s=options.gap_s)


class Stage(Protocol):
    """The platforms of a run and all that they stand on."""

    platforms: list[Platform]
    load_targets: Sequence[Target]
    operator_targets: Sequence[Target]

    def start(self) -> None: ...
    def apply(self, fault: Fault) -> tuple[str, Undo] | None: ...
    def worker_processes(self) -> dict[int, str]: ...
    def answers(self) -> Mapping[str, int]: ...
    def begun(self) -> Mapping[str, Sequence[str]]: ...
    def stop(self, platform: Platform) -> int: ...
    def leftovers(self) -> list[str]: ...


class Run:
    """One run of a schedule."""

    drain_s = 20.0
    """Longest time for workers that were replaced to end."""

    def __init__(self, schedule: Schedule, folder: Path, options: Namespace) -> None:
        self.history = History()
        self._schedule = schedule
        self._folder = folder
        self._num_threads = options.threads
        self._pause_s = options.pause_s
        self._limit_s = 60 * options.minutes

    def run(self, note: Callable[[str], None]) -> list[str]:
        with ExitStack() as stack:
            world = self.make_world(stack)
            note("starting the platform")
            world.start()
            operator = self.make_operator(world)
            stack.callback(operator.close)
            watch = Watch(world.platforms, self.history.incidents)
            stack.callback(watch.close)
            watch.start()
            try:
                operator.prepare()
                self._under_load(world, operator, watch, note)
                self._examine(world, operator, watch, note)
            except (RuntimeError, NeverAcknowledged, Refused) as error:
                return [*self.history.incidents, f"The run could not be finished: {error}"]
        return violations(self.history)

    def make_world(self, stack: ExitStack) -> Stage:
        return World(self._schedule.setup, self._folder, stack)

    def make_operator(self, world: Stage) -> Operator:
        return Operator(world.operator_targets, self.history, self._schedule.seed)

    def make_load(self, world: Stage) -> Load:
        return Load(
            world.load_targets, STEADY, seed=self._schedule.seed, num_threads=self._num_threads, pause_s=self._pause_s
        )

    def writers(self, operator: Operator) -> Sequence[Callable[[], None]]:
        """Return what stores objects and invokes asynchronously, each in a thread of its own."""
        return [operator.store_objects]

    def _under_load(self, world: Stage, operator: Operator, watch: Watch, note: Callable[[str], None]) -> None:
        load = self.make_load(world)
        incidents = self.history.incidents
        self.history.requests = load.requests
        load.start()
        threads = [
            in_thread("changes", operator.change_endpoints, incidents),
            *(in_thread("objects", writer, incidents) for writer in self.writers(operator)),
        ]
        try:
            self._apply_all(world, watch, load.started_s, note)
            operator.is_over.set()
            for thread in threads:
                thread.join()
            operator.settle()
            note("all faults are undone, and the endpoints are settled")
            time.sleep(_CALM_S)
        finally:
            operator.is_over.set()
            load.end()
        incidents += load.close()

    def _apply_all(self, world: Stage, watch: Watch, started_s: float, note: Callable[[str], None]) -> None:
        """Apply and undo the faults in their order; they end when all platforms are healthy again."""
        ends: list[tuple[float, int, Callable[[], None]]] = []
        late_s = 0.0
        for index, fault in enumerate(self._schedule.faults):
            self._wait(started_s, fault.at_s + late_s, ends)
            while True:
                began_s = time.monotonic() - started_s
                hit = world.apply(fault) if began_s < self._limit_s else None
                if hit is not None or began_s > min(fault.at_s + late_s + _PATIENCE_S, self._limit_s):
                    break
                self._wait(started_s, began_s + _RETRY_S, ends)
            late_s = began_s - fault.at_s  # the faults after it come later, not all at once
            if hit is not None:
                what, undo = hit
                note(f"{began_s:7.2f} s  {fault.kind} ({what}) for {fault.duration_s:.2f} s")
                end = partial(self._end, fault.kind, what, began_s, started_s, undo, watch)
                heapq.heappush(ends, (began_s + fault.duration_s, index, end))
        self._wait(started_s, max((end_s for end_s, _, _ in ends), default=0.0), ends)
        until(watch.is_calm, "all platforms answer after the last fault")

    @staticmethod
    def _wait(started_s: float, until_s: float, ends: list[tuple[float, int, Callable[[], None]]]) -> None:
        """Wait for a time, and undo what ends until then."""
        while (now_s := time.monotonic() - started_s) < until_s or (ends and ends[0][0] <= now_s):
            if ends and ends[0][0] <= now_s:
                heapq.heappop(ends)[2]()
            else:
                time.sleep(_TICK_S)

    def _end(
        self, kind: str, what: str, began_s: float, started_s: float, undo: Callable[[], None], watch: Watch
    ) -> None:
        undo()
        undone_s = time.monotonic() - started_s

        def recovered() -> None:
            ended_s = time.monotonic() - started_s
            self.history.faults.append(
                Applied(kind=kind, what=what, began_s=began_s, undone_s=undone_s, ended_s=ended_s)
            )

        watch.when_healthy(recovered)

    def _examine(self, world: Stage, operator: Operator, watch: Watch, note: Callable[[str], None]) -> None:
        note("reading back")
        operator.read_back()
        operator.settle()
        history = self.history
        deadline_s = time.monotonic() + self.drain_s
        while True:  # a worker that was replaced may still drain
            history.num_workers = len(world.worker_processes())
            expected = sum(state.count for state in history.described.values())
            if history.num_workers == expected or time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        history.invocations = operator.invocations(world.operator_targets)
        history.answers, history.begun = world.answers(), world.begun()
        history.activities = operator.activities()
        history.incidents += operator.unclear
        note("stopping the platform")
        watch.close()
        for platform in world.platforms:
            if code := world.stop(platform):
                history.incidents.append(f"{platform.name} ended with exit code {code} after SIGTERM.")
        history.leftovers = world.leftovers()


def run_once(schedule: Schedule, options: Namespace, *, is_quiet: bool = False) -> tuple[History, list[str]]:
    """Run a schedule in a new folder, which is kept if something did not hold."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    (folder / "schedule.json").write_text(to_json(schedule))
    began_s = time.monotonic()

    def note(text: str) -> None:
        if not is_quiet:
            tell(f"[{time.monotonic() - began_s:6.1f}] {text}")

    run = Run(schedule, folder, options)
    found = run.run(note)
    (folder / "history.json").write_bytes(msgspec.json.encode(run.history))
    if found:
        tell(f"Seed {schedule.seed} failed. Schedule and logs: {folder}")
    elif options.keep:
        tell(f"Schedule and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return run.history, found


def shrink_file(schedule: Schedule, options: Namespace) -> None:
    """Shorten a schedule that fails, and write the shorter one."""

    def fails(shorter: Schedule) -> bool:
        _, found = run_once(shorter, options, is_quiet=True)
        tell(f"{len(shorter.faults)} faults: {found[0] if found else 'holds'}")
        return bool(found)

    shortest = shrink(schedule, fails)
    path = options.shrink.with_suffix(".shrunk")
    path.write_text(to_json(shortest))
    print(f"{len(shortest.faults)} of {len(schedule.faults)} faults are left: {path}")


def show(found: Sequence[str]) -> None:
    """Print what did not hold."""
    for sentence in found[:_NUM_SHOWN]:
        tell(f"VIOLATED: {sentence}")
    if len(found) > _NUM_SHOWN:
        tell(f"... and {len(found) - _NUM_SHOWN} more.")


def main() -> None:
    """Run, print what did not hold, and the counts as one line of JSON."""
    options = parse_arguments()
    exit_on_sigterm()
    schedule = chosen_schedule(options)
    if options.shrink:
        shrink_file(schedule, options)
        return
    began_s = time.monotonic()
    if options.judge:
        history = msgspec.json.decode(options.judge.read_bytes(), type=History)
        found = violations(history)
    else:
        history, found = run_once(schedule, options)
    duration_s = round(time.monotonic() - began_s, 1)
    show(found)
    result = {"seed": schedule.seed, "violations": len(found), "duration_s": duration_s, **summary(history)}
    if options.output:
        made_by = {"environment": describe_environment(), "arguments": sys.argv[1:]}
        whole = {**made_by, **result, "sentences": found}
        write_result(options.output, whole)
    print(json.dumps(result))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
