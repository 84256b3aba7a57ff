"""
Measure the time to the first token of a long prefix: computed, after a restart, and after an endpoint woke from zero.

    python -m benchmarks.prefix_cache.run smollm2
    python -m benchmarks.prefix_cache.run MODEL --tokens 4000 --rounds 5 --output FILE

Each round takes one turn of every kind. `restart` kills a server (SIGKILL) and asks the next one for the same prefix;
`wake` scales an endpoint to zero and asks it again, the start of its replica included. Both have turns with a folder
for prefixes and without one. `steps` compares the seconds of steps of the same new prompts, with and without a folder.
Writes `--output` (JSON). The last line is one JSON object.
"""

import json
import statistics
import tempfile
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.harness.platforms import PATIENCE_S, TGI_IMAGE, create_endpoint, is_in_service, scale, until
from benchmarks.harness.results import RESULTS, make_parser, tell, write_result
from benchmarks.harness.servers import ServerProcess, pings
from benchmarks.prefix_cache.asking import ANSWER_S, Asked, ask, launch, make_prompt

from headrace.testing.local_platform import LocalPlatform, local_platform
from headrace.tools.bench.environment import describe_environment

KINDS = ("with", "without")


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="an alias, a file or a folder")
    parser.add_argument("--tokens", type=int, default=4000, help="of the prefix")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-platform", action="store_true", help="leave the turns of `wake` out")
    parser.add_argument("--output", type=Path, default=RESULTS / "prefix-cache.json")
    return parser.parse_args()


def question(prefix: list[int], number: int) -> list[int]:
    """Return the prefix with the end of another request."""
    return prefix + make_prompt(24, 1000 + number)


def restart(options: Namespace, folder: Path, kind: str, number: int) -> Asked:
    """Answer on a new server, and kill it."""
    cache = folder / "cache" if kind == "with" else None
    with ServerProcess(launch(options.model, cache), log=folder / "server.log") as server:
        server.wait_until(pings, timeout_s=ANSWER_S)
        asked = ask(server.port, question(make_prompt(options.tokens, 0), number))
        if cache is not None:  # until its blocks are on the disk
            _until_written(cache, options.tokens // 32)
    return asked


def _until_written(cache: Path, num_files: int) -> None:
    until(lambda: len(list(cache.glob("*/*.kv"))) >= num_files, "the prefix is written", PATIENCE_S)


def steps(options: Namespace, folder: Path, number: int) -> dict[str, float]:
    """Return the seconds in steps of the same new prompts on two servers, of which one waits while the other works."""
    seconds = {}
    with (
        ServerProcess(launch(options.model, folder / "steps"), log=folder / "with.log") as own,
        ServerProcess(launch(options.model, None), log=folder / "without.log") as plain,
    ):
        servers = {"with": own, "without": plain}
        for server in servers.values():
            server.wait_until(pings, timeout_s=ANSWER_S)
        for kind in KINDS[:: 1 if number % 2 else -1]:
            other = servers["without" if kind == "with" else "with"]
            other.freeze()
            before_s = _step_s(servers[kind].port)
            for index in range(2):
                ask(servers[kind].port, make_prompt(options.tokens // 2, 10_000 + 10 * number + index), num_tokens=64)
            seconds[kind] = _step_s(servers[kind].port) - before_s
            other.thaw()
    return seconds


def _step_s(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("headrace_step_seconds_total")).split()[-1])


def wake(options: Namespace, platform: LocalPlatform, sagemaker: Any, kind: str, number: int) -> float:
    """Scale an endpoint to zero, ask it for the prefix, and return the seconds until the first part of the answer."""
    scale(sagemaker, kind, 0)
    until(lambda: is_in_service(sagemaker, kind, instances=0), "the endpoint sleeps", PATIENCE_S)
    time.sleep(0.5)
    return _invoke(options, platform, kind, number)


def _invoke(options: Namespace, platform: LocalPlatform, name: str, number: int) -> float:
    # TGI's format takes text only: words instead of token ids.
    words = " ".join(f"w{(index * index * 31 + index) % 997}" for index in range(options.tokens // 5))
    body = {"inputs": f"{words} {number}", "parameters": {"max_new_tokens": 4}, "stream": True}
    started_s = time.perf_counter()
    with closing(platform.client("sagemaker-runtime")) as runtime:
        answer = runtime.invoke_endpoint_with_response_stream(
            EndpointName=name, Body=json.dumps(body), ContentType="application/json"
        )
        parts = iter(answer["Body"])
        next(parts)
        first_s = time.perf_counter() - started_s
        for _ in parts:
            pass
    return first_s


def measure_wakes(options: Namespace, folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with local_platform(folder) as platform, closing(platform.client("sagemaker")) as sagemaker:
        for kind in KINDS:
            environment = {"HF_MODEL_ID": options.model, "MAX_TOTAL_TOKENS": "8192", "MAX_INPUT_TOKENS": "8000"}
            if kind == "with":
                environment["LMCACHE_LOCAL_DISK"] = "file:///tmp/lmcache"
            container = {"Image": TGI_IMAGE, "Environment": environment}
            create_endpoint(sagemaker, kind, container, instance_type="ml.g5.2xlarge")
            until(lambda name=kind: is_in_service(sagemaker, name, instances=1), "the endpoint serves", PATIENCE_S)
            _invoke(options, platform, kind, -1)
        time.sleep(5)  # its blocks are written
        for number in range(options.rounds):
            for kind in KINDS:
                found[kind].append(wake(options, platform, sagemaker, kind, number))
            tell(f"wake {number}: { ({kind: round(seconds[-1], 2) for kind, seconds in found.items()}) }")
    return found


def main() -> None:
    options = parse_arguments()
    turns: dict[str, list[dict[str, float]]] = {"restart": [], "steps": []}
    texts, wakes = set(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        restart(options, folder, "with", 0)  # fills the folder
        for number in range(options.rounds):
            asked = {kind: restart(options, folder, kind, number) for kind in KINDS}
            texts.add(asked["with"].text == asked["without"].text)
            turns["restart"].append({kind: answer.ttft_s for kind, answer in asked.items()})
            turns["steps"].append(steps(options, folder, number))
            tell(f"{number}: {turns['restart'][-1]} {turns['steps'][-1]}")
        if not options.no_platform:
            wakes = measure_wakes(options, folder / "platform")
    found = {
        f"{what}_{kind}_s": round(statistics.median(turn[kind] for turn in rows), 4)
        for what, rows in turns.items()
        for kind in KINDS
    }
    found |= {f"wake_{kind}_s": round(statistics.median(seconds), 4) for kind, seconds in wakes.items()}
    found["step_ratio"] = round(statistics.median(turn["with"] / turn["without"] for turn in turns["steps"]), 4)
    result = {
        "environment": describe_environment(),
        "model": options.model,
        "tokens": options.tokens,
        "same_texts": texts == {True},
        "summary": found,
        "turns": turns | {"wake": wakes},
    }
    write_result(options.output, result)
    print(json.dumps({"same_texts": texts == {True}, **found}))


if __name__ == "__main__":
    main()
