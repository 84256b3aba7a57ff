"""
Measure the time from `headrace serve` to the first token, and the CPU time and memory of an idle server.

Runs the server several times with an empty and with a filled cache of packed weights, and measures from outside:
the process, `GET /ping`, one streamed token, `/proc`. The last line of standard output is one JSON object.

Name the model by its file or folder: an alias would be downloaded into each empty cache.

    python benchmarks/startup/run.py "$(headrace models path smollm2)" --runs 5
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

IDLE_S = 5.0
POLL_S = 0.005


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_ping(url: str) -> None:
    """Wait until the server is ready."""
    while True:
        try:
            if httpx.get(f"{url}/ping").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(POLL_S)


def first_token(url: str) -> None:
    """Wait for the first token of a stream."""
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1}}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=60) as response:
        response.raise_for_status()
        next(response.iter_bytes())


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_once(command: list[str], cache: Path, *, measure_idle: bool) -> dict[str, float]:
    """Start the server, wait for a token, measure it, stop it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    started_s = time.perf_counter()
    flags = ["--port", str(port), "--cache-dir", str(cache)]
    with subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_for_ping(url)
        ready_s = time.perf_counter()
        first_token(url)
        token_s = time.perf_counter()
        result = {"ready_s": ready_s - started_s, "first_token_s": token_s - started_s}
        if measure_idle:
            before_s = cpu_s(server.pid)
            time.sleep(IDLE_S)
            result["idle_cpu_share"] = (cpu_s(server.pid) - before_s) / IDLE_S
            result["resident_bytes"] = resident_bytes(server.pid)
        server.send_signal(signal.SIGTERM)
    return result


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description="Time from `headrace serve` to the first token.")
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    headrace = shutil.which("headrace", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "headrace"
    command = [headrace, "serve", options.model, "--dtype", options.dtype]
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
