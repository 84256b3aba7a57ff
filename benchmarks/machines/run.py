"""
Check what must hold while three machines lose their power, their network or half of it in turn, under load.

Each machine is a network namespace with an address of its own and runs a platform (`headrace up --advertise`);
PostgreSQL and an S3 server have one each. Clients stream through all platforms and invoke asynchronously, and an
operator creates, updates, scales and deletes endpoints. A fault hits one machine at a time, each in turn. Then the
history is compared with the model of `benchmarks.chaos`, and the requests through the other machines are judged.

    python -m benchmarks.machines.run --rounds 10
    python -m benchmarks.machines.run --judge /tmp/headrace-machines-x    # by the model as it is now
    python -m benchmarks.machines.run --rounds 1 --kinds machine-cut-database,machine-mute --keep
    python -m benchmarks.machines.run --rounds 3 --ray redis --fault-s 20 --kinds machine-power,machine-head-power

It needs PostgreSQL's server, iproute2, SeaweedFS (the extra `s3`), and user namespaces. Exit code 1: something did not
hold.
"""

import json
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from benchmarks.chaos.clients import Load
from benchmarks.chaos.history import History, summary, violations
from benchmarks.chaos.operator import STEADY, Operator
from benchmarks.chaos.run import Run, show
from benchmarks.chaos.schedule import Fault, Schedule, Setup
from benchmarks.harness.results import exit_on_sigterm, make_parser, names, tell, write_result
from benchmarks.machines import network
from benchmarks.machines.judge import Leaders, broken_promises, by_kind, rows
from benchmarks.machines.world import FAULTS, HEAD, NAMES, World

from headrace.tools.bench.environment import describe_environment

_DEFAULT_KINDS = ("machine-power", "machine-cut")
_PAUSE_S = 1.5
"""Longest time between two changes of endpoints."""
_RAY_PAUSE_S = 15.0
"""The same on Ray, which takes two to three seconds of CPU time for each worker that it starts."""


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="in each, each fault hits each machine")
    parser.add_argument("--kinds", type=names, default=_DEFAULT_KINDS, help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--machines", type=names, default=NAMES, help=f"those that are hit, of {', '.join(NAMES)}")
    parser.add_argument(
        "--ray",
        choices=("memory", "redis"),
        default="",
        help="run workers on a Ray cluster with a node on each machine; its control service has its state there",
    )
    parser.add_argument("--fault-s", type=float, default=8.0, help="seconds from a fault until it is undone")
    parser.add_argument("--gap-s", type=float, default=12.0, help="seconds from there until the next one")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--writers", type=int, default=8, help="clients that invoke asynchronously")
    parser.add_argument("--step-s", type=float, default=0.25, help="time between two of the 8 events of a stream")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="no fault is applied after this time")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the run with these logs again")
    parser.add_argument("--output", type=Path, help="file for the result (JSON)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that passes, too")
    options = parser.parse_args()
    if unknown := sorted({*options.kinds} - {*FAULTS}) + sorted({*options.machines} - {*NAMES}):
        parser.error(
            f"{unknown[0]!r} is unknown; expected kinds of {', '.join(FAULTS)}, machines of {', '.join(NAMES)}."
        )
    if not options.ray and any(kind.startswith(f"machine-{HEAD}") for kind in options.kinds):
        parser.error(f"Faults of machine-{HEAD} are of Ray's control service; expected --ray with them.")
    if options.ray == "redis" and shutil.which("redis-server") is None:
        parser.error("--ray is redis, and there is no redis-server. Install it (Debian: apt-get install redis-server).")
    return options


def schedule_of(options: Namespace) -> Schedule:
    """Return the faults in their order: in each round, each of them hits each machine."""
    hits = [
        (kind, name)
        for _ in range(options.rounds)
        for kind in options.kinds
        for name in ((HEAD,) if kind.startswith(f"machine-{HEAD}") else options.machines)
    ]
    faults = tuple(
        Fault(
            at_s=options.gap_s + index * (options.fault_s + options.gap_s),
            kind=kind,
            duration_s=options.fault_s,
            target=(*NAMES, HEAD).index(name),
        )
        for index, (kind, name) in enumerate(hits)
    )
    return Schedule(seed=options.seed, setup=Setup(platforms=len(NAMES), is_postgresql=True), faults=faults)


class MachinesRun(Run):
    """A run on three machines."""

    drain_s = 60.0
    """The leader looks every 30 s for workers of a machine that came back."""

    def __init__(self, schedule: Schedule, folder: Path, options: Namespace) -> None:
        super().__init__(schedule, folder, options)
        self._options = options
        self.leaders: Sequence[tuple[float, str]] = ()
        """Seconds after the start of the load → the name of the machine that leads from then on."""

    def make_world(self, stack: ExitStack) -> World:
        world = World(self._folder, stack, step_s=self._options.step_s, ray=self._options.ray)
        self._world = world
        return world

    def make_operator(self, world: World) -> Operator:
        return Operator(
            world.operator_targets,
            self.history,
            self._schedule.seed,
            is_steady_changed=False,
            max_pause_s=_RAY_PAUSE_S if self._options.ray else _PAUSE_S,
        )

    def make_load(self, world: World) -> Load:
        load = Load(
            world.load_targets,
            STEADY,
            seed=self._schedule.seed,
            num_threads=self._options.streams,
            pause_s=self._options.pause_s,
            apis=("stream", "openai"),
        )
        self._started_s = load.started_s
        return load

    def writers(self, operator: Operator) -> Sequence[Callable[[], None]]:
        return [
            partial(operator.store_objects, f"{index}-", pause_s=self._options.write_pause_s)
            for index in range(self._options.writers)
        ]

    def run(self, note: Callable[[str], None]) -> list[str]:
        found = super().run(note)
        self.leaders = [(at_s - self._started_s, self._world.name_of(url)) for at_s, url in self._world.leaders.changes]
        return [*found, *broken_promises(self.history, self.leaders)]


def main() -> None:
    """Run in namespaces, print what did not hold, and the counts as one line of JSON."""
    options = parse_arguments()
    if options.judge:
        history = msgspec.json.decode((options.judge / "history.json").read_bytes(), type=History)
        leaders = json.loads((options.judge / "leaders.json").read_text())
        report(history, leaders, [*violations(history), *broken_promises(history, leaders)], options)
    network.enter("benchmarks.machines.run")
    exit_on_sigterm()
    options.threads, options.pause_s, options.write_pause_s = options.streams, 0.2, 2.0
    folder = Path(tempfile.mkdtemp(prefix="headrace-machines-"))
    began_s = time.monotonic()
    run = MachinesRun(schedule_of(options), folder, options)
    found = run.run(lambda text: tell(f"[{time.monotonic() - began_s:6.1f}] {text}"))
    (folder / "history.json").write_bytes(msgspec.json.encode(run.history))
    (folder / "leaders.json").write_text(json.dumps(run.leaders))
    if found or options.keep:
        tell(f"Logs: {folder}")
    else:
        shutil.rmtree(folder)
    report(run.history, run.leaders, found, options)


def report(history: History, leaders: Leaders, found: Sequence[str], options: Namespace) -> NoReturn:
    """Print the result of a run, write it if that was asked for, and exit."""
    show(found)
    table = rows(history, leaders)
    for row in table:
        tell(json.dumps(row))
    duration_s = max((request.attempts[-1].ended_s for request in history.requests), default=0.0)
    result = {"seed": options.seed, "violations": len(found), "duration_s": round(duration_s, 1)}
    result |= summary(history)
    if options.output:
        made_by = {"environment": describe_environment(), "arguments": sys.argv[1:]}
        write_result(options.output, {**made_by, **result, "sentences": found, "kinds": by_kind(table), "rows": table})
    print(json.dumps(result))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
