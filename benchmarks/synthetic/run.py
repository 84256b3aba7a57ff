"""
Time models of known shapes beside llama.cpp and ik_llama.cpp, on the same files, and what the hardware allows.

    python -m benchmarks.synthetic.run
    python -m benchmarks.synthetic.run --models qwen3-30b-a3b --ik-llamacpp ~/ik_llama.cpp/build/bin --rounds 5

Run it from the repository's root, with nothing else running on the machine. See README.md.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.cpu_engines.load import foreign_cores, read_usage
from benchmarks.cpu_engines.machine import describe_machine, physical_cores
from benchmarks.peers.manifest import DEFAULT_ROOT, read_manifest
from benchmarks.synthetic.make import SHAPES, Shape, write_gguf

from headrace import _native
from headrace.models.loading import load_model
from headrace.runner.decode_speed import decode_bytes, measure_bandwidth
from headrace.runner.packing import layer_formats_of

RESULTS = Path(__file__).parents[1] / "results"
LAYERS = {"llama-3.2-1b": 16, "llama-3.1-8b": 32, "qwen3-30b-a3b": 8, "mixtral-8x7b": 4}
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
    """One run of an engine: tokens per second by cell, the cores that other programs used, and the roof beside it."""

    engine: str
    tokens_per_s: dict[str, float]
    foreign_cores: float
    read_bytes_per_s: float
    operations_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a token of a model, which gives the limits."""

    decode_bytes: int
    """Bytes of the weights that one token reads."""
    operations: int
    """Of one prompt token in the layers' products with weights; a multiplication and an addition are two."""


def work_of(shape: Shape, path: Path, dtype: str) -> Work:
    """Return the work of a token."""
    model = load_model(str(path))
    read = decode_bytes(
        model.spec,
        dtype=dtype,
        kv_dtype="int8",
        max_model_len=1024,
        layer_formats=layer_formats_of(model.spec, model.weights),
    )
    heads = (shape.heads * 2 + shape.kv_heads * 2) * shape.head_dim
    mlp = 3 * shape.intermediate * (shape.top_k or 1)
    return Work(decode_bytes=read.weights, operations=2 * shape.layers * shape.hidden * (heads + mlp))


def run(engine: Engine, path: Path, packed: Path) -> dict[str, float]:
    """Run all cells once in processes of their own; return tokens per second by cell."""
    if engine.tools is None:
        script = Path(__file__).parents[1] / "native_step" / "run.py"
        options = ["--batches", "1,8", "--prefills", "512", "--rounds", "1", "--decode-steps", str(STEPS)]
        kv = "int8" if engine.dtype.endswith("a8") else "bf16"
        command = [sys.executable, str(script), str(path), "--formats", f"{engine.dtype}/{kv}", *options]
        last = _output([*command, "--cache-dir", str(packed)]).splitlines()[-1]
        (cases,) = json.loads(last)["cases"].values()
        return {cell: cases[cell]["tokens_per_s"] for cell in CELLS}
    speeds = {}
    for prompt, steps, sequences in ((PROMPT, STEPS, "1,8"), (512, 1, "1")):
        threads = str(physical_cores())
        shape = ["-npp", str(prompt), "-ntg", str(steps), "-npl", sequences, "-c", str(8 * (PROMPT + STEPS))]
        command = [str(engine.tools / "llama-batched-bench"), "-m", str(path), "-t", threads, "-tb", threads]
        for row in batched_rows(_output([*command, *engine.options, *shape])):
            cell = f"decode {row['sequences']}" if prompt == PROMPT else "prefill 512"
            speeds[cell] = row["decode" if prompt == PROMPT else "prefill"]
    return speeds


def batched_rows(text: str) -> Iterator[dict[str, float]]:
    """Yield the rows of the table that `llama-batched-bench` prints."""
    for line in text.splitlines():
        if re.match(r"\|\s+\d", line):
            fields = [float(field) for field in line.strip("| \n").split("|")]
            yield {"sequences": int(fields[2]), "prefill": fields[5], "decode": fields[7]}


def _output(command: list[str]) -> str:
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if result.returncode != 0:
        raise RuntimeError(f"{command} exited with {result.returncode}: {result.stderr[-2000:]}")
    return result.stdout


def take_turn(engine: Engine, path: Path, packed: Path) -> Turn:
    """Run one engine; again if other programs ran meanwhile, and return the quietest run."""
    turns = []
    for _ in range(TRIES):
        bandwidth = measure_bandwidth()
        isa = _native.available_isas()[0]
        peak = max(_native.peak_operations("w8a8", isa=isa, num_threads=physical_cores()) for _ in range(5))
        before = read_usage(os.getpgrp())
        speeds = run(engine, path, packed)
        foreign = foreign_cores(before, read_usage(os.getpgrp()))
        turns.append(
            Turn(
                engine=engine.name,
                tokens_per_s=speeds,
                foreign_cores=foreign,
                read_bytes_per_s=bandwidth,
                operations_per_s=peak,
            )
        )
        if foreign < QUIET_CORES:
            break
    return min(turns, key=lambda turn: turn.foreign_cores)


def table(name: str, work: Work, turns: list[Turn], peers: list[str]) -> str:
    """Return one model's table: medians, shares of the roof of Headrace, ratios to each peer."""
    read = statistics.median(turn.read_bytes_per_s for turn in turns)
    peak = statistics.median(turn.operations_per_s for turn in turns)
    limits = {"decode 1": read / work.decode_bytes, "prefill 512": peak / work.operations}
    medians = {
        engine: {
            cell: statistics.median(turn.tokens_per_s[cell] for turn in turns if turn.engine == engine)
            for cell in CELLS
        }
        for engine in dict.fromkeys(turn.engine for turn in turns)
    }
    lines = [
        f"## {name}, {LAYERS[name]} of {SHAPES[name].layers} layers\n",
        f"A token reads {work.decode_bytes / 1e9:.2f} GB and takes {work.operations / 1e9:.2f} G operations in layers.",
        f"The roof is {read / 1e9:.0f} GB/s and {peak / 1e9:.0f} G int8 operations/s.\n",
        "| tokens/s | " + " | ".join(CELLS) + " |",
        "|---" * (len(CELLS) + 1) + "|",
    ]
    for engine, speeds in medians.items():
        texts = []
        for cell in CELLS:
            share = (
                f" ({speeds[cell] / limits[cell]:.0%} of the roof)" if cell in limits and engine not in peers else ""
            )
            ratios = "".join(
                f", {speeds[cell] / medians[peer][cell]:.2f}x {peer}" for peer in peers if engine not in peers
            )
            texts.append(f"{speeds[cell]:.1f}{share}{ratios}")
        lines.append(f"| {engine} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def engines_of(arguments: argparse.Namespace) -> list[Engine]:
    """Return the engines to compare: Headrace in each format, and the peers that are installed."""
    engines = [Engine(name=f"Headrace {dtype}", dtype=dtype) for dtype in arguments.dtypes]
    peer = read_manifest(DEFAULT_ROOT.expanduser()).peers.get("llamacpp")
    if peer and peer.tools:
        engines.append(Engine(name="llama.cpp", tools=Path(peer.tools), options=("-fa", "on")))
    if arguments.ik_llamacpp:
        tools = arguments.ik_llamacpp.expanduser()
        engines.append(Engine(name="ik_llama.cpp", tools=tools, options=("-fa", "on", "-rtr")))
    return engines


def measure(name: str, engines: list[Engine], arguments: argparse.Namespace) -> tuple[Work, list[Turn]]:
    """Measure one model; its file is made if it does not exist."""
    shape = replace(SHAPES[name], layers=LAYERS[name])
    folder = arguments.folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{shape.layers}.gguf"
    if not path.exists():
        print(f"{name}: writing {path} …", flush=True)
        unfinished = path.with_suffix(".unfinished")
        write_gguf(shape, unfinished)
        unfinished.replace(path)
    turns = []
    for number in range(arguments.rounds):
        for engine in engines:
            began_s = time.perf_counter()
            turns.append(take_turn(engine, path, folder / "packed"))
            speeds = ", ".join(f"{cell} {speed:.1f}" for cell, speed in turns[-1].tokens_per_s.items())
            took_s = time.perf_counter() - began_s
            print(f"{name}, round {number + 1}, {engine.name}: {speeds} tokens/s ({took_s:.0f} s)", flush=True)
    return work_of(shape, path, arguments.dtypes[0]), turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(LAYERS))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["w4a8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=DEFAULT_ROOT / "synthetic", help="for the files")
    parser.add_argument("--ik-llamacpp", type=Path, help="folder with the programs of ik_llama.cpp, see README.md")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    engines = engines_of(arguments)
    peers = [engine.name for engine in engines if engine.tools]
    machine = describe_machine()
    sections, results = [], {}
    for name in arguments.models:
        work, turns = measure(name, engines, arguments)
        sections.append(table(name, work, turns, peers))
        results[name] = {"work": asdict(work), "turns": [asdict(turn) for turn in turns]}
        print(sections[-1], flush=True)
    head = "# Models of known shapes\n\n" + f"{machine['cpu']}, {machine['physical_cores']} cores.\n"
    (arguments.output / "synthetic.md").write_text("\n".join([head, *sections]))
    (arguments.output / "synthetic.json").write_text(
        json.dumps({"machine": machine, "models": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
