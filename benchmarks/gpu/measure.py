"""
Measure one stage and print a line of JSON for each result as soon as it is known: `run` starts this as a process.

    python -m benchmarks.gpu.measure FOLDER cuda 8b "bf16, batch-invariant"
"""

import gc
import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.cells import decode_cell, first_differences, prefill_cell
from benchmarks.gpu.limits import measure_limits
from benchmarks.gpu.stages import SIZES, STAGES, Sizes, Stage

from headrace.inference.models.loading import load_model
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.step import RunnerLimits
from headrace.inference.runner.torch.plan import TorchPlan
from headrace.inference.runner.torch.runner import TorchRunner, load_torch_runner

Emit = Callable[[Mapping[str, Any]], None]
"""Takes a result."""


def measure(folder: Path, stage: Stage, sizes: Sizes, *, device: str, emit: Emit) -> None:
    """Measure a stage; a cell that fails is reported, and the next one is measured."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    emit({"kind": "machine", "device": name, "torch": torch.__version__, "python": platform.python_version()})
    limits = measure_limits(device, is_small=sizes.steps < 10)
    emit({"kind": "limits", **asdict(limits)})
    runner = load(folder, stage, sizes, device=device)
    emit({"kind": "info", **asdict(runner.info)})

    def attempt(what: str, work: Callable[[], Mapping[str, Any]]) -> None:
        try:
            emit(work())
        except Exception as exc:  # noqa: BLE001 -- the other cells are worth measuring
            emit({"kind": "error", "what": what, "message": f"{type(exc).__name__}: {exc}"})
            gc.collect()
            torch.cuda.empty_cache()

    def decode(batch: int) -> Mapping[str, Any]:
        cell = decode_cell(runner, limits, batch, context=sizes.context, steps=sizes.steps)
        return {"kind": "cell", **asdict(cell)}

    def rows_that_differ(batch: int) -> Mapping[str, Any]:
        (count,) = first_differences(runner, [batch], context=sizes.context).values()
        return {"kind": "rows_that_differ", "sequences": batch, "rows": count}

    for batch in sizes.batches:
        attempt(f"decode of {batch}", lambda batch=batch: decode(batch))
    attempt("prefill", lambda: {"kind": "cell", **asdict(prefill_cell(runner, limits, sizes.prompt))})
    if stage.dtype == "bf16":
        for batch in sizes.batches:
            attempt(f"rows that differ of {batch}", lambda batch=batch: rows_that_differ(batch))
    runner.close()


def load(folder: Path, stage: Stage, sizes: Sizes, *, device: str) -> TorchRunner:
    """Load a model, with room for the largest cell."""
    model = load_model(str(folder))
    context = max(sizes.context, sizes.prompt) + sizes.steps + 32
    limits = RunnerLimits(
        num_blocks=1,
        block_tokens=32,
        max_step_tokens=sizes.prompt,
        max_step_sequences=max(sizes.batches),
        max_step_rows=max(sizes.batches),
        max_context_tokens=-(-context // 32) * 32,
    )
    plan = TorchPlan(
        dtype=stage.dtype,
        device=device,
        limits=limits,
        budget=MemoryBudget(available_bytes=1 << 33),
        is_batch_invariant=stage.is_invariant,
    )
    return load_torch_runner(model.spec, model.weights, plan)


def main(folder: str, device: str, shape: str, name: str) -> None:
    (stage,) = (stage for stage in STAGES if stage.name == name)
    emit: Emit = lambda result: print(json.dumps(result), flush=True)  # noqa: E731
    measure(Path(folder), stage, SIZES[shape], device=device, emit=emit)


if __name__ == "__main__":
    main(*sys.argv[1:])
