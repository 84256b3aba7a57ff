"""Coverage-guided runs of parsers in Python: Atheris counts the edges of our modules, libFuzzer chooses the inputs."""

import io
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

from tests.fuzz.campaign import Finding, minimised, outcome, stopped_by_signal
from tests.fuzz.children import FOUND, exit_code, keep, limit_memory
from tests.fuzz.libfuzzer import Launch
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_PACKAGES = {"headrace", "headrace_handler"}


def instrument() -> None:
    """
    Import the targets so that the modules of Headrace count their edges.

    Atheris wraps the loaders of modules, but not those of an editable install, so the sources are imported plainly.
    Its tracing of comparisons is off: it keeps 6 KB for each input (Atheris 3.0), a gigabyte in 15 seconds.
    """
    try:
        from atheris.import_hook import HookManager
    except ImportError:
        sys.exit("Guided runs need Atheris: .venv/bin/python -m pip install --require-hashes -r requirements/fuzz.txt")
    import headrace

    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
    sys.path.insert(0, str(Path(headrace.__path__[0]).parent))
    headrace.__path__.append(f"{sysconfig.get_path('purelib')}/headrace")  # the native module
    with redirect_stderr(io.StringIO()), HookManager(_PACKAGES, set(), True, False):  # a line for each module
        import tests.fuzz.targets  # noqa: F401


def launcher(target: Target) -> Launch:
    """Return what runs libFuzzer on a target in a fork."""

    def launch(flags: Sequence[str], log: Path) -> int:
        return exit_code(partial(_run_child, target, flags, log))

    return launch


def _run_child(target: Target, flags: Sequence[str], log: Path) -> int:
    sys.stdout.flush()
    shown = os.dup(sys.stdout.fileno())
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    limit_memory()
    try:
        with stopped_by_signal():
            _fuzz(target, flags, shown)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
        traceback.print_exc()
    return 2  # `Fuzz` ends the process


def _fuzz(target: Target, flags: Sequence[str], shown: int) -> None:
    import atheris

    def check(data: bytes) -> None:
        try:
            outcome(target, data, is_timed=False)  # instrumented code is slower
        except Finding as finding:
            os.dup2(shown, sys.stdout.fileno())
            print(finding, flush=True)
            print("".join(traceback.format_exception(finding.cause, limit=-8)), flush=True)
            keep(target.name, minimised(finding))
            os._exit(FOUND)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 2:
            return atheris.Mutate(data, max_size)
        return mutated(data, target, random.Random(seed))[:max_size]

    atheris.Setup([target.name, *flags], check, custom_mutator=mutate)
    atheris.Fuzz()
