"""
Measure the torch runner on a GPU beside what the GPU itself allows. See README.md.

    python -m benchmarks.gpu.run

Writes benchmarks/results/gpu.json and gpu.md. `--shape tiny --device cpu` runs everything on a CPU within seconds.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.cells import Cell, decode_cell, first_differences, prefill_cell
from benchmarks.gpu.limits import measure_limits
from benchmarks.synthetic.make import SHAPES, Shape, write_folder

from headrace.models.loading import load_model
from headrace.models.model import Model
from headrace.runner.memory import MemoryBudget
from headrace.runner.step import RunnerLimits
from headrace.runner.torch.plan import TorchPlan
from headrace.runner.torch.runner import TorchRunner, load_torch_runner

RESULTS = Path(__file__).parents[1] / "results"
BATCHES = (1, 8, 64)
MODES = {"fast": False, "batch_invariant": True}
TINY = Shape(
    architecture="llama", model_type="llama", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=32,
    vocab=512, theta=1e4,
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """The numbers of tokens, steps and processes of a measurement."""

    context: int
    """Tokens before the decoded ones."""
    prompt: int
    """Tokens of the prefill."""
    steps: int
    """Decode steps of a run; the median of them counts."""
    starts: int
    """Processes that are started for a first token."""


SIZES = {
    "tiny": Sizes(context=40, prompt=64, steps=3, starts=1),
    "8b": Sizes(context=512, prompt=2048, steps=64, starts=2),
}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description="Measure the torch runner on a GPU.")
    parser.add_argument("--shape", choices=list(SIZES), default="8b", help="the network")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="where it runs")
    parser.add_argument("--model", type=Path, help="folder for the random model; it is made if it does not exist")
    parser.add_argument("--dtype", default="bf16", help="format of the weights")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or Path(temporary) / "model"
        if not folder.exists():
            write_folder(TINY if options.shape == "tiny" else SHAPES["llama-3.1-8b"], folder)
        results = measure(folder, SIZES[options.shape], device=options.device, dtype=options.dtype)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "gpu.md").write_text(table(results))
    print(table(results))


def measure(folder: Path, sizes: Sizes, *, device: str, dtype: str) -> dict[str, Any]:
    """Return all measurements of one model."""
    limits = measure_limits(device, is_small=sizes.steps < 10)
    first_tokens = [first_token_s(folder, device=device, dtype=dtype) for _ in range(sizes.starts)]
    model = load_model(str(folder))
    results: dict[str, Any] = {
        "machine": {
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "dtype": dtype,
        "sizes": asdict(sizes),
        "limits": asdict(limits),
        "first_token_s": first_tokens,
    }
    for name, is_invariant in MODES.items():
        runner = load(model, sizes, device=device, dtype=dtype, is_invariant=is_invariant)
        cells = [decode_cell(runner, limits, batch, context=sizes.context, steps=sizes.steps) for batch in BATCHES]
        cells.append(prefill_cell(runner, limits, sizes.prompt))
        results[name] = {
            "info": asdict(runner.info),
            "cells": [asdict(cell) for cell in cells],
            "rows_that_differ_in_a_batch": first_differences(runner, BATCHES, context=sizes.context),
        }
        runner.close()
        del runner
        torch.cuda.empty_cache()
    return results


def load(model: Model, sizes: Sizes, *, device: str, dtype: str, is_invariant: bool) -> TorchRunner:
    """Load a model, with room for the largest cell."""
    context = max(sizes.context, sizes.prompt) + sizes.steps + 32
    limits = RunnerLimits(
        num_blocks=1,
        block_tokens=32,
        max_step_tokens=sizes.prompt,
        max_step_sequences=max(BATCHES),
        max_step_rows=max(BATCHES),
        max_context_tokens=-(-context // 32) * 32,
    )
    budget = MemoryBudget(available_bytes=1 << 33)
    plan = TorchPlan(dtype=dtype, device=device, limits=limits, budget=budget)
    return load_torch_runner(model.spec, model.weights, replace(plan, is_batch_invariant=is_invariant))


def first_token_s(folder: Path, *, device: str, dtype: str) -> float:
    """Return the seconds from the start of a process to its first token."""
    command = [sys.executable, "-m", "benchmarks.gpu.first_token", str(folder), device, dtype]
    start_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start_s
    if not line.startswith("token "):
        raise RuntimeError(f"{' '.join(command)} produced no token.")
    return seconds


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    limits, machine = results["limits"], results["machine"]
    copy, product = limits["copy_bytes_per_s"] / 1e12, limits["flops_per_s"] / 1e12
    facts = (
        f"torch {machine['torch']}, {results['dtype']}, contexts of {results['sizes']['context']} tokens. Copy "
        f"{copy:.2f} TB/s, matrix products {product:.0f} TFLOP/s. First token {min(results['first_token_s']):.1f} s "
        "after the start of the process, with the files in the page cache."
    )
    lines = [f"# The torch runner on {machine['device']}", "", facts, ""]
    lines.append("| mode | step | sequences | ms | tokens/s | share of the copy bandwidth | share of the matrix peak |")
    lines.append("|---|---|---|---|---|---|---|")
    for mode in MODES:
        lines += [row_of(mode, Cell(**values)) for values in results[mode]["cells"]]
    lines += ["", "| mode | sequences | rows with other bits than alone |", "|---|---|---|"]
    for mode in MODES:
        counts = results[mode]["rows_that_differ_in_a_batch"]
        lines += [f"| {mode} | {batch} | {count} |" for batch, count in counts.items()]
    return "\n".join(lines) + "\n"


def row_of(mode: str, cell: Cell) -> str:
    """Return a cell as a row of the table."""
    return (
        f"| {mode} | {cell.kind} | {cell.sequences} | {cell.step_s * 1e3:.2f} | {cell.tokens_per_s:,.0f} "
        f"| {cell.bandwidth_share:.0%} | {cell.compute_share:.0%} |"
    )


if __name__ == "__main__":
    main()
