"""
Six models behind one port with memory for two: requests in random order, and the time of a switch.

Copies of model files get names of their own in a folder, which is served by `headrace serve --models` and, if its
program is given, by the router of llama-server. Both may have `--loaded` models in memory.

- Switches: one client asks all models one after the other, so that each request loads a model and unloads another.
  The servers take turns, round by round.
- Load: `--clients` clients ask models in random order; meanwhile the memory of the server's processes is sampled.

    python -m benchmarks.many_models.run smollm2.gguf gemma3-270m.gguf --llama-server PATH

The last line is one JSON object.
"""

import http.client
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.proc import children, read_processes
from benchmarks.harness.results import RESULTS, exit_on_sigterm, make_parser, tell, write_result
from benchmarks.harness.servers import HOST, Launch, ServerProcess, headrace_command, pings
from benchmarks.harness.turns import in_turns, pair_ratios

from headrace.core.sizes import parse_size
from headrace.tools.bench.environment import describe_environment

ANSWER_S = 300.0
_SAMPLE_S = 0.1


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="GGUF files, which are copied in turns")
    parser.add_argument("--llama-server", help="its program; without it only Headrace is measured")
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--loaded", type=int, default=2, help="models in memory at the same time")
    parser.add_argument("--memory", type=parse_size, default="900MiB", help="of Headrace's models together")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="of switches through all models; 0: none")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each model's context")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "many-models.json")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: its first token, and why it was lost."""

    model: str
    first_s: float
    error: str = ""


def copy_models(files: Sequence[Path], folder: Path, count: int) -> list[str]:
    """Copy the files in turns under new names, and return these."""
    names = [f"model-{number}" for number in range(count)]
    for number, name in enumerate(names):
        shutil.copyfile(files[number % len(files)], folder / f"{name}.gguf")
    return names


def launches(options: Namespace, folder: Path) -> dict[str, Launch]:
    flags = {"models": folder, "models-max": options.loaded, "max-model-len": options.context, "log-level": "warning"}
    flags |= {"max-memory-bytes": options.memory}
    pairs = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    found = {"headrace": Launch(arguments=(headrace_command(), "serve", *pairs))}
    if options.llama_server:
        peer = {"--models-dir": folder, "--models-max": options.loaded, "-c": options.context}
        pairs = [part for name, value in peer.items() for part in (name, str(value))]
        found["llama-server"] = Launch(arguments=(options.llama_server, *pairs, "--no-webui"))
    return found


def ask(port: int, model: str, number: int) -> Asked:
    """Ask a model for four tokens, in a stream."""
    body = {"model": model, "prompt": f"{number}. The sea is", "max_tokens": 4, "temperature": 0, "stream": True}
    started_s, first_s, content = time.perf_counter(), 0.0, b""
    try:
        with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            for line in response:
                if line.startswith(b"data: "):  # no comment
                    first_s = first_s or time.perf_counter() - started_s
                content += line
    except (OSError, http.client.HTTPException) as error:
        return Asked(model=model, first_s=time.perf_counter() - started_s, error=repr(error))
    is_whole = response.status == http.client.OK and b"data: [DONE]" in content and b'"error"' not in content
    text = "" if is_whole else f"{response.status} {content[-300:].decode(errors='replace')}"
    return Asked(model=model, first_s=first_s, error=text)


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it: models have sessions of their own."""
    yield pid
    for child in children(pid):
        yield from tree(child)


@contextmanager
def sampled_memory(pid: int) -> Iterator[list[dict[str, int]]]:
    """Sample the memory of a server's models until the block ends; the server in front is not one of them."""
    samples: list[dict[str, int]] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_S):
            models = children(pid)
            use = read_processes(below for model in models for below in tree(model))
            samples.append({"models": len(models), "rss_bytes": use.rss_bytes, "pss_bytes": use.pss_bytes})

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def measure_switches(servers: dict[str, ServerProcess], models: Sequence[str], rounds: int) -> dict[str, list[Asked]]:
    """Ask all models one after the other, so that each request is a switch. The first round is left out."""
    found: dict[str, list[Asked]] = {name: [] for name in servers}
    for number, name in in_turns(list(servers), rounds + 1 if rounds else 0):
        asked = [ask(servers[name].port, model, number) for model in models]
        errors = [request.error for request in asked if request.error]
        tell(f"round {number}, {name}: {[round(request.first_s, 2) for request in asked]} {errors}")
        if number:
            found[name] += asked
    return found


def measure_load(server: ServerProcess, models: Sequence[str], options: Namespace) -> dict[str, Any]:
    """Let clients ask models in random order."""
    rng = random.Random(options.seed)
    wanted = [rng.choice(models) for _ in range(options.requests)]
    started_s = time.perf_counter()
    with sampled_memory(server.session) as samples, ThreadPoolExecutor(options.clients) as pool:
        asked = list(pool.map(lambda pair: ask(server.port, pair[1], pair[0]), enumerate(wanted)))
    first = sorted(request.first_s for request in asked if not request.error)
    return {
        "requests": len(asked),
        "lost": sum(bool(request.error) for request in asked),
        "errors": sorted({request.error for request in asked if request.error})[:5],
        "took_s": round(time.perf_counter() - started_s, 1),
        "first_token_s": {"median": round(statistics.median(first), 3), "max": round(first[-1], 3)} if first else None,
        "peak_rss_bytes": max((sample["rss_bytes"] for sample in samples), default=0),
        "peak_pss_bytes": max((sample["pss_bytes"] for sample in samples), default=0),
        "peak_models": max((sample["models"] for sample in samples), default=0),
    }


def count_loads(port: int) -> int:
    """Return the loads that a Headrace server has counted."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith("headrace_model_loads_total{")))


def measure(options: Namespace, folder: Path) -> dict[str, Any]:
    models = copy_models(options.files, folder / "models", options.models)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(ServerProcess(launch, log=folder / f"{name}.log"))
            for name, launch in launches(options, folder / "models").items()
        }
        is_ready: Callable[[int], bool] = lambda port: pings(port, "/health")  # noqa: E731
        for server in servers.values():
            server.wait_until(is_ready, timeout_s=ANSWER_S)
        switches = measure_switches(servers, models, options.rounds)
        before = count_loads(servers["headrace"].port)
        load = {}
        for name, server in servers.items():
            load[name] = measure_load(server, models, options)
            tell(f"load, {name}: {load[name]}")
        load["headrace"]["loads"] = count_loads(servers["headrace"].port) - before
    times = {name: [request.first_s for request in asked] for name, asked in switches.items()}
    result: dict[str, Any] = {
        "switch_s": {
            name: {"median": round(statistics.median(values), 3), "all": [round(value, 3) for value in values]}
            for name, values in times.items()
            if values
        },
        "lost_switches": {name: sum(bool(request.error) for request in asked) for name, asked in switches.items()},
        "load": load,
        "limit_bytes": options.memory,
    }
    if options.rounds and "llama-server" in times:
        result["switch_ratio"] = pair_ratios(times["headrace"], times["llama-server"])
    return result


def main() -> None:
    options = parse_arguments()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        found = measure(options, Path(folder))
    given = {name: value for name, value in vars(options).items() if name not in ("output", "files", "llama_server")}
    result = {"environment": describe_environment(), "files": [file.name for file in options.files], **given, **found}
    write_result(options.output, result)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
