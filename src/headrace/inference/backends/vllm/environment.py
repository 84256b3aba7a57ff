"""
Environment variables for vLLM, which reads most of its process-wide options from them.

The variables are set while vLLM's engine is built, because its processes inherit them, and restored afterwards: vLLM
itself adds `LD_PRELOAD` and others, which processes that Headrace starts later must not inherit.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PLUGIN = "headrace"
PLUGIN_GROUP = "vllm.general_plugins"
"""vLLM calls the entry points of this group in each of its processes; ours is `child.prepare_process`."""
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
