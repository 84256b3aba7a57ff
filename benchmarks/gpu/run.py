"""
Measure the torch runner on a GPU beside what the GPU itself allows. See README.md.

    python -m benchmarks.gpu.run

Prints each result when it is known, and writes benchmarks/results/gpu.json and gpu.md after each. Every stage is a
process of its own: what it breaks, and what it takes, ends with it. `--shape tiny --device cpu` tries everything on a
CPU.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.gpu.report import table
from benchmarks.gpu.stages import SIZES, STAGES
from benchmarks.harness.results import RESULTS, make_parser, write_result
from benchmarks.synthetic.make import SHAPES, Shape, write_folder

MINUTES: Final = 8.5
FIRST_TOKEN_LIMIT_S: Final = 90.0
ERROR_LINES: Final = 3
TINY: Final = Shape(
    architecture="llama", model_type="llama", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=32,
    vocab=512, theta=1e4,
)  # fmt: skip


@dataclass
class Results:
    """The results so far, which are printed and written one by one."""

    folder: Path
    records: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, stage: str, result: Mapping[str, Any]) -> None:
        """Print a result, and write all of them."""
        self.records.append({"stage": stage, **result})
        print(f"{stage}: {json.dumps(result)}", flush=True)
        write_result(self.folder / "gpu.json", self.records, table(self.records))

    def add_error(self, stage: str, what: str, message: str) -> None:
        self.add(stage, {"kind": "error", "what": what, "message": message})

    @property
    def has_errors(self) -> bool:
        return any(record["kind"] == "error" for record in self.records)


def main() -> int:
    """Measure, and return the exit status: 1 if something could not be measured."""
    parser = make_parser("Measure the torch runner on a GPU.")
    parser.add_argument("--shape", choices=list(SIZES), default="8b", help="the network")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="where it runs")
    parser.add_argument("--model", type=Path, help="folder for the random model; it is made if it does not exist")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="the time for everything; what is left is skipped"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    deadline_s = time.monotonic() + options.minutes * 60
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU; --shape tiny --device cpu tries the benchmark on a CPU")
    results = Results(options.output)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or Path(temporary) / "model"
        if not folder.exists():
            start_s = time.monotonic()
            write_folder(TINY if options.shape == "tiny" else SHAPES["llama-3.1-8b"], folder)
            results.add("model", {"kind": "model", "seconds": time.monotonic() - start_s})
        measure_all(results, folder, options.shape, options.device, deadline_s=deadline_s)
    print(table(results.records))
    return int(results.has_errors)


def measure_all(results: Results, folder: Path, shape: str, device: str, *, deadline_s: float) -> None:
    """Run all stages until the deadline (of the monotonic clock); the first tokens come after the first stage."""
    first, *others = STAGES
    arguments = (str(folder), device, shape)
    run_stage(results, first.name, _module("measure", *arguments, first.name), first.limit_s, deadline_s=deadline_s)
    with tempfile.TemporaryDirectory() as empty:
        for what, cache in (("kernels compiled before", None), ("kernels compiled in it", empty)):
            command = _module("first_token", str(folder), device, first.dtype)
            measure_first_token(results, what, command, cache, deadline_s=deadline_s)
    for stage in others:
        run_stage(results, stage.name, _module("measure", *arguments, stage.name), stage.limit_s, deadline_s=deadline_s)


def run_stage(results: Results, name: str, command: Sequence[str], limit_s: float, *, deadline_s: float) -> None:
    """Add what a process prints as lines of JSON."""

    def take(line: str) -> None:
        if line.startswith("{"):
            results.add(name, json.loads(line))

    _run(results, name, "stage", command, take, limit_s=limit_s, deadline_s=deadline_s)


def measure_first_token(
    results: Results, what: str, command: Sequence[str], cache: str | None, *, deadline_s: float
) -> None:
    """Add the seconds from the start of a process to its first token; `cache` is that of Triton's kernels."""
    start_s = time.perf_counter()

    def take(line: str) -> None:
        if line.startswith("token "):
            results.add("start", {"kind": "first_token", "what": what, "seconds": time.perf_counter() - start_s})

    env = os.environ if cache is None else os.environ | {"TRITON_CACHE_DIR": cache}
    _run(results, "start", what, command, take, limit_s=FIRST_TOKEN_LIMIT_S, deadline_s=deadline_s, env=env)


def _run(
    results: Results,
    stage: str,
    what: str,
    command: Sequence[str],
    take: Callable[[str], None],
    *,
    limit_s: float,
    deadline_s: float,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Give the lines of a process to `take`; add an error if it fails or takes too long."""
    limit_s = min(limit_s, deadline_s - time.monotonic())
    if limit_s <= 0:
        results.add_error(stage, what, "skipped, no time was left")
        return
    # `timeout` ends the process with all its children: a stage that hangs must leave time to the others.
    killed_after = ["timeout", "--signal=KILL", f"{limit_s:.3f}", *command]
    started_s = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(killed_after, stdout=subprocess.PIPE, stderr=errors, text=True, env=env) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            take(line)
        status = process.wait()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-ERROR_LINES:]
    if status != 0 and time.monotonic() - started_s >= limit_s:
        results.add_error(stage, what, f"killed after {limit_s:.0f} s")
    elif status != 0:
        results.add_error(stage, what, f"ended with status {status}: {' '.join(last)}")


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments]


if __name__ == "__main__":
    sys.exit(main())
