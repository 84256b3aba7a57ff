"""
Measure start and speed of every backend on the same model, over HTTP.

    python -m benchmarks.backends.run ./smollm2-bf16
    python -m benchmarks.backends.run ./smollm2-bf16 --backends native,vllm --vllm-python ~/vllm/bin/python

Run it from the repository's root, with nothing else running on the machine. See README.md.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.machine import describe_machine
from benchmarks.harness.results import RESULTS, make_parser, names, table, tell, write_result
from benchmarks.harness.servers import Launch, ServerFailed, ServerProcess, generates_token, pings
from benchmarks.harness.turns import in_turns

BACKENDS = ["native", "torch", "transformers", "vllm"]
USERS = (1, 8)
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of one backend."""

    backend: str
    start_s: float
    """From the start of the process to the first token."""
    tokens_per_s: dict[int, float]
    """Output tokens of all users together, by their number."""
    ttft_ms: dict[int, float]
    """Median time to the first token, by the number of users."""


def load(url: str, requests: int) -> dict[str, dict[int, float]]:
    """Return what `headrace bench` measures, by the number of users."""
    command = [sys.executable, "-m", "headrace", "bench", url, "--json"]
    command += ["-c", ",".join(map(str, USERS)), "--requests", str(requests)]
    command += ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    levels = json.loads(done.stdout.splitlines()[-1])["levels"]
    by_users = dict(zip(USERS, levels, strict=True))
    return {
        "tokens_per_s": {users: level["output_tokens_per_s"] for users, level in by_users.items()},
        "ttft_ms": {users: 1000 * level["ttft_s"]["p50"] for users, level in by_users.items()},
    }


def turns(arguments: Namespace, folder: Path) -> Iterator[Turn]:
    """Run the backends in turn, round after round; end with a server's log if it does not start."""
    for _, backend in in_turns(arguments.backends, arguments.rounds):
        python = arguments.vllm_python if backend == "vllm" else sys.executable
        command = [python, "-m", "headrace", "serve", str(arguments.model), "--backend", backend]
        command += ["--max-model-len", "1024", *shlex.split(arguments.flags)]
        command += ["--enforce-eager", "--kv-cache-bytes", "512MiB"] if backend == "vllm" else []
        log = folder / f"{backend}.log"
        with ServerProcess(Launch(arguments=tuple(command)), log=log) as server:
            try:
                server.wait_until(pings, timeout_s=START_TIMEOUT_S)
                start_s = server.wait_until(generates_token, timeout_s=START_TIMEOUT_S)
            except ServerFailed:
                sys.exit(f"The server did not start:\n{log.read_text()[-2000:]}")
            turn = Turn(backend=backend, start_s=start_s, **load(server.url, arguments.requests))
            server.stop()
        tell(str(turn))
        yield turn


def medians(found: list[Turn]) -> str:
    rows = []
    for backend in dict.fromkeys(turn.backend for turn in found):
        own = [turn for turn in found if turn.backend == backend]
        speeds = [statistics.median(turn.tokens_per_s[n] for turn in own) for n in USERS]
        waits_ms = [statistics.median(turn.ttft_ms[n] for turn in own) for n in USERS]
        cells = [f"{speed:.0f}, {wait_ms:.0f} ms" for speed, wait_ms in zip(speeds, waits_ms, strict=True)]
        rows.append([backend, f"{statistics.median(t.start_s for t in own):.1f}", *cells])
    return table(["backend", "start, s", *(f"{n} user{'s' * (n > 1)}: tok/s, first token" for n in USERS)], rows)


def main(argv: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path, help="a Hugging Face folder, which all backends read")
    parser.add_argument("--backends", type=names, default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", default=sys.executable, help="the Python of the environment with vLLM")
    parser.add_argument("--flags", default="--dtype bf16", help="for every server")
    parser.add_argument("--requests", type=int, default=16, help="for each number of users")
    parser.add_argument("--output", type=Path, default=RESULTS / "backends")
    arguments = parser.parse_args(argv)
    os.environ["HEADRACE_LOG_FORMAT"] = "json"
    with tempfile.TemporaryDirectory() as folder:
        found = list(turns(arguments, Path(folder)))
    machine = describe_machine()
    report = {"machine": machine, "model": arguments.model.name, "turns": [asdict(turn) for turn in found]}
    where = f"{machine['cpu']}, {machine['physical_cores']} cores; {arguments.model.name}, {arguments.flags}."
    write_result(arguments.output.with_suffix(".json"), report, f"# Backends\n\n{where}\n\n{medians(found)}\n")
    print(medians(found))


if __name__ == "__main__":
    main()
