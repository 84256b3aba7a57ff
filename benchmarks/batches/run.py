"""
Kill a server (SIGKILL) in the middle of a batch, several times, and check that each request is answered exactly once.

The answers are greedy: they are compared with those of the same batch on a server that nothing kills, which also gives
the rate of a batch. The last line of standard output is one JSON object.

    python benchmarks/batches/run.py "$(headrace models path smollm2)" --lines 500 --kills 3
"""

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

import openai
from benchmarks.harness.results import make_parser
from benchmarks.harness.servers import Launch, ServerProcess, headrace_command, pings

TIMEOUT_S = 600.0
POLL_S = 0.1
ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def lines_of(count: int, max_tokens: int) -> bytes:
    """Return an input file whose prompts are all different."""
    lines = []
    for number in range(count):
        messages = [{"role": "user", "content": f"Write a sentence about the number {number}."}]
        body = {"model": "any", "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        lines.append({"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body})
    return "\n".join(map(json.dumps, lines)).encode()


class Killer:
    """A server for one folder of batches, which is started again after each kill."""

    def __init__(self, model: str, folder: Path) -> None:
        self._launch = Launch(arguments=(headrace_command(), "serve", model, "--batch-folder", str(folder / "batches")))
        self._log = folder / "server.log"

    def start(self) -> ServerProcess:
        server = ServerProcess(self._launch, log=self._log)
        server.wait_until(pings, timeout_s=TIMEOUT_S)
        return server


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", timeout=TIMEOUT_S)


def wait_for(client: openai.OpenAI, batch_id: str, num_done: int) -> Any:
    """Wait until so many lines are answered, or the batch has ended."""
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ENDED or batch.request_counts.completed >= num_done:
            return batch
        time.sleep(POLL_S)


def run_batch(killer: Killer, content: bytes, kill_at: list[int]) -> dict[str, Any]:
    """Run a batch, and kill its server when it has answered so many lines; return its results."""
    server = killer.start()
    with client_of(server) as client:
        file = client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    began_s, killed_at = time.perf_counter(), []
    for num_done in kill_at:
        with client_of(server) as client:
            batch = wait_for(client, batch.id, num_done)
        killed_at.append(batch.request_counts.completed)
        server.close()
        server = killer.start()
    with client_of(server) as client:
        batch = wait_for(client, batch.id, sys.maxsize)
        took_s = time.perf_counter() - began_s
        text = client.files.content(batch.output_file_id).text
    server.stop()
    results = [json.loads(line) for line in text.splitlines()]
    answers = {result["custom_id"]: answer_of(result) for result in results}
    counts = Counter(result["custom_id"] for result in results)
    return {"status": batch.status, "killed_at": killed_at, "took_s": took_s, "answers": answers, "counts": counts}


def answer_of(result: dict[str, Any]) -> str:
    text: str = result["response"]["body"]["choices"][0]["message"]["content"]
    return text


def main() -> int:
    parser = make_parser("Kill a server in the middle of a batch, and count the answers.")
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    content = lines_of(options.lines, options.max_tokens)
    kill_at = sorted(random.Random(options.seed).sample(range(1, options.lines * 9 // 10), options.kills))
    with tempfile.TemporaryDirectory() as folder:
        calm = run_batch(Killer(options.model, Path(folder)), content, [])
    with tempfile.TemporaryDirectory() as folder:
        killed = run_batch(Killer(options.model, Path(folder)), content, kill_at)
    same = sum(killed["answers"].get(name) == answer for name, answer in calm["answers"].items())
    once = sum(count == 1 for count in killed["counts"].values())
    print(f"not killed: {calm['status']}, {options.lines / calm['took_s']:.1f} lines/s")
    print(f"killed at {killed['killed_at']} lines: {killed['status']}, {once} of {options.lines} lines exactly once,")
    print(f"{same} with the bytes of the server that was not killed")
    machine = {"machine": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    figures = {"lines": options.lines, "killed_at": killed["killed_at"], "once": once, "same": same}
    print(json.dumps({**machine, **figures, "calm_s": calm["took_s"], "killed_s": killed["took_s"]}))
    return 0 if once == same == options.lines == len(killed["counts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
