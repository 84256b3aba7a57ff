"""`scripts/simulate`: run seeds by hand, keep those that fail as small scenarios, and measure planted bugs."""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
from benchmarks.chaos.schedule import shortest

from tests.simulation.planted import BUGS, planted
from tests.simulation.scenario import CALM, WEIGHTS, Scenario, draw, draw_only
from tests.simulation.simulation import Outcome, simulate

FAILED: Path = Path("failed-scenarios")
"""Folder for scenarios that have failed, in the working directory."""
_CHUNK = 20


def main() -> int:
    """Do what the arguments ask for; return the exit status."""
    arguments = _arguments()
    if arguments.list:
        for name, bug in BUGS.items():
            print(f"{name:16} {bug.what}")
        return 0
    _keep_collector_small()
    if arguments.replay:
        return _replay(arguments)
    if arguments.hours:
        return _show(simulate(_quiet(arguments.hours * 3600.0)))
    if arguments.bugs:
        return sum(not _first_failure(name, arguments.seeds) for name in arguments.bug or BUGS)
    return _run_seeds(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Run the real control plane in virtual time, with clients and faults that seeds decide.",
        epilog=f"A scenario that fails is written to {FAILED}/SEED.json, for --replay.",
    )
    parser.add_argument("--seeds", type=_seeds, default=range(200), help="first and last seed + 1 (default: 0:200)")
    parser.add_argument("--only", choices=sorted(WEIGHTS), help="only operations of this kind, with many losses")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--replay", type=Path, help="run the scenario of a file, and print what happens")
    parser.add_argument("--shrink", action="store_true", help="remove what a failing scenario does not need")
    parser.add_argument("--hours", type=float, help="let so many virtual hours pass in which nothing happens")
    parser.add_argument("--bugs", action="store_true", help="plant each bug, and name the first seed that finds it")
    parser.add_argument("--bug", action="append", choices=list(BUGS), help="plant this bug; with --bugs: only this one")
    parser.add_argument("--record", type=Path, help="JSON file to which the counts of the run are written")
    parser.add_argument("--list", action="store_true", help="name the bugs")
    return parser.parse_args()


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _keep_collector_small() -> None:
    """Keep the garbage collector from visiting what has been imported: a quarter of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def _outcomes(seeds: range, jobs: int, bugs: tuple[str, ...], only: str | None = None) -> Iterator[Outcome]:
    run = partial(_run_seed, bugs=bugs, only=only)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as workers:
        yield from workers.map(run, seeds, chunksize=_CHUNK)


def _run_seed(seed: int, bugs: tuple[str, ...] = (), only: str | None = None) -> Outcome:
    return _with_bugs(draw(seed) if only is None else draw_only(seed, only), bugs)


def _with_bugs(scenario: Scenario, bugs: tuple[str, ...], *, is_traced: bool = False) -> Outcome:
    with ExitStack() as stack:
        for name in bugs:
            stack.enter_context(planted(name))
        return simulate(scenario, is_traced=is_traced)


def _run_seeds(arguments: argparse.Namespace) -> int:
    began_s, bugs = time.monotonic(), tuple(arguments.bug or ())
    totals = dict.fromkeys(("seeds", "failed", "virtual_s", "cpu_s", "steps", "commits", "requests", "faults"), 0.0)
    for outcome in _outcomes(arguments.seeds, arguments.jobs, bugs, arguments.only):
        totals["seeds"] += 1
        totals["failed"] += bool(outcome.violations)
        totals["virtual_s"] += outcome.virtual_s
        totals["cpu_s"] += outcome.cpu_s
        totals["steps"] += outcome.num_steps
        totals["commits"] += outcome.num_commits
        totals["requests"] += outcome.num_requests
        totals["faults"] += len(outcome.scenario.faults)
        if outcome.violations:
            _keep(outcome, bugs, is_shrunk=arguments.shrink)
        if arguments.record:
            arguments.record.write_text(json.dumps({name: round(value, 1) for name, value in totals.items()}) + "\n")
    hours, cpu_s = totals["virtual_s"] / 3600, max(1.0, totals["cpu_s"])
    counts = ", ".join(f"{totals[name]:.0f} {name}" for name in ("seeds", "failed", "faults", "requests", "commits"))
    print(f"{counts}; {hours:.1f} virtual hours in {cpu_s:.0f} s CPU, {time.monotonic() - began_s:.0f} s", flush=True)
    return int(totals["failed"] > 0)


def _keep(outcome: Outcome, bugs: tuple[str, ...], *, is_shrunk: bool) -> None:
    """Print what a seed has found, and write its scenario."""
    scenario = outcome.scenario
    print(f"seed {scenario.seed} failed:", *outcome.violations[:5], sep="\n  ", flush=True)
    if is_shrunk:
        scenario = shrunk_scenario(scenario, lambda smaller: bool(_with_bugs(smaller, bugs).violations))
        print(f"  shrunk to {len(scenario.faults)} faults and {len(scenario.operations)} operations", flush=True)
    FAILED.mkdir(exist_ok=True)
    path = FAILED / f"{scenario.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(scenario)) + b"\n")
    print(f"  kept as {path}: scripts/simulate --replay {path}", flush=True)


def shrunk_scenario(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a smaller scenario that still fails: first with fewer faults, then with fewer operations."""
    replace = msgspec.structs.replace
    faults = shortest(scenario.faults, lambda faults: fails(replace(scenario, faults=faults)))
    scenario = replace(scenario, faults=faults)
    operations = shortest(scenario.operations, lambda chosen: fails(replace(scenario, operations=chosen)))
    return replace(scenario, operations=operations)


def _replay(arguments: argparse.Namespace) -> int:
    scenario = msgspec.json.decode(arguments.replay.read_bytes(), type=Scenario)
    outcome = _with_bugs(scenario, tuple(arguments.bug or ()), is_traced=True)
    print(*outcome.lines, sep="\n")
    return _show(outcome)


def _show(outcome: Outcome) -> int:
    rate = outcome.virtual_s / 3600 / max(outcome.cpu_s, 0.001)
    print(
        f"{outcome.virtual_s:.0f} virtual seconds in {outcome.cpu_s:.1f} s CPU ({rate:.2f} hours per CPU second), "
        f"{outcome.num_steps} steps, {outcome.num_commits} commits, trace {outcome.digest}"
    )
    print(*outcome.violations, sep="\n")
    return bool(outcome.violations)


def _quiet(quiet_s: float) -> Scenario:
    return Scenario(seed=0, members=3, knobs=CALM, faults=(), operations=(), quiet_s=quiet_s)


def _first_failure(name: str, seeds: range) -> bool:
    """Print the first seed that finds a bug; return whether there is one."""
    began_s = time.process_time()
    failing = (outcome for outcome in _outcomes(seeds, 1, (name,)) if outcome.violations)
    for outcome in islice(failing, 1):
        number = outcome.scenario.seed - seeds.start + 1
        print(f"{name:16} {number:4} seeds, {time.process_time() - began_s:5.1f} s CPU: {outcome.violations[0][:150]}")
        return True
    print(f"{name:16} not found by {len(seeds)} seeds", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
