"""
A container engine for tests: some of Docker's commands, with a process in place of a container.

Like Docker's, a container outlives a killed `run`. The folder `STUB_ENGINE` (a variable of the engine) has files for
each container. The variable `SCRIPT` of a container's environment says what it does: `serve`, `fail`, or `refuse` if
the engine cannot run it. An image whose name has `absent` is not on this host; with `denied` it cannot be pulled.
"""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def values(options: list[str], name: str) -> list[str]:
    return [value for option, value in pairwise(options) if option == name]


def run(options: list[str]) -> int:
    folder = Path(os.environ["STUB_ENGINE"])
    (name,) = values(options, "--name")
    lines = Path(values(options, "--env-file")[0]).read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    if environment.get("SCRIPT") == "refuse":
        print('docker: Error response from daemon: exec: "serve": executable file not found in $PATH.', file=sys.stderr)
        print("\nRun 'docker run --help' for more information", file=sys.stderr)
        return 125
    facts = {"options": options, "environment": environment, "engine_environment": dict(os.environ)}
    (folder / f"{name}.json").write_text(json.dumps(facts))
    (published,) = values(options, "--publish")
    command = [sys.executable, "-S", "-P", __file__, "container", published, environment.get("SCRIPT", "serve")]
    container = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)
    (folder / f"{name}.pid").write_text(str(container.pid))
    signal.signal(signal.SIGTERM, lambda *_: container.terminate())
    code = container.wait()
    (folder / f"{name}.pid").unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def remove(name: str) -> int:
    pid = Path(os.environ["STUB_ENGINE"]) / f"{name}.pid"
    if not pid.exists():
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    os.kill(int(pid.read_text()), signal.SIGKILL)
    pid.unlink()
    return 0


def list_names(options: list[str]) -> int:
    assert options[:1] == ["--all"]
    assert values(options, "--format") == ["{{.Names}}"]
    (wanted,) = values(options, "--filter")
    for file in Path(os.environ["STUB_ENGINE"]).glob("*.pid"):
        facts = json.loads(file.with_suffix(".json").read_text())
        if wanted.removeprefix("label=") in values(facts["options"], "--label"):
            print(file.stem)
    return 0


def pull(uri: str) -> int:
    print("2.6.0-cpu-py312: Pulling from pytorch-inference", flush=True)
    if "slow" in uri:
        signal.pause()
    if "denied" in uri:
        print("Error response from daemon: pull access denied for denied, may require 'docker login'", file=sys.stderr)
        return 1
    print("Status: Downloaded newer image")
    return 0


def container(published: str, script: str) -> int:
    if script == "fail":
        print("Traceback (most recent call last):\nImportError: no weights", flush=True)
        return 3
    host, port, inside = published.split(":")
    assert inside == "8080"
    HTTPServer((host, int(port)), Handler).serve_forever()
    return 0


def main() -> int:
    command, *options = sys.argv[1:]
    if command == "info":
        return 0
    if command == "container":
        return container(*options)
    if command == "image":
        return int("absent" in options[-1])
    if command == "pull":
        return pull(options[-1])
    if command == "ps":
        return list_names(options)
    return run(options) if command == "run" else remove(options[-1])


if __name__ == "__main__":
    sys.exit(main())
