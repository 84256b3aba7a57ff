"""
Environment variables for vLLM, which reads most of its process-wide options from them.

They are set while its engine is built, for its processes inherit them, and taken back afterwards: vLLM itself adds
`LD_PRELOAD` and others, which processes that Headrace starts later must not inherit.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PLUGIN = "headrace"
PLUGIN_GROUP = "vllm.general_plugins"
"""vLLM calls the entry points of this group in each of its processes; ours is `child.prepare_process`."""
FAILURES_VARIABLE = "HEADRACE_VLLM_FAILURES"
LOG_VARIABLE = "HEADRACE_VLLM_LOG"
SERVER_VARIABLE = "HEADRACE_VLLM_SERVER"
"""Marks the processes of one server; see `watchdog`."""


def vllm_variables(
    environ: Mapping[str, str],
    *,
    server_id: str,
    failures: Path,
    log: str,
    cache_dir: Path,
    cpus: Sequence[Sequence[int]] | None,
    is_batch_invariant: bool,
) -> dict[str, str]:
    """
    Return the variables to set.

    Args:
        environ: The environment; its own `VLLM_*` values win where they only tune.
        server_id: Names this start of the engine.
        failures: The file in which the processes note why they failed.
        log: Format and level of the log, for the processes.
        cache_dir: The folder of downloads and compiled graphs.
        cpus: The CPUs of each rank; None: the network runs on GPUs.
        is_batch_invariant: Whether to compute with batch-invariant kernels.
    """
    tuning = {"VLLM_CACHE_ROOT": str(cache_dir / "vllm")}
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
        # vLLM sets titles of its processes, which without this overwrite the environment that `watchdog` reads.
        "SPT_NOENV": "1",
        SERVER_VARIABLE: server_id,
        FAILURES_VARIABLE: str(failures),
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
