"""`scripts/fuzz`: run targets by hand, each in a process of its own, and keep minimised findings in the corpus."""

import argparse
import faulthandler
import hashlib
import logging
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from mmap import mmap
from multiprocessing import get_context
from pathlib import Path

import structlog

from tests.fuzz.campaign import Finding, Report, failure, minimised, run, smallest
from tests.fuzz.mutation import case
from tests.fuzz.records import record
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.archives import remove_scenes

_MEMORY_BYTES = 3 << 30
"""Address space that a target may take beyond what its process has when it begins."""
_NUMBER_BYTES = 8
_TEMPORARY = tempfile.gettempdir()
_FOUND = 3
"""Exit status of a child that reported its finding; `faulthandler` ends one that hangs with 1."""
_SEEDS_S = 600
"""Wall seconds for the seeds and the imports that they cause."""
_CRASH_FACTOR = 30
"""Wall seconds for one input, as a multiple of its limit, before the parent takes it for a hang in native code."""


def main() -> int:
    """Run the targets that the arguments name; return the exit status."""
    arguments = _arguments()
    if arguments.list:
        for target in TARGETS.values():
            print(f"{target.name:22} {_purpose(target)}")
        return 0
    names = arguments.target or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        print(f"There is no target {unknown[0]!r}. `scripts/fuzz --list` names all {len(TARGETS)}.", file=sys.stderr)
        return 2
    started_s = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("fork")) as workers:
        held = list(workers.map(partial(_supervise, arguments=arguments), names))
    failed = [name for name, is_held in zip(names, held, strict=True) if not is_held]
    taken_s = time.monotonic() - started_s
    print(f"{len(names)} targets, {len(failed)} with findings, {taken_s:.0f} s, seed {arguments.seed}")
    return bool(failed)


def _purpose(target: Target) -> str:
    """Return the first line of the docstring of the function that a target calls."""
    check = target.check.func if isinstance(target.check, partial) else target.check
    return (check.__doc__ or "").strip().partition("\n")[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Run mutated inputs through every parser that reads what strangers send.",
        epilog="A finding is minimised and written to tests/fuzz/corpus/TARGET/found-*, which the tests replay.",
    )
    parser.add_argument("target", nargs="*", help="names of targets; default: all")
    parser.add_argument("--cases", type=int, default=10_000, help="inputs for each target (default: 10000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all inputs (default: the time)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to run one again")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (default: 1)")
    parser.add_argument("--record", type=Path, help="JSON file to which the counts of this run are added")
    parser.add_argument("--list", action="store_true", help="name the targets")
    return parser.parse_args()


def _supervise(name: str, arguments: argparse.Namespace) -> bool:
    """Run a target in a fork; return whether it held. A child that dies leaves the number of its input."""
    target = TARGETS[name]
    with mmap(-1, _NUMBER_BYTES) as place, tempfile.TemporaryDirectory(prefix="fuzz-", dir=_TEMPORARY) as folder:
        tempfile.tempdir = folder  # what a child that dies leaves behind
        try:
            code = _exit_code(lambda: _run_child(target, arguments, place))
        finally:
            tempfile.tempdir = _TEMPORARY
        if code in {0, _FOUND}:
            return code == 0
        number = int.from_bytes(place[:], "little")
        print(f"{target.name}: input {number} of seed {arguments.seed} ended the process: status {code}", flush=True)
        data = case(target, arguments.seed, number)
        _keep(target, smallest(data, lambda smaller: _ends_process(target, smaller)) if code < 0 else data)
        remove_scenes()
    if arguments.record:
        record(arguments.record, target.name, Report(), is_finding=True)
    return False


def _exit_code(run_child: Callable[[], int]) -> int:
    """Run a function in a fork; return what it returns, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os._exit(run_child())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _ends_process(target: Target, data: bytes) -> bool:
    """Return whether a signal ends the process that runs this input."""

    def run_one() -> int:
        with Path(os.devnull).open("w") as nothing:  # the runtime of Rust reports each panic
            os.dup2(nothing.fileno(), sys.stderr.fileno())
        _limit_memory()
        faulthandler.dump_traceback_later(_CRASH_FACTOR * target.limit_s, exit=True)
        failure(target, data)
        return 0

    return _exit_code(run_one) < 0


def _run_child(target: Target, arguments: argparse.Namespace, place: mmap) -> int:
    try:
        return _run(target, arguments, place)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
        traceback.print_exc()
        return 2
    finally:
        remove_scenes()
        sys.stdout.flush()


def _run(target: Target, arguments: argparse.Namespace, place: mmap) -> int:
    numbers = range(arguments.first, arguments.first + arguments.cases)
    warnings.simplefilter("error")  # as in the test suite
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    _ = target.seeds
    _limit_memory()

    def before(index: int) -> None:
        place[:] = numbers[index].to_bytes(_NUMBER_BYTES, "little")
        faulthandler.dump_traceback_later(_CRASH_FACTOR * target.limit_s, exit=True)

    faulthandler.dump_traceback_later(_SEEDS_S, exit=True)
    try:
        report = run(target, (case(target, arguments.seed, number) for number in numbers), before=before)
    except Finding as finding:
        faulthandler.cancel_dump_traceback_later()
        print(f"input {int.from_bytes(place[:], 'little')} of seed {arguments.seed}: {finding}", flush=True)
        traceback.print_exception(finding.cause, limit=-8)
        if arguments.record:
            record(arguments.record, target.name, Report(), is_finding=True)
        _keep(target, minimised(finding))
        return _FOUND
    print(
        f"{target.name:22} {report.num_cases:8} inputs {report.num_accepted / max(1, report.num_cases):5.0%} accepted "
        f"{report.cpu_s:7.1f} s CPU, slowest {report.slowest_s * 1000:6.0f} ms, +{report.growth_bytes >> 20} MiB",
        flush=True,
    )
    if arguments.record:
        record(arguments.record, target.name, report)
    return 0


def _keep(target: Target, data: bytes) -> None:
    target.folder.mkdir(parents=True, exist_ok=True)
    path = target.folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"kept as {path.relative_to(Path.cwd())} ({len(data)} bytes): {data[:200]!r}")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


if __name__ == "__main__":
    sys.exit(main())
