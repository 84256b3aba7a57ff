"""Time single steps of a model file by each engine, and compute the work of a token from its specification."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from benchmarks.harness.machine import physical_cores
from benchmarks.harness.proc import foreign_cores, read_usage
from benchmarks.synthetic.make import tensors_of
from benchmarks.synthetic.today import FLOATS, GgufShape

from headrace import _native
from headrace.inference.models.loading import load_model
from headrace.inference.runner.decode_speed import decode_bytes, measure_bandwidth
from headrace.inference.runner.packing import layer_formats_of

BATCHES = (1, 8, 32)
CELLS = (*(f"decode {batch}" for batch in BATCHES), "prefill 512")
PROMPT, STEPS = 128, 32
"""Tokens before the first decode step, and decode steps of a cell."""
QUIET_CORES = 0.1
TIMEOUT_S = 300
_REFUSALS = ("unknown model architecture", "missing tensor", "wrong shape", "error loading model", "failed", "error")
"""What a peer prints about a model that it does not run, the most telling first."""


class PeerFailed(Exception):
    """A peer did not run a model; the message is the line of its output that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine with one format; `tools` is the folder of its programs, None: Headrace."""

    name: str
    tools: Path | None = None
    dtype: str = "w4a8"
    isa: str | None = None
    """Instruction set of Headrace; None: the best of this CPU."""
    options: tuple[str, ...] = ()

    @property
    def kv_dtype(self) -> str:
        return kv_dtype_of(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of an engine."""

    engine: str
    tokens_per_s: dict[str, float]
    """By cell."""
    bandwidth_share: float | None
    """Of the bandwidth beside it, in decode steps of one sequence; None for peers."""
    read_bytes_per_s: float
    """Of Headrace, the median of the readings beside its steps; of peers, as `doctor_bytes_per_s`."""
    doctor_bytes_per_s: float
    """The bandwidth that `headrace doctor` would report before the run."""
    operations_per_s: float
    foreign_cores: float
    """Cores that other programs used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a token of a model, which gives the limits."""

    decode_bytes: int
    """Bytes of the weights that one token reads; of experts, only the chosen ones."""
    state_bytes: int
    """Bytes of the state of a sequence, read and written."""
    kv_bytes: int
    """Bytes of the KV cache that a token reads in the middle of the decode steps."""
    operations: float
    """Of one prompt token in the layers' products with weights; a multiplication and an addition are two."""

    @property
    def all_bytes(self) -> int:
        return self.decode_bytes + self.state_bytes + self.kv_bytes


def kv_dtype_of(dtype: str) -> str:
    return "int8" if dtype.endswith("a8") else "bf16"


def work_of(shape: GgufShape, path: Path, dtype: str) -> Work:
    """Return the work of a token of a model file in a format, with the context of the decode steps."""
    model = load_model(str(path))
    read = decode_bytes(
        model.spec,
        dtype=dtype,
        kv_dtype=kv_dtype_of(dtype),
        max_model_len=PROMPT + STEPS // 2,
        layer_formats=layer_formats_of(model.spec, model.weights),
    )
    return Work(
        decode_bytes=read.weights,
        state_bytes=read.state,
        kv_bytes=read.kv_at_max_model_len,
        operations=2 * sum(_products_of(shape)),
    )


def _products_of(shape: GgufShape) -> Iterator[float]:
    """Yield the products of each of the layers' matrices with a token; of experts only with those that it chooses."""
    for tensor in tensors_of(shape):
        part = tensor.name.removesuffix(".weight").split(".", 2)[-1]
        if tensor.name.startswith("blk.") and len(tensor.dims) > 1 and part not in FLOATS:
            yield prod(tensor.dims) * (shape.top_k / shape.experts if part.endswith("_exps") else 1)


def run_headrace(engine: Engine, path: Path, packed: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Run all cells in a process of its own; return tokens per second by cell, and the bandwidth beside more steps."""
    script = Path(__file__).parents[1] / "native_step" / "run.py"
    formats = f"{engine.dtype}/{engine.kv_dtype}"
    options = ["--batches", _listed(BATCHES), "--prefills", "512", "--rounds", "1", "--decode-steps", str(STEPS)]
    options += ["--prefill-steps", "1", "--cache-dir", str(packed), "--bandwidth"]
    options += ["--isa", engine.isa] if engine.isa else []
    command = [sys.executable, str(script), str(path), "--formats", formats, *options]
    result = json.loads(_run(command).stdout.splitlines()[-1])
    cases = result["cases"][formats]
    return {cell: cases[cell]["tokens_per_s"] for cell in CELLS}, result["bandwidth"][formats]


def run_peer(
    engine: Engine, path: Path, *, threads: int | None = None, batches: Sequence[int] = BATCHES, steps: int = STEPS
) -> dict[str, float]:
    """
    Run all cells in two processes; return tokens per second by cell, without those at which the peer ended.

    `threads` None: one on each physical core.

    Raises:
        PeerFailed: The peer does not run this model.
    """
    count = str(threads or physical_cores())
    command = [f"{engine.tools}/llama-batched-bench", "-m", str(path), "-t", count, "-tb", count, *engine.options]
    command += ["-c", str(max(1024, max(batches) * (PROMPT + steps)))]
    decoded = _output([*command, "-npp", str(PROMPT), "-ntg", str(steps), "-npl", _listed(batches)])
    speeds = {f"decode {row['sequences']}": row["decode"] for row in batched_rows(decoded)}
    if not speeds:
        raise PeerFailed(reason_of(decoded))
    prompt = _output([*command, "-npp", "512", "-ntg", "1", "-npl", "1"])
    return speeds | {f"prefill {row['prompt']}": row["prefill"] for row in batched_rows(prompt)}


def _listed(batches: Sequence[int]) -> str:
    return ",".join(map(str, batches))


def _output(command: list[str]) -> str:
    """Return all that a peer prints: llama.cpp has the table on stdout, ik_llama.cpp on stderr."""
    try:
        result = _run(command)
    except RuntimeError as error:
        return str(error)
    return result.stdout + result.stderr


def reason_of(output: str) -> str:
    """Return the line of a peer's output that says why it does not run a model."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = (line for words in _REFUSALS for line in lines[1:] if words in line)
    line = next(found, lines[-1] if lines else "no output")
    return re.sub(r"^(?:[\d.]+ [A-Z] )?(?:\w+: )+", "", line).replace("error loading model: ", "")


def batched_rows(text: str) -> Iterator[dict[str, float]]:
    """Yield the rows of the table that `llama-batched-bench` prints."""
    for line in text.splitlines():
        if re.match(r"\|\s+\d", line):
            fields = [float(field) for field in line.strip("| \n").split("|")]
            prompt, _steps, sequences = map(int, fields[:3])
            yield {"prompt": prompt, "sequences": sequences, "prefill": fields[5], "decode": fields[7]}


def version_of(tools: Path) -> str:
    """Return the version that a peer's program prints."""
    result = subprocess.run(
        [f"{tools}/llama-batched-bench", "--version"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    lines = (result.stdout + result.stderr).splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("version: ")), "unknown version")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp writes a log into the current folder
        try:
            result = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command}:\nno result within {TIMEOUT_S} s") from None
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[-8000:]
        raise RuntimeError(f"{command} exited with {result.returncode}:\n{output}")
    return result


def take_turn(engine: Engine, path: Path, packed: Path, work: Work, *, tries: int) -> Turn:
    """
    Run one engine; again if other programs ran meanwhile, and return the quietest run.

    Raises:
        PeerFailed: The peer does not run this model.
    """
    turns: list[Turn] = []
    while len(turns) < tries and not any(turn.foreign_cores < QUIET_CORES for turn in turns):
        turns.append(_turn(engine, path, packed, work))
    return min(turns, key=lambda turn: turn.foreign_cores)


def _turn(engine: Engine, path: Path, packed: Path, work: Work) -> Turn:
    isa, cores = engine.isa or _native.available_isas()[0], physical_cores()
    kinds = ("w8a8", "w4a8") * 3  # on AVX2, 4-bit weights are summed at twice the rate
    peak = max(_native.peak_operations(kind, isa=isa, num_threads=cores) for kind in kinds)
    doctor = bandwidth = measure_bandwidth()
    before, share = read_usage(os.getpgrp()), None
    if engine.tools is None:
        speeds, beside = run_headrace(engine, path, packed)
        bandwidth = beside["read_bytes_per_s"]
        share = beside["tokens_per_s"] * work.all_bytes / bandwidth
    else:
        speeds = run_peer(engine, path)
    return Turn(
        engine=engine.name,
        tokens_per_s=speeds,
        bandwidth_share=share,
        read_bytes_per_s=bandwidth,
        doctor_bytes_per_s=doctor,
        operations_per_s=peak,
        foreign_cores=foreign_cores(before, read_usage(os.getpgrp())),
    )
