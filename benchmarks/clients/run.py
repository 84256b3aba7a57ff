"""
Run the first examples of clients against a model server and a platform, and write the table of clients.

scripts/clients                       the clients that have no result yet
scripts/clients openai litellm        those whose name contains one of these words, again
scripts/clients --all                 all of them again
scripts/clients --list                their names

Results are in benchmarks/results/clients.json, the table is docs/clients.md, and environments are kept in
~/.cache/headrace/client-examples (delete the folder to get the latest versions).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.clients.clients import CLIENTS, Client
from benchmarks.clients.environments import NotInstalled, command_of, environments_folder, version_of
from benchmarks.clients.report import render
from benchmarks.clients.scripted import scripted_server, scripted_variables
from benchmarks.harness.servers import Launch, ServerProcess, pings

from headrace.inference.models.folder_export import export_files
from headrace.inference.models.loading import load_model
from headrace.testing.local_platform import local_platform

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "clients.json"
PAGE = ROOT / "docs" / "clients.md"
MODEL = "smollm2"
START_TIMEOUT_S = 180
_LOG_CHARACTERS = 2000


def write_tokenizer(folder: Path) -> Path:
    """Write the model's tokenizer for clients that count tokens, as they would find it on the Hub."""
    folder.mkdir()
    export_files(load_model(MODEL), folder, {})
    return folder


def run_client(client: Client, root: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Install a client and run its script; every failure is a part of the result."""
    result: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "version": "", "steps": [], "error": None}
    try:
        command = command_of(client, root)
        result["version"] = version_of(client, root)
    except NotInstalled as error:
        return {**result, "error": f"not installed: {error}"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **variables, "CLIENT_PROGRAM": client.program},
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=client.timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, log = process.communicate()
        result["error"] = f"not finished after {client.timeout_s:g} s"
    output, log = (text.replace(str(Path.home()), "~") for text in (output, log))
    result["steps"] = [json.loads(line) for line in output.splitlines() if line.startswith('{"step"')]
    if process.returncode != 0 and result["error"] is None:
        result["error"] = log.strip()[-300:]
    if any(step["error"] for step in result["steps"]):
        print(log[-_LOG_CHARACTERS:], file=sys.stderr)
    return result


def chosen(options: argparse.Namespace, results: Mapping[str, Any]) -> Sequence[Client]:
    if options.names:
        words = [name.lower() for name in options.names]
        return [client for client in CLIENTS if any(word in client.name.lower() for word in words)]
    return [client for client in CLIENTS if options.all or client.name not in results]


def save(results: Mapping[str, Any]) -> None:
    """Write the results and the page, after each client, so that a run can be interrupted."""
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the first examples of clients against Headrace.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only clients whose name contains one of these words")
    parser.add_argument("--all", action="store_true", help="run clients that have a result again")
    parser.add_argument("--list", action="store_true", help="print the names of the clients")
    options = parser.parse_args()
    if options.list:
        print(*(client.name for client in CLIENTS), sep="\n")
        return 0
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    clients = chosen(options, results)
    if not clients:
        print("Every client has a result. Use --all, or name clients, to run them again.")
        return 0
    root = environments_folder()
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        tokenizer = write_tokenizer(logs / "tokenizer")
        launch = Launch(arguments=(sys.executable, "-m", "headrace", "serve", MODEL))
        with (
            ServerProcess(launch, log=logs / "server.log") as server,
            local_platform(logs) as platform,
            scripted_server() as scripted,
        ):
            server.wait_until(pings, timeout_s=START_TIMEOUT_S)
            platform.deploy(MODEL, name=MODEL)
            addresses = {"CLIENT_SERVER_URL": server.url, "CLIENT_PLATFORM_URL": platform.url}
            variables = {
                **addresses,
                **scripted_variables(scripted),
                "CLIENT_MODEL": MODEL,
                "CLIENT_TOKENIZER": str(tokenizer),
            }
            with platform.environment():
                return _run_all(clients, root, variables, results)


def _run_all(clients: Sequence[Client], root: Path, variables: Mapping[str, str], results: dict[str, Any]) -> int:
    num_failed = 0
    for number, client in enumerate(clients, start=1):
        print(f"[{number}/{len(clients)}] {client.name} ...", end=" ", flush=True)
        result = results[client.name] = run_client(client, root, variables)
        failed = [step["step"] for step in result["steps"] if step["error"]]
        num_failed += bool(failed or result["error"])
        print(f"{result['version']}: {len(result['steps']) - len(failed)} ran, {len(failed)} failed", *failed)
        if result["error"]:
            print(f"  {result['error']}")
        save(results)
    print(f"Wrote {PAGE.relative_to(ROOT)}.")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
