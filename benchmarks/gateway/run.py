"""
Measure what the gateway adds: time to the first byte and throughput, against the bare model server in one run.

    python -m benchmarks.gateway.run "$(headrace models path smollm2)"
    python -m benchmarks.gateway.run MODEL --streams 1,32 --rounds 3

Writes `--output` (JSON, every round) and the same name with `.md` (the table). The last line is one JSON object.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import uvloop
from benchmarks.gateway.figures import Answer, Round, summary, table
from benchmarks.gateway.host import ENDPOINT
from benchmarks.harness.proc import session_cpu_s
from benchmarks.harness.results import RESULTS, make_parser, names, numbers, tell, write_result
from benchmarks.harness.servers import Launch, ServerProcess
from benchmarks.harness.turns import rotated

from headrace.tools.bench.environment import describe_environment
from headrace.tools.bench.http1 import HttpClient

START_TIMEOUT_S = 120.0
WAVES_OF_STREAMS = 8
"""With fewer streams a round has this many times more waves."""
_PATHS = {
    "sagemaker": ("/invocations", f"/endpoints/{ENDPOINT}/invocations-response-stream"),
    "openai": ("/v1/completions", f"/endpoints/{ENDPOINT}/openai/v1/completions"),
}


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="a file or a folder")
    parser.add_argument("--apis", type=names, default=["sagemaker", "openai"])
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32], help="requests at a time, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waves", type=int, default=2, help="of requests in a round; more where there are few streams")
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the model server")
    parser.add_argument("--output", type=Path, default=RESULTS / "gateway.json")
    return parser.parse_args()


def request_body(api: str, number: int, output_tokens: int) -> bytes:
    """Return a body, the same for both ways; each number has its own prompt, so that prefix caches do not help."""
    prompt = f"Number {number}. Tell a long story about number {number} and its friends."
    if api == "openai":
        body = {"model": "m", "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        return json.dumps({**body, "stream": True}).encode()
    return json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": output_tokens}, "stream": True}).encode()


async def ask(client: HttpClient, path: str, body: bytes) -> Answer:
    started_s = perf_counter()
    exchange = await client.fetch("POST", path, body)
    assert exchange.status == 200, exchange.content()
    return Answer(
        ttft_s=exchange.pieces[0].at_s - started_s,
        total_s=perf_counter() - started_s,
        num_pieces=len(exchange.pieces),
    )


async def ask_all(client: HttpClient, path: str, bodies: list[bytes]) -> tuple[list[Answer], float]:
    started_s = perf_counter()
    answers = await asyncio.gather(*(ask(client, path, body) for body in bodies))
    return answers, perf_counter() - started_s


async def measure(options: Namespace, worker_url: str, gateway_url: str, gateway_pid: int) -> list[Round]:
    """Return all rounds but the first, which warms up."""
    clients = HttpClient(worker_url), HttpClient(gateway_url)
    rounds = []
    for number in range(-1, options.rounds):
        for api in options.apis:
            for streams in options.streams:
                num_waves = max(options.waves, options.waves * WAVES_OF_STREAMS // streams)
                prompts = range((number + 1) * 1_000_000, (number + 1) * 1_000_000 + num_waves * streams)
                bodies = [request_body(api, prompt, options.output_tokens) for prompt in prompts]
                waves = [bodies[start : start + streams] for start in range(0, len(bodies), streams)]
                made = await measure_round(api, waves, clients, gateway_pid)
                if number >= 0:
                    rounds.append(made)
                    tell(table(summary([made])).splitlines()[-1])
    for client in clients:
        await client.close()
    return rounds


async def measure_round(
    api: str, waves: list[list[bytes]], clients: tuple[HttpClient, HttpClient], gateway_pid: int
) -> Round:
    """Send each wave both ways, one right after the other; which is first changes from wave to wave."""
    answers: tuple[list[Answer], list[Answer]] = ([], [])
    wall_s = [0.0, 0.0]
    before_s = session_cpu_s(gateway_pid)
    for number, bodies in enumerate(waves):
        for way in rotated((1, 0), number):
            some, took_s = await ask_all(clients[way], _PATHS[api][way], bodies)
            answers[way].extend(some)
            wall_s[way] += took_s
    return Round(
        api=api,
        streams=len(waves[0]),
        direct=tuple(answers[0]),
        direct_s=wall_s[0],
        through=tuple(answers[1]),
        through_s=wall_s[1],
        gateway_cpu_s=session_cpu_s(gateway_pid) - before_s,
    )


@contextmanager
def running(options: Namespace, scratch: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the worker's URL, the gateway's URL and its process."""
    flags = (
        "--dtype",
        "w4a8",
        "--max-draft-tokens",
        "0",
        "--no-enable-prefix-caching",
        "--threads",
        str(options.threads),
    )
    arguments = (sys.executable, "-m", "headrace", "serve", options.model, "--dialect", "tgi-3", *flags)
    with ServerProcess(Launch(arguments=arguments), log=scratch / "worker.log") as worker:
        worker.wait_for_token(timeout_s=START_TIMEOUT_S)
        command = [sys.executable, "-m", "benchmarks.gateway.host", worker.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as gateway:
            try:
                assert gateway.stdout is not None
                yield worker.url, gateway.stdout.readline().strip(), gateway.pid
            finally:
                gateway.terminate()


def main() -> None:
    options = parse_arguments()
    started_s = time.time()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(options, Path(folder)) as (worker_url, gateway_url, pid),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        rounds = runner.run(measure(options, worker_url, gateway_url, pid))
    rows = summary(rounds)
    result = {
        "environment": describe_environment(),
        "model": Path(options.model).name,
        "output_tokens": options.output_tokens,
        "threads": options.threads,
        "took_s": round(time.time() - started_s),
        "summary": rows,
        "rounds": [asdict(measured) for measured in rounds],
    }
    write_result(options.output, result, f"# The gateway beside the bare model server\n\n{table(rows)}\n")
    print(table(rows))
    print(json.dumps({"output": str(options.output), "summary": rows}))


if __name__ == "__main__":
    main()
