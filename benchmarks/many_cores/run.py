"""
Measure how steps scale over threads, beside llama.cpp and beside what the split of the work allows.

    python -m benchmarks.many_cores.run --llamacpp ~/llama.cpp/build/bin
    python -m benchmarks.many_cores.run --threads 1,2 --cell-seconds 0.2 --shapes smollm2-135m

Run it from the repository's root, with nothing else running on the machine: under 6 minutes on 16 cores. See README.md.
"""

import gc
import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import results
from benchmarks.harness.machine import describe_machine, physical_cores
from benchmarks.harness.steps import BLOCK, decode_step, load_runner, prompt_step
from benchmarks.many_cores.machine import describe_placement, synchronisation_us
from benchmarks.many_cores.report import page
from benchmarks.many_cores.work import split_step
from benchmarks.peers.manifest import DEFAULT_ROOT
from benchmarks.synthetic.make import gguf_shape, write_gguf
from benchmarks.synthetic.run import LLAMACPP, tools_of
from benchmarks.synthetic.steps import Engine, PeerFailed, kv_dtype_of, run_peer, version_of

from headrace import _native
from headrace.inference.models.loading import load_model
from headrace.inference.models.model import Model
from headrace.inference.runner.native import NativeRunner
from headrace.inference.runner.step import StepInput

LAYERS = {"smollm2-135m": 30, "llama-3.2-1b": 4}
"""Layers of the files, by model: a quarter of those of the second one, whose single thread would take minutes."""
DTYPES = ["w4a8", "w8a8", "bf16"]
BATCHES = (1, 8, 64)
CONTEXT, PROMPT = 128, 512
MIN_STEPS, PEER_STEPS = 3, 8
SYNCHRONISATION_RUNS = 10
TILE_ROWS = {"avx512": (8, 12), "avx2": (4, 6)}
"""Rows of a tile of integers and of bf16, by the beginning of the ISA's name; else 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The speed of one cell, and the split of its steps."""

    model: str
    engine: str
    threads: int
    cell: str
    tokens_per_s: float
    best_tokens_per_s: float | None = None
    active_threads: float | None = None
    barrier_rounds: int | None = None
    split: dict[str, Any] | None = None
    """`Split` of the cell's steps; None for peers."""


def cells(runner: NativeRunner) -> Iterator[tuple[str, StepInput, int]]:
    """
    Yield the name, the step and the sequences of each cell.

    All sequences share the blocks of their context, so that writing it takes one prompt.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, runner.spec.vocab_size, max(CONTEXT, PROMPT)).astype(np.int32)
    blocks = np.arange(runner.limits.num_blocks, dtype=np.int32)
    num_shared = CONTEXT // BLOCK
    runner.execute(prompt_step(tokens[:CONTEXT], blocks[:num_shared], rows=()))
    for batch in BATCHES:
        tables = np.array([[*range(num_shared), num_shared + index] for index in range(batch)], np.int32)
        yield f"decode {batch}", decode_step(tokens[:batch], tables, CONTEXT), batch
    yield f"prefill {PROMPT}", prompt_step(tokens[:PROMPT], blocks[num_shared : num_shared + PROMPT // BLOCK]), 1


def load(model: Model, dtype: str, threads: int, folder: Path) -> NativeRunner:
    return load_runner(
        model,
        dtype=dtype,
        kv_dtype=kv_dtype_of(dtype),
        max_model_len=max(CONTEXT + BLOCK, PROMPT),
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=PROMPT,
        threads=threads,
        cache_dir=folder,
    )


def measure_cells(runner: NativeRunner, name: str, dtype: str, arguments: Namespace) -> Iterator[Measurement]:
    """Yield the cells of one format on the threads of a runner."""
    isa, threads = str(runner.info.facts["isa"]), int(str(runner.info.facts["threads"]))
    for cell, step, sequences in cells(runner):
        seconds, active = timed_steps(runner, step, arguments.cell_seconds)
        rows = len(step.token_ids)
        split = split_step(
            runner.spec,
            rows=rows,
            sequences=sequences,
            context=int(step.context_lens[0]),
            threads=threads,
            tile_rows=tile_rows(isa, dtype),
        )
        yield Measurement(
            model=name,
            engine=f"Headrace {dtype}",
            threads=threads,
            cell=cell,
            tokens_per_s=rows / statistics.median(seconds),
            best_tokens_per_s=rows / min(seconds),
            active_threads=active,
            barrier_rounds=runner.num_barrier_rounds,
            split=asdict(split),
        )


def tile_rows(isa: str, dtype: str) -> int:
    found = next((rows for name, rows in TILE_ROWS.items() if isa.startswith(name)), (4, 4))
    return found[dtype == "bf16"]


def timed_steps(runner: NativeRunner, step: StepInput, cell_seconds: float) -> tuple[list[float], float]:
    """Return the seconds of each step after a first one, and the mean number of threads that ran them."""
    runner.execute(step)
    seconds: list[float] = []
    threads: list[int] = []
    while len(seconds) < MIN_STEPS or sum(seconds) < cell_seconds:
        started_s = time.perf_counter()
        threads.append(runner.execute(step).num_threads)
        seconds.append(time.perf_counter() - started_s)
    return seconds, statistics.mean(threads)


def measure_peer(path: Path, name: str, tools: Path, threads: int) -> Iterator[Measurement]:
    """Yield the cells of llama.cpp, whose sequences share the prompt, too."""
    engine = Engine(name=LLAMACPP, tools=tools, options=("-fa", "on", "-pps"))
    for cell, speed in run_peer(engine, path, threads=threads, batches=BATCHES, steps=PEER_STEPS).items():
        yield Measurement(model=name, engine=LLAMACPP, threads=threads, cell=cell, tokens_per_s=speed)


class Run:
    """The measurements so far."""

    def __init__(self, arguments: Namespace, tools: Path | None) -> None:
        self._arguments, self._tools = arguments, tools
        self.cells: list[Measurement] = []
        self.placement: dict[str, object] = {}
        """Of the newest runner."""

    def add_model(self, name: str, path: Path) -> None:
        """Measure all formats and numbers of threads of a file, and llama.cpp."""
        model = load_model(str(path))
        for threads in self._arguments.threads:
            for dtype in self._arguments.dtypes:
                runner = load(model, dtype, threads, path.parent / "packed")
                self._add(measure_cells(runner, name, dtype, self._arguments))
                self.placement = describe_placement()
                runner.close()
                gc.collect()
            if self._tools is None:
                continue
            try:
                self._add(measure_peer(path, name, self._tools, threads))
            except PeerFailed as error:
                results.tell(f"llama.cpp: {error}")

    def _add(self, found: Iterable[Measurement]) -> None:
        for cell in found:
            self.cells.append(cell)
            speed = f"{cell.tokens_per_s:.1f} tokens/s"
            results.tell(f"{cell.model}, {cell.engine}, {cell.threads} threads, {cell.cell}: {speed}")


def measure(arguments: Namespace, tools: Path | None) -> dict[str, Any]:
    """Measure all models; `arguments.layers` has at most so many of each, None: those of `LAYERS`."""
    began_s = time.perf_counter()
    synchronisation = {n: synchronisation_us(n, num_runs=SYNCHRONISATION_RUNS) for n in arguments.threads}
    run = Run(arguments, tools)
    for name in arguments.shapes:
        shape = replace(gguf_shape(name), layers=min(LAYERS[name], arguments.layers or LAYERS[name]))
        path = arguments.folder / f"{name}-{shape.layers}.gguf"
        write_gguf(shape, path)
        run.add_model(name, path)
        path.unlink()
    return {
        "machine": describe_machine() | {"isa": _native.available_isas()[0]},
        "placement": run.placement,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - began_s),
        "versions": {LLAMACPP: version_of(tools)} if tools else {},
        "synchronisation_us": synchronisation,
        "cells": [asdict(cell) for cell in run.cells],
    }


def default_thread_counts(cores: int) -> Sequence[int]:
    """Return powers of two up to the number of cores, and that number."""
    return sorted({1 << power for power in range(cores.bit_length())} | {cores})


def main() -> None:
    parser = results.make_parser(__doc__)
    parser.add_argument("--threads", type=results.numbers, default=default_thread_counts(physical_cores()))
    parser.add_argument("--shapes", type=results.names, default=list(LAYERS))
    parser.add_argument("--dtypes", type=results.names, default=DTYPES)
    parser.add_argument("--layers", type=int, help="at most so many, for a trial")
    parser.add_argument("--cell-seconds", type=float, default=0.7, help="at least so long, and three steps")
    parser.add_argument("--llamacpp", type=Path, help="folder with its programs, else the installed peer")
    parser.add_argument("--output", type=Path, default=results.RESULTS / "many-cores.json")
    arguments = parser.parse_args()
    tools = tools_of(Namespace(llamacpp=arguments.llamacpp, ik_llamacpp=None)).get(LLAMACPP)
    DEFAULT_ROOT.expanduser().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DEFAULT_ROOT.expanduser()) as folder:
        arguments.folder = Path(folder)
        result = measure(arguments, tools)
    text = page(result)
    results.write_result(arguments.output, result, text)
    print(text)
    print(json.dumps({"output": str(arguments.output), "seconds": result["seconds"]}))


if __name__ == "__main__":
    main()
