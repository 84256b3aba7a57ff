"""
vLLM's processes: the environment in which they start, and the plugin that each of them calls.

vLLM reads most of its process-wide options from the environment. The variables are set while its engine is built,
because its processes inherit them, and restored afterwards: vLLM itself adds `LD_PRELOAD` and others, which processes
that Headrace starts later must not inherit.

By the plugin the processes log as Headrace does, and end with their parent. Each waits on the pipe that multiprocessing
keeps open from the parent to its child, and kills itself when the parent's end closes: workers end with a killed engine
process, even inside a step. Before this runs, and for processes that are not children of multiprocessing, `watchdog`
ensures that nothing outlives the server.
"""

import json
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import structlog

from headrace.core.telemetry import setup_logging

PLUGIN = "headrace"
PLUGIN_GROUP = "vllm.general_plugins"
"""vLLM calls the entry points of this group in each of its processes; ours is `prepare_process`."""
LOG_VARIABLE = "HEADRACE_VLLM_LOG"
FOLDER_VARIABLE = "HEADRACE_VLLM_FOLDER"
"""The folder of the temporary files of one server's processes, by which `watchdog` finds them."""
FAILURES_FILE = "failures.jsonl"
"""The file in that folder in which the processes note why they failed."""


def vllm_variables(
    environ: Mapping[str, str],
    *,
    folder: Path,
    log: str,
    cache_dir: Path,
    cpus: Sequence[Sequence[int]] | None,
    is_batch_invariant: bool,
    step_timeout_s: float,
) -> dict[str, str]:
    """
    Return the variables to set.

    Args:
        environ: The environment; its own `VLLM_*` values win where they only tune.
        folder: An empty folder for this start of the engine.
        log: Format and level of the log, for the processes.
        cache_dir: The folder of downloads and compiled graphs.
        cpus: The CPUs of each rank; None: the network runs on GPUs.
        is_batch_invariant: Whether to compute with batch-invariant kernels.
        step_timeout_s: The longest step.
    """
    tuning = {
        "VLLM_CACHE_ROOT": str(cache_dir / "vllm"),
        # Its default is in the folder of temporary files, which is removed at the end of the server.
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / "vllm" / "inductor"),
    }
    if cpus is not None:
        tuning["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, rank)) for rank in cpus)
    plugins = [PLUGIN, *filter(None, environ.get("VLLM_PLUGINS", "").split(","))]
    return {
        **{name: environ.get(name, value) for name, value in tuning.items()},
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads: a fork could inherit a held lock
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": ",".join(plugins),
        "VLLM_CONFIGURE_LOGGING": "0",
        **({"VLLM_BATCH_INVARIANT": "1"} if is_batch_invariant else {}),
        "VLLM_RPC_BASE_PATH": str(folder),
        # Twice the limit of `step_watch`, which says more than the end of a process does.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(math.ceil(2 * step_timeout_s)),
        # vLLM sets titles of its processes, which without this overwrite the environment that `watchdog` reads.
        "SPT_NOENV": "1",
        FOLDER_VARIABLE: str(folder),
        LOG_VARIABLE: log,
    }


def cpus_of_ranks(cpus: Sequence[int], *, num_ranks: int, num_threads: int | None) -> list[list[int]]:
    """Divide CPUs among ranks, `num_threads` each at most; ranks share CPUs if there are too few."""
    each = max(1, len(cpus) // num_ranks)
    count = each if num_threads is None else min(each, num_threads)
    starts = [rank * each % len(cpus) for rank in range(num_ranks)]
    return [list(cpus[start : start + count]) for start in starts]


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the block; afterwards the environment is what it was."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def prepare_process() -> None:
    """Prepare a process of vLLM; does nothing in the server itself. The entry point of `vllm.general_plugins`."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_die_after, args=(parent,), name="headrace-parent", daemon=True).start()
    # Ctrl-C and signals to the group of the server are for the server, which drains before it stops its processes.
    os.setpgid(0, 0)
    folder = Path(os.environ[FOLDER_VARIABLE])
    tempfile.tempdir = str(folder)  # the watchdog removes it, while vLLM leaves files behind even after a clean end
    log_format, _, level = os.environ.get(LOG_VARIABLE, "auto info").partition(" ")
    setup_logging(format=log_format, level=level)
    structlog.contextvars.bind_contextvars(process=multiprocessing.current_process().name)
    library = logging.getLogger("vllm")
    library.setLevel(library_level(level))
    library.addHandler(FailureFile(folder / FAILURES_FILE))


def _die_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def library_level(level: str) -> int:
    """Return the level of vLLM's log: it reports its internals at INFO, which is our DEBUG."""
    number = logging.getLevelNamesMapping()[level.upper()]
    return logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING)


class FailureFile(logging.Handler):
    """Appends the exceptions that are logged to a file, one JSON object a line, for the server to explain."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        line = json.dumps({"type": type(error).__name__, "message": str(error)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:
            self.handleError(record)
