"""Running a target from its parent process, which survives what an input does and reports it."""

import argparse
import faulthandler
import logging
import sys
import traceback
import warnings
from mmap import mmap

import structlog

from tests.fuzz import guided, native
from tests.fuzz.campaign import Finding, Report, minimised, run
from tests.fuzz.children import CRASH_FACTOR, FOUND, exit_code, keep, keep_crash, limit_memory, temporary_files
from tests.fuzz.libfuzzer import Growth, grow
from tests.fuzz.mutation import case
from tests.fuzz.records import record, record_growth
from tests.fuzz.target import Target, read_corpus
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.archives import remove_scenes

_NUMBER_BYTES = 8
_SEEDS_S = 600
"""Wall seconds for the seeds and the imports that they cause."""


def supervise(name: str, arguments: argparse.Namespace) -> bool:
    """Run a target in a fork; return whether it held."""
    with temporary_files():
        if arguments.seconds:
            return _run_guided(name, arguments)
        return _run_mutations(TARGETS[name], arguments)


def _run_guided(name: str, arguments: argparse.Namespace) -> bool:
    target = TARGETS.get(name)
    if target is None:
        growth = grow(name, [b"", *read_corpus(name).values()], native.launcher(name), seconds=arguments.seconds)
    else:
        _quieten()
        growth = grow(name, target.first_seeds, guided.launcher(target), seconds=arguments.seconds, words=target.words)
        remove_scenes()
    _report(name, target, growth)
    if arguments.record:
        record_growth(arguments.record, name, growth)
    return growth.status == 0


def _report(name: str, target: Target | None, growth: Growth) -> None:
    print(
        f"{name:22} {growth.num_runs:9} inputs, {growth.cpu_s:6.0f} s CPU, "
        f"edges {growth.num_seed_edges} -> {growth.num_edges}",
        flush=True,
    )
    for crash, data in growth.crashes.items():
        print(f"{name}: {crash} ended the process")
        if target is not None and crash.startswith("crash-"):
            keep_crash(target, data)
        else:
            keep(name, data)
    if growth.status and not growth.crashes and growth.status != FOUND:
        print(f"{name}: libFuzzer ended with {growth.status}; see build/fuzz/{name}/log")


def _run_mutations(target: Target, arguments: argparse.Namespace) -> bool:
    """A child that dies leaves the number of its input."""
    with mmap(-1, _NUMBER_BYTES) as place:
        code = exit_code(lambda: _run_child(target, arguments, place))
        if code in {0, FOUND}:
            return code == 0
        number = int.from_bytes(place[:], "little")
        print(f"{target.name}: input {number} of seed {arguments.seed} ended the process: status {code}", flush=True)
        data = case(target, arguments.seed, number)
        if code < 0:
            keep_crash(target, data)
        else:
            keep(target.name, data)
        remove_scenes()
    if arguments.record:
        record(arguments.record, target.name, Report(), is_finding=True)
    return False


def _run_child(target: Target, arguments: argparse.Namespace, place: mmap) -> int:
    try:
        return _run(target, arguments, place)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
        traceback.print_exc()
        return 2
    finally:
        remove_scenes()
        sys.stdout.flush()


def _quieten() -> None:
    warnings.simplefilter("error")  # as in the test suite
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _run(target: Target, arguments: argparse.Namespace, place: mmap) -> int:
    numbers = range(arguments.first, arguments.first + arguments.cases)
    _quieten()
    _ = target.seeds
    limit_memory()

    def before(index: int) -> None:
        place[:] = numbers[index].to_bytes(_NUMBER_BYTES, "little")
        faulthandler.dump_traceback_later(CRASH_FACTOR * target.limit_s, exit=True)

    faulthandler.dump_traceback_later(_SEEDS_S, exit=True)
    try:
        report = run(target, (case(target, arguments.seed, number) for number in numbers), before=before)
    except Finding as finding:
        faulthandler.cancel_dump_traceback_later()
        print(f"input {int.from_bytes(place[:], 'little')} of seed {arguments.seed}: {finding}", flush=True)
        traceback.print_exception(finding.cause, limit=-8)
        if arguments.record:
            record(arguments.record, target.name, Report(), is_finding=True)
        keep(target.name, minimised(finding))
        return FOUND
    print(
        f"{target.name:22} {report.num_cases:8} inputs {report.num_accepted / max(1, report.num_cases):5.0%} accepted "
        f"{report.cpu_s:7.1f} s CPU, slowest {report.slowest_s * 1000:6.0f} ms, +{report.growth_bytes >> 20} MiB",
        flush=True,
    )
    if arguments.record:
        record(arguments.record, target.name, report)
    return 0
