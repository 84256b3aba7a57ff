"""Embeddings of all-MiniLM-L6-v2 in Headrace, transformers and llama.cpp, in turns: speed and agreement."""

import importlib.metadata
import random
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tokenizers
from benchmarks.embeddings.contenders import Contender, InProcess, Server
from benchmarks.embeddings.gguf_model import write_gguf
from benchmarks.harness.machine import describe_machine, physical_cores
from benchmarks.harness.results import RESULTS, exit_on_sigterm, make_parser, names, write_result
from benchmarks.harness.turns import in_turns
from benchmarks.peers.manifest import DEFAULT_ROOT, read_manifest

from headrace.inference.models.loading import load_model

BASE = "transformers float32"
NUM_BATCHES = 8
"""Different batches of a cell, so that no cache can answer."""
SEED = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One shape of a request."""

    num_tokens: int
    batch_size: int

    @property
    def name(self) -> str:
        return f"{self.batch_size} x {self.num_tokens} tokens"


CELLS = tuple(Cell(num_tokens=tokens, batch_size=size) for tokens in (32, 256) for size in (1, 32))


def texts_of(folder: Path, cell: Cell) -> list[list[str]]:
    """Return random batches of texts that have exactly this number of tokens, [CLS] and [SEP] included."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    rng = random.Random(SEED)
    batches = []
    for _ in range(NUM_BATCHES):
        texts = [" ".join(rng.choices(words, k=cell.num_tokens - 2)) for _ in range(cell.batch_size)]
        assert {len(encoding.ids) for encoding in tokenizer.encode_batch(texts)} == {cell.num_tokens}
        batches.append(texts)
    return batches


def contenders(options: Namespace, folder: Path, work: Path) -> dict[str, Callable[[], Contender]]:
    """Return what starts each engine, by its name in the table."""
    threads = str(options.threads)
    settings = {"model": str(folder), "threads": options.threads}
    starts: dict[str, Callable[[], Contender]] = {}
    for dtype in ("float32", "bfloat16"):
        own = {"engine": "transformers", "dtype": dtype, **settings}
        starts[f"transformers {dtype}"] = partial(InProcess, own, work / f"transformers-{dtype}.log")
    for dtype in options.dtypes:
        own = {"engine": "headrace", "dtype": dtype, **settings}
        starts[f"headrace {dtype}"] = partial(InProcess, own, work / f"headrace-{dtype}.log")
        command = [sys.executable, "-m", "headrace", "serve", str(folder), "--dtype", dtype, "--threads", threads]
        command += ["--served-model-name", "model"]
        starts[f"headrace {dtype}, HTTP"] = partial(Server, command, work / f"headrace-{dtype}-http.log")
    return starts | llama_servers(options, folder, work)


def llama_servers(options: Namespace, folder: Path, work: Path) -> dict[str, Callable[[], Contender]]:
    """Return what starts llama-server on each form of the model; nothing if llama.cpp is not installed."""
    peer = read_manifest(options.peers_root.expanduser()).peers.get("llamacpp")
    if peer is None or peer.tools is None:
        print("llama.cpp is not installed (python -m benchmarks.peers.install llamacpp): left out")
        return {}
    source = write_gguf(folder, work / "minilm-f32.gguf")
    slots, tokens = max(cell.batch_size for cell in CELLS), max(cell.num_tokens for cell in CELLS)
    total, threads = str(slots * (tokens + 16)), str(options.threads)
    starts: dict[str, Callable[[], Contender]] = {}
    for form in options.llama:
        file = work / f"minilm-{form}.gguf"
        quantize = [f"{peer.tools}/llama-quantize", str(source), str(file), form.upper()]
        subprocess.run(quantize, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        command = [f"{peer.tools}/llama-server", "-m", str(file), "--embeddings", "-np", str(slots), "-c", total]
        command += ["-b", total, "-ub", total, "-t", threads, "-tb", threads, "--no-webui"]
        starts[f"llama-server {form}"] = partial(Server, command, work / f"llama-server-{form}.log")
    return starts


def worst_cosines(running: dict[str, Contender], texts: list[str]) -> dict[str, float]:
    """Return the smallest cosine of each engine's vectors with those of transformers in float32."""
    expected = np.array(running[BASE].embed(texts))
    cosines = {}
    for name, contender in running.items():
        vectors = np.array(contender.embed(texts))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines[name] = float((vectors * expected).sum(1).min())
    return cosines


def print_cell(cell: Cell, seconds: dict[str, list[float]], cosines: dict[str, float]) -> None:
    print(f"\n{cell.name}")
    base = statistics.median(seconds[BASE])
    for name, values in seconds.items():
        median = statistics.median(values)
        inputs, tokens = cell.batch_size / median, cell.batch_size * cell.num_tokens / median
        print(
            f"  {name:24} {median * 1e3:9.2f} ms  {inputs:8.1f} inputs/s {tokens:9.0f} tokens/s"
            f"  {base / median:5.2f} x {BASE}  cosine {cosines[name]:.5f}"
        )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dtypes", type=names, default=["bf16", "w8a8"], help="formats of Headrace")
    parser.add_argument("--llama", type=names, default=["f16", "q8_0"], help="formats of llama.cpp")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine in each cell")
    parser.add_argument("--peers-root", type=Path, default=DEFAULT_ROOT)
    parser.add_argument("--output", type=Path, default=RESULTS / "embeddings-minilm.json")
    options = parser.parse_args()
    exit_on_sigterm()
    folder = load_model("minilm").path
    versions = {name: importlib.metadata.version(name) for name in ("headrace", "torch", "transformers")}
    report = {"machine": describe_machine(), "versions": versions, "threads": options.threads, "cells": {}}
    with TemporaryDirectory() as work, ExitStack() as stack:
        running: dict[str, Contender] = {}
        for name, start in contenders(options, folder, Path(work)).items():
            print(f"starting {name}", flush=True)
            running[name] = start()
            stack.callback(running[name].close)
        for cell in CELLS:
            batches = texts_of(folder, cell)
            cosines = worst_cosines(running, batches[0])
            seconds: dict[str, list[float]] = {name: [] for name in running}
            for _, name in in_turns(list(running), options.rounds):
                seconds[name] += running[name].time(batches, options.seconds)
            print_cell(cell, seconds, cosines)
            report["cells"][cell.name] = {
                name: {"cosine": cosines[name], "seconds": [round(value, 6) for value in values]}
                for name, values in seconds.items()
            }
    write_result(options.output, report)
    print(f"\nwritten to {options.output}")


if __name__ == "__main__":
    main()
