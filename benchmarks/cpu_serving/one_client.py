"""
Measure what is lost around the step: clients over HTTP beside the same request as bare steps, in turns.

    python -m benchmarks.cpu_serving.one_client smollm2 --dtype w4a8
    python -m benchmarks.cpu_serving.one_client smollm2 --dtype w4a8 --clients 8 --rounds 5

Each round has two turns: bare steps of the runner in this process (the server is frozen), and requests over HTTP.
Two ceilings: the bare steps, and the time that the server itself spent in its steps. The last line is one JSON object.
"""

import json
import socket
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from benchmarks.harness.machine import physical_cores
from benchmarks.harness.proc import TaskUse, foreign_cores, read_tasks, read_usage
from benchmarks.harness.results import make_parser, table, tell
from benchmarks.harness.servers import HOST, MODEL_NAME, Launch, ServerProcess
from benchmarks.harness.steps import BLOCK, decode_step, load_runner, prompt_step

from headrace.inference.models.loading import load_model
from headrace.inference.runner.native import NativeRunner

PROMPT, ANSWER = 128, 128
START_S, ANSWER_S = 300.0, 300.0
_COUNTERS = ("step_seconds_total", "step_thread_seconds_total", "steps_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of bare steps and one over HTTP, with the same number of sequences."""

    bare_tokens_per_s: float
    """Of the prompts and answers as bare steps."""
    tokens_per_s: float
    """Over HTTP, from sending the requests until the end of the last answer."""
    step_tokens_per_s: float
    """Over the time that the server spent in its steps."""
    ttft_ms: float
    threads: float
    """Mean number of threads of the server's steps."""
    steps: int
    loop_ms_per_token: float
    """CPU time of the server's event loop."""
    loop_wakeups_per_token: float
    """Times that it waited and was woken."""
    loop_preemptions_per_token: float
    other_ms_per_token: float
    """CPU time of the server's other threads: those of steps, and the engine's."""
    foreign_cores: float
    """Cores that other programs used."""


def bare_seconds(runner: NativeRunner, clients: int) -> float:
    """Return the seconds of the steps that answer all requests at once: their prompts one by one, then decode steps."""
    rng = np.random.default_rng(time.perf_counter_ns())
    per_sequence = -(-(PROMPT + ANSWER) // BLOCK)
    tables = np.arange(clients * per_sequence, dtype=np.int32).reshape(clients, per_sequence)
    prompts = rng.integers(0, runner.spec.vocab_size, (clients, PROMPT)).astype(np.int32)
    steps = [prompt_step(tokens, blocks) for tokens, blocks in zip(prompts, tables, strict=True)]
    answers = rng.integers(0, runner.spec.vocab_size, (ANSWER - 1, clients)).astype(np.int32)
    steps += [decode_step(tokens, tables, PROMPT + index) for index, tokens in enumerate(answers)]
    started_s = time.perf_counter()
    for step in steps:
        runner.execute(step)
    return time.perf_counter() - started_s


def stream_answer(port: int, prompt: list[int]) -> float:
    """Read a streamed completion without parsing it; return the seconds until its first bytes."""
    sampling = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    content = json.dumps({"model": MODEL_NAME, "prompt": prompt, "stream": True, **sampling}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    started_s, ttft_s, received = time.perf_counter(), 0.0, bytearray()
    with closing(socket.create_connection((HOST, port), ANSWER_S)) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        while part := connection.recv(1 << 16):
            ttft_s = ttft_s or time.perf_counter() - started_s
            received += part
    if not received.startswith(b"HTTP/1.1 200") or b"[DONE]" not in received:
        raise RuntimeError(f"The server answered {bytes(received[-500:])!r}.")
    return ttft_s


def counters(port: int) -> dict[str, float]:
    """Return the server's totals of steps."""
    with urlopen(f"http://{HOST}:{port}/metrics", timeout=ANSWER_S) as response:
        text = response.read().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    totals = {name.partition("{")[0].removeprefix("headrace_"): float(value) for name, _, value in lines}
    return {name: totals[name] for name in _COUNTERS}


def run_round(server: ServerProcess, runner: NativeRunner, clients: int) -> Round:
    """Run both turns."""
    server.freeze()
    bare_s = bare_seconds(runner, clients)
    server.thaw()
    rng = np.random.default_rng(time.perf_counter_ns())
    prompts = rng.integers(300, 20_000, (clients, PROMPT)).tolist()
    before, tasks, usage = counters(server.port), read_tasks(server.session), read_usage(server.session)
    with ThreadPoolExecutor(clients) as pool:
        started_s = time.perf_counter()
        ttfts = list(pool.map(lambda prompt: stream_answer(server.port, prompt), prompts))
        seconds = time.perf_counter() - started_s
    used = {task: use - tasks.get(task, TaskUse()) for task, use in read_tasks(server.session).items()}
    foreign = foreign_cores(usage, read_usage(server.session))
    found = {name: value - before[name] for name, value in counters(server.port).items()}
    return figures(clients * ANSWER, seconds, bare_s, found, used, ttfts, loop=server.session, foreign=foreign)


def figures(
    tokens: int,
    seconds: float,
    bare_s: float,
    totals: Mapping[str, float],
    used: Mapping[int, TaskUse],
    ttfts: list[float],
    *,
    loop: int,
    foreign: float,
) -> Round:
    """Return the figures of a round; the event loop runs on the thread whose number is that of the process, `loop`."""
    own = used[loop]
    return Round(
        bare_tokens_per_s=tokens / bare_s,
        tokens_per_s=tokens / seconds,
        step_tokens_per_s=tokens / totals["step_seconds_total"],
        ttft_ms=statistics.median(ttfts) * 1e3,
        threads=totals["step_thread_seconds_total"] / totals["step_seconds_total"],
        steps=round(totals["steps_total"]),
        loop_ms_per_token=own.cpu_s * 1e3 / tokens,
        loop_wakeups_per_token=own.wakeups / tokens,
        loop_preemptions_per_token=own.preemptions / tokens,
        other_ms_per_token=sum(use.cpu_s for task, use in used.items() if task != loop) * 1e3 / tokens,
        foreign_cores=foreign,
    )


def summary(rounds: list[Round]) -> dict[str, float]:
    """Return medians of all figures, and those of the ratios of each round."""
    medians = {name: statistics.median(getattr(found, name) for found in rounds) for name in Round.__slots__}
    return medians | {
        "ratio_to_bare": statistics.median(found.tokens_per_s / found.bare_tokens_per_s for found in rounds),
        "ratio_to_steps": statistics.median(found.tokens_per_s / found.step_tokens_per_s for found in rounds),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", default="w4a8")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    arguments = parser.parse_args()
    rounds = measure(arguments)
    found = summary(rounds)
    print(table(["", "median", "rounds"], [_row(name, value, rounds) for name, value in found.items()]))
    print(json.dumps({"clients": arguments.clients, "medians": found, "rounds": [asdict(each) for each in rounds]}))


def _row(name: str, value: float, rounds: list[Round]) -> list[str]:
    return [name, f"{value:.3f}", " ".join(f"{getattr(each, name):.3f}" for each in rounds if hasattr(each, name))]


def measure(arguments: Namespace) -> list[Round]:
    """Start the server and run the rounds, after one that counts for nothing."""
    limits = {"max_model_len": 1024, "max_num_seqs": max(8, arguments.clients)}
    flags = {name.replace("_", "-"): str(value) for name, value in limits.items()}
    flags |= {"dtype": arguments.dtype, "threads": str(arguments.threads), "served-model-name": MODEL_NAME}
    flags["max-draft-tokens"] = "0"
    command = [sys.executable, "-P", "-m", "headrace", "serve", arguments.model, "--no-enable-prefix-caching"]
    with tempfile.TemporaryDirectory() as folder:
        flags["cache-dir"] = folder
        launch = Launch(arguments=(*command, *(part for name, value in flags.items() for part in (f"--{name}", value))))
        runner = load_runner(
            load_model(arguments.model),
            dtype=arguments.dtype,
            kv_dtype="int8" if arguments.dtype.endswith("a8") else "bf16",
            max_num_batched_tokens=512,
            threads=arguments.threads,
            cache_dir=Path(folder),
            **limits,
        )
        with ServerProcess(launch, log=Path(folder) / "server.log") as server:
            server.wait_for_token(timeout_s=START_S)
            rounds = []
            for number in range(arguments.rounds + 1):
                rounds.append(run_round(server, runner, arguments.clients))
                tell(f"round {number}: {rounds[-1]}")
            return rounds[1:]


if __name__ == "__main__":
    main()
