"""
Time models of known shapes beside llama.cpp and ik_llama.cpp, on the same files, and what the hardware allows.

    python -m benchmarks.synthetic.run
    python -m benchmarks.synthetic.run --models qwen3-30b-a3b --ik-llamacpp ~/ik_llama.cpp/build/bin --rounds 5

Run it from the repository's root, with nothing else running on the machine. See README.md.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

from benchmarks.harness import results
from benchmarks.harness.machine import describe_machine, physical_cores
from benchmarks.harness.proc import foreign_cores, read_usage
from benchmarks.harness.turns import in_turns
from benchmarks.peers.manifest import DEFAULT_ROOT, read_manifest
from benchmarks.synthetic.make import gguf_shape, tensors_of, write_gguf
from benchmarks.synthetic.today import FLOATS, GgufShape

from headrace import _native
from headrace.inference.models.loading import load_model
from headrace.inference.runner.decode_speed import decode_bytes, measure_bandwidth
from headrace.inference.runner.packing import layer_formats_of

LAYERS = {
    "llama-3.2-1b": 16, "llama-3.1-8b": 32, "qwen3-30b-a3b": 8, "mixtral-8x7b": 4, "lfm2-1.2b": 16, "qwen3.5-4b": 32,
    "qwen3.5-9b": 32, "qwen3.6-35b-a3b": 8, "gemma-4-e2b": 35, "gemma-4-26b-a4b": 12, "granite-4-h-tiny": 40,
    "glm-4.7-flash": 8,
}  # fmt: skip
"""Layers of the file, by model."""
CELLS = ("decode 1", "decode 8", "prefill 512")
PROMPT, STEPS = 128, 32
"""Tokens before the first decode step, and decode steps of a cell."""
QUIET_CORES = 0.1
TRIES = 3
TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine with one format; `tools` is the folder of its programs, None: Headrace."""

    name: str
    tools: Path | None = None
    dtype: str = "w4a8"
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of an engine."""

    engine: str
    tokens_per_s: dict[str, float]
    """By cell."""
    bandwidth_share: float | None
    """Of the bandwidth beside it, in decode steps of one sequence; None for peers."""
    read_bytes_per_s: float
    operations_per_s: float
    foreign_cores: float
    """Cores that other programs used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a token of a model, which gives the limits."""

    decode_bytes: int
    """Bytes of the weights that one token reads."""
    operations: float
    """Of one prompt token in the layers' products with weights; a multiplication and an addition are two."""


def work_of(shape: GgufShape, path: Path, dtype: str) -> Work:
    model = load_model(str(path))
    read = decode_bytes(
        model.spec,
        dtype=dtype,
        kv_dtype="int8",
        max_model_len=1024,
        layer_formats=layer_formats_of(model.spec, model.weights),
    )
    return Work(decode_bytes=read.weights, operations=2 * sum(_products_of(shape)))


def _products_of(shape: GgufShape) -> Iterator[float]:
    """Yield the products of each of the layers' matrices with a token; of experts only with those that it chooses."""
    for tensor in tensors_of(shape):
        part = tensor.name.removesuffix(".weight").split(".", 2)[-1]
        if tensor.name.startswith("blk.") and len(tensor.dims) > 1 and part not in FLOATS:
            yield prod(tensor.dims) * (shape.top_k / shape.experts if part.endswith("_exps") else 1)


def run_headrace(engine: Engine, path: Path, packed: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Run all cells in a process of its own; return tokens per second by cell, and the bandwidth beside more steps."""
    script = Path(__file__).parents[1] / "native_step" / "run.py"
    options = ["--batches", "1,8", "--prefills", "512", "--rounds", "1", "--decode-steps", str(STEPS)]
    formats = f"{engine.dtype}/{'int8' if engine.dtype.endswith('a8') else 'bf16'}"
    options += ["--cache-dir", str(packed), "--bandwidth"]
    command = [sys.executable, str(script), str(path), "--formats", formats, *options]
    result = json.loads(_run(command).stdout.splitlines()[-1])
    cases = result["cases"][formats]
    return {cell: cases[cell]["tokens_per_s"] for cell in CELLS}, result["bandwidth"][formats]


def run_peer(engine: Engine, path: Path) -> dict[str, float]:
    """Run all cells in two processes; return tokens per second by cell."""
    threads = str(physical_cores())
    command = [f"{engine.tools}/llama-batched-bench", "-m", str(path), "-t", threads, "-tb", threads, *engine.options]
    context = ["-c", str(8 * (PROMPT + STEPS))]
    decoded = _run([*command, *context, "-npp", str(PROMPT), "-ntg", str(STEPS), "-npl", "1,8"])
    prompt = _run([*command, *context, "-npp", "512", "-ntg", "1", "-npl", "1"])
    # llama.cpp prints the table to stdout, ik_llama.cpp to stderr.
    speeds = {f"decode {row['sequences']}": row["decode"] for row in batched_rows(decoded.stdout + decoded.stderr)}
    (row,) = batched_rows(prompt.stdout + prompt.stderr)
    return speeds | {"prefill 512": row["prefill"]}


def batched_rows(text: str) -> Iterator[dict[str, float]]:
    """Yield the rows of the table that `llama-batched-bench` prints."""
    for line in text.splitlines():
        if re.match(r"\|\s+\d", line):
            fields = [float(field) for field in line.strip("| \n").split("|")]
            yield {"sequences": int(fields[2]), "prefill": fields[5], "decode": fields[7]}


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp writes a log into the current folder
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    if result.returncode != 0:
        raise RuntimeError(f"{command} exited with {result.returncode}: {result.stderr[-2000:]}")
    return result


def take_turn(engine: Engine, path: Path, packed: Path, work: Work) -> Turn:
    """Run one engine; again if other programs ran meanwhile, and return the quietest run."""
    turns: list[Turn] = []
    while len(turns) < TRIES and not any(turn.foreign_cores < QUIET_CORES for turn in turns):
        turns.append(_turn(engine, path, packed, work))
    return min(turns, key=lambda turn: turn.foreign_cores)


def _turn(engine: Engine, path: Path, packed: Path, work: Work) -> Turn:
    isa, cores = _native.available_isas()[0], physical_cores()
    peak = max(_native.peak_operations("w8a8", isa=isa, num_threads=cores) for _ in range(5))
    before = read_usage(os.getpgrp())
    if engine.tools is None:
        speeds, beside = run_headrace(engine, path, packed)
        bandwidth = beside["read_bytes_per_s"]
        share = beside["tokens_per_s"] * work.decode_bytes / bandwidth
    else:
        speeds, bandwidth, share = run_peer(engine, path), measure_bandwidth(), None
    return Turn(
        engine=engine.name,
        tokens_per_s=speeds,
        bandwidth_share=share,
        read_bytes_per_s=bandwidth,
        operations_per_s=peak,
        foreign_cores=foreign_cores(before, read_usage(os.getpgrp())),
    )


def table(name: str, work: Work, turns: list[Turn]) -> str:
    """Return the table of one model: medians, and of Headrace the shares of the roof and the ratios to each peer."""
    by_engine: dict[str, list[Turn]] = {}
    for turn in turns:
        by_engine.setdefault(turn.engine, []).append(turn)
    peers = {engine: medians(mine) for engine, mine in by_engine.items() if mine[0].bandwidth_share is None}
    read = statistics.median(turn.read_bytes_per_s for turn in turns if turn.engine not in peers)
    peak = max(turn.operations_per_s for turn in turns)
    rows = []
    for engine, mine in by_engine.items():
        speeds = medians(mine)
        shares: dict[str, float] = {}
        if engine not in peers:
            shares["decode 1"] = statistics.median(turn.bandwidth_share or 0 for turn in mine)
            shares["prefill 512"] = speeds["prefill 512"] * work.operations / peak
        rows.append([engine, *(_cell(cell, speeds, shares, {} if engine in peers else peers) for cell in CELLS)])
    head = (
        f"## {name}, {LAYERS[name]} of {gguf_shape(name).layers} layers\n\n"
        f"A token reads {work.decode_bytes / 1e9:.2f} GB and takes "
        f"{work.operations / 1e9:.2f} G operations in layers.\n"
        f"The roof is {read / 1e9:.0f} GB/s and {peak / 1e9:.0f} G int8 operations/s.\n"
    )
    return f"{head}\n{results.table(['tokens/s', *CELLS], rows)}\n"


def medians(turns: list[Turn]) -> dict[str, float]:
    """Return the median speed of each cell."""
    return {cell: statistics.median(turn.tokens_per_s[cell] for turn in turns) for cell in CELLS}


def _cell(cell: str, speeds: dict[str, float], shares: dict[str, float], peers: dict[str, dict[str, float]]) -> str:
    share = [f"{shares[cell]:.0%} of the roof"] if cell in shares else []
    ratios = [f"{speeds[cell] / theirs[cell]:.2f}x {peer}" for peer, theirs in peers.items()]
    notes = ", ".join(share + ratios)
    return f"{speeds[cell]:.1f}" + (f" ({notes})" if notes else "")


def engines_of(arguments: Namespace) -> list[Engine]:
    """Return the engines to compare: Headrace in each format, and the peers that are installed."""
    engines = [Engine(name=f"Headrace {arguments.dtype}", dtype=arguments.dtype)]
    peer = read_manifest(DEFAULT_ROOT.expanduser()).peers.get("llamacpp")
    if peer and peer.tools:
        engines.append(Engine(name="llama.cpp", tools=Path(peer.tools), options=("-fa", "on")))
    if arguments.ik_llamacpp:
        tools = arguments.ik_llamacpp.expanduser()
        engines.append(Engine(name="ik_llama.cpp", tools=tools, options=("-fa", "on", "-rtr")))
    return engines


def measure(name: str, engines: list[Engine], arguments: Namespace) -> tuple[Work, list[Turn]]:
    """Measure one model; its file is made if it does not exist."""
    shape = replace(gguf_shape(name), layers=LAYERS[name])
    folder = arguments.folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{shape.layers}.gguf"
    if not path.exists():
        print(f"{name}: writing {path} …", flush=True)
        unfinished = path.with_suffix(".unfinished")
        write_gguf(shape, unfinished)
        unfinished.replace(path)
    work, turns = work_of(shape, path, arguments.dtype), []
    for number, engine in in_turns(engines, arguments.rounds):
        began_s = time.perf_counter()
        turns.append(take_turn(engine, path, folder / "packed", work))
        speeds = ", ".join(f"{cell} {speed:.1f}" for cell, speed in turns[-1].tokens_per_s.items())
        took_s = time.perf_counter() - began_s
        print(f"{name}, round {number + 1}, {engine.name}: {speeds} tokens/s ({took_s:.0f} s)", flush=True)
    return work, turns


def main() -> None:
    parser = results.make_parser(__doc__)
    parser.add_argument("--models", type=results.names, default=list(LAYERS))
    parser.add_argument("--dtype", default="w4a8", help="of Headrace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=DEFAULT_ROOT / "synthetic", help="for the files")
    parser.add_argument("--ik-llamacpp", type=Path, help="folder with the programs of ik_llama.cpp, see README.md")
    parser.add_argument("--output", type=Path, default=results.RESULTS)
    arguments = parser.parse_args()
    engines = engines_of(arguments)
    machine = describe_machine()
    sections, models = [], {}
    for name in arguments.models:
        work, turns = measure(name, engines, arguments)
        sections.append(table(name, work, turns))
        models[name] = {"work": asdict(work), "turns": [asdict(turn) for turn in turns]}
        print(sections[-1], flush=True)
    head = "# Models of known shapes\n\n" + f"{machine['cpu']}, {machine['physical_cores']} cores.\n"
    page = "\n".join([head, *sections])
    results.write_result(arguments.output / "synthetic.json", {"machine": machine, "models": models}, page)


if __name__ == "__main__":
    main()
