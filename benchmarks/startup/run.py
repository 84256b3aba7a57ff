"""
Measure the time from `headrace serve` to the first token, and the CPU time and memory of an idle server.

Runs the server several times with an empty and with a filled cache of packed weights, and measures from outside:
the process, `GET /ping`, one streamed token, `/proc`. The last line of standard output is one JSON object.

Name the model by its file or folder: an alias would be downloaded into each empty cache.

    python benchmarks/startup/run.py "$(headrace models path smollm2)" --runs 5
"""

import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness.proc import session_use
from benchmarks.harness.results import make_parser
from benchmarks.harness.servers import Launch, ServerProcess, generates_token, headrace_command, pings

IDLE_S = 5.0
TIMEOUT_S = 600.0


def run_once(command: list[str], cache: Path, *, measure_idle: bool) -> dict[str, float]:
    """Start the server, wait for a token, measure it, stop it."""
    launch = Launch(arguments=(*command, "--cache-dir", str(cache)))
    with ServerProcess(launch, log=Path(os.devnull)) as server:
        result = {"ready_s": server.wait_until(pings, timeout_s=TIMEOUT_S)}
        result["first_token_s"] = server.wait_until(generates_token, timeout_s=TIMEOUT_S)
        if measure_idle:
            result["idle_cpu_share"] = server.idle_cpu_share(IDLE_S)
            result["resident_bytes"] = session_use(server.session).rss_bytes
        server.stop()
    return result


def main() -> None:
    parser = make_parser("Time from `headrace serve` to the first token.")
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    command = [headrace_command(), "serve", options.model, "--dtype", options.dtype]
    runs: dict[str, list[dict[str, float]]] = {"empty": [], "filled": []}
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs["empty"].append(run_once(command, Path(folder), measure_idle=False))
            runs["filled"].append(run_once(command, Path(folder), measure_idle=number == 0))
    for state, results in runs.items():
        median_s = statistics.median(result["first_token_s"] for result in results)
        print(f"packed cache {state}: {median_s:.2f} s to the first token (median of {len(results)})")
    idle = runs["filled"][0]
    print(f"idle: {idle['idle_cpu_share']:.2%} of a core, {idle['resident_bytes'] / 2**20:.0f} MiB resident")
    machine = {"machine": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({**machine, "model": options.model, "dtype": options.dtype, "runs": runs}))


if __name__ == "__main__":
    main()
