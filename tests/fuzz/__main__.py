"""`scripts/fuzz`: run targets by hand, each in a process of its own, and keep minimised findings in the corpus."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz import native
from tests.fuzz.target import Target


def main() -> int:
    """Run the targets that the arguments name; return the exit status."""
    arguments = _arguments()
    if arguments.seconds:
        from tests.fuzz.guided import instrument

        instrument()
    from tests.fuzz.supervision import supervise
    from tests.fuzz.targets import TARGETS

    purposes = {name: _purpose(target) for name, target in TARGETS.items()} | native.purposes()
    if arguments.list:
        for name, purpose in purposes.items():
            print(f"{name:22} {purpose}")
        return 0
    names = arguments.target or (list(purposes) if arguments.seconds and native.compiler() else list(TARGETS))
    if arguments.seconds and not (arguments.target or native.compiler()):
        print("There is no clang, so the native targets are left out.", file=sys.stderr)
    wrong = _wrong_names(names, list(purposes), arguments)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    if any(name in native.purposes() for name in names):
        native.build()
    started_s = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("fork")) as workers:
        held = list(workers.map(partial(supervise, arguments=arguments), names))
    failed = [name for name, is_held in zip(names, held, strict=True) if not is_held]
    taken_s = time.monotonic() - started_s
    print(f"{len(names)} targets, {len(failed)} with findings, {taken_s:.0f} s, seed {arguments.seed}")
    return bool(failed)


def _purpose(target: Target) -> str:
    """Return the first line of the docstring of the function that a target calls."""
    check = target.check.func if isinstance(target.check, partial) else target.check
    return (check.__doc__ or "").strip().partition("\n")[0]


def _wrong_names(names: list[str], known: list[str], arguments: argparse.Namespace) -> str:
    """Return what is wrong with the names of targets; empty: nothing."""
    unknown = [name for name in names if name not in known]
    if unknown:
        return f"There is no target {unknown[0]!r}. `scripts/fuzz --list` names all {len(known)}."
    guided = [name for name in names if name in native.purposes()]
    if guided and not arguments.seconds:
        return f"{guided[0]} is native code, which runs guided by coverage only: add --seconds 60."
    return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Run mutated inputs through every parser that reads what strangers send.",
        epilog="A finding is minimised and written to tests/fuzz/corpus/TARGET/found-*, which the tests replay.",
    )
    parser.add_argument("target", nargs="*", help="names of targets; default: all")
    parser.add_argument("--cases", type=int, default=10_000, help="inputs for each target (default: 10000)")
    parser.add_argument("--seconds", type=int, help="guide by coverage for so long for each target, instead of --cases")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all inputs (default: the time)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to run one again")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (default: 1)")
    parser.add_argument("--record", type=Path, help="JSON file to which the counts of this run are added")
    parser.add_argument("--list", action="store_true", help="name the targets")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
