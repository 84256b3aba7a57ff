"""
A container engine for tests: `info`, `run` and `rm` of Docker's command line, with a process in place of a container.

Like Docker's, a container outlives a killed `run`. The folder `STUB_ENGINE` (a variable of the engine) has files for
each container. The variable `SCRIPT` of a container's environment says what it does: `serve` or `fail`.
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
    return run(options) if command == "run" else remove(options[-1])


if __name__ == "__main__":
    sys.exit(main())
