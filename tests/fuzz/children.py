"""Processes that run inputs: bounded in memory and time, so that a crash, a hang or a leak ends only them."""

import faulthandler
import hashlib
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import failure, smallest
from tests.fuzz.target import Target, corpus_folder

FOUND = 3
"""Exit status of a child that reported its finding; `faulthandler` ends one that hangs with 1."""
CRASH_FACTOR = 30
"""Wall seconds for one input, as a multiple of its limit, before the parent takes it for a hang in native code."""
_MEMORY_BYTES = 3 << 30
"""Address space that a target may take beyond what its process has when it begins."""
_TEMPORARY = tempfile.gettempdir()


def exit_code(run_child: Callable[[], int]) -> int:
    """Run a function in a fork; return what it returns, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os._exit(run_child())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def temporary_files() -> Iterator[None]:
    """Remove what children leave in the folder of temporary files."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_TEMPORARY) as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = _TEMPORARY


def limit_memory() -> None:
    """Bound the address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def keep_crash(target: Target, data: bytes) -> None:
    """Keep the smallest input that ends a process by a signal as this one does."""
    keep(target.name, smallest(data, lambda smaller: _ends_process(target, smaller)))


def _ends_process(target: Target, data: bytes) -> bool:
    """Return whether a signal ends the process that runs this input."""

    def run_one() -> int:
        with Path(os.devnull).open("w") as nothing:  # the runtime of Rust reports each panic
            os.dup2(nothing.fileno(), sys.stderr.fileno())
        limit_memory()
        faulthandler.dump_traceback_later(CRASH_FACTOR * target.limit_s, exit=True)
        failure(target, data)
        return 0

    return exit_code(run_one) < 0


def keep(target_name: str, data: bytes) -> None:
    """Write a finding into the corpus."""
    folder = corpus_folder(target_name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"kept as {path.relative_to(Path.cwd())} ({len(data)} bytes): {data[:200]!r}", flush=True)
