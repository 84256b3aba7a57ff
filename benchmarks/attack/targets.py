"""The targets: a model server or a platform, of a language model or of a model's own code."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.servers import HOST, MODEL_NAME, Launch, ServerProcess, pings

START_TIMEOUT_S = 120.0
NAMES = ("server", "platform", "keyed", "code", "code-platform")
_HEADRACE = (sys.executable, "-m", "headrace")
_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi27.0.0-cu130"
_WORKERS = 12
"""Processes of the code, each of which serves one stream at a time."""
_CODE = """
import time
from djl_python import Output

def pieces():
    for number in range(400):
        time.sleep(0.02)
        yield f'data: {{"number": {number}}}\\n\\n'

def handle(inputs):
    if inputs.is_empty():
        return None
    asked = inputs.get_as_json()
    if asked.get("stream"):
        return Output().add_stream_content(pieces(), None)
    return Output().add(b"x" * asked.get("num_bytes", 1))
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server to attack, and the way in which its other clients reach it."""

    name: str
    folder: Path
    """For its files."""
    model: str
    path: str = "/v1/completions"
    """The route of the other clients."""
    headers: str = ""
    """Header lines of the other clients, each with its end."""

    @property
    def is_platform(self) -> bool:
        """True for a platform with one endpoint."""
        return self.name in ("platform", "keyed", "code-platform")

    @property
    def data(self) -> Path:
        return self.folder / "data"


def make_target(name: str, model: str, folder: Path) -> Target:
    if name.startswith("code"):
        code = folder / "code"
        code.mkdir()
        (code / "model.py").write_text(_CODE)
        (code / "serving.properties").write_text(f"engine=Python\nminWorkers={_WORKERS}\nmaxWorkers={_WORKERS}\n")
        path = f"/endpoints/{MODEL_NAME}/invocations" if name == "code-platform" else "/invocations"
        return Target(name=name, folder=folder, model=str(code), path=path)
    if name == "keyed":
        command = [*_HEADRACE, "keys", "create", "--data-dir", str(folder / "data")]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        secret = printed.split("AWS_SECRET_ACCESS_KEY=")[1].split()[0]
        return Target(name=name, folder=folder, model=model, headers=f"Authorization: Bearer {secret}\r\n")
    return Target(name=name, folder=folder, model=model)


def launch_of(target: Target, *, stalls: Path) -> Launch:
    """Return the command that starts a target; `stalls` gets the stacks of its stalls."""
    headrace = (sys.executable, "-m", "benchmarks.attack.watched", str(stalls))
    if target.is_platform:
        access = ("--require-keys",) if target.name == "keyed" else _open_flags()
        return Launch(arguments=(*headrace, "up", *access, "--host", HOST, "--data-dir", str(target.data)))
    served = ("--host", HOST, "--log-level", "warning")
    own = ("--handler", "auto") if target.name == "code" else ("--served-model-name", MODEL_NAME)
    return Launch(arguments=(*headrace, "serve", target.model, *own, *served))


def prepare(target: Target, server: ServerProcess) -> None:
    if not target.is_platform:
        return
    server.wait_until(lambda port: pings(port, "/health"), timeout_s=START_TIMEOUT_S)
    image = ("--image", _IMAGE) if target.name == "code-platform" else ()
    _run(target, "deploy", target.model, "--name", MODEL_NAME, *image, "--url", server.url)


def clear(target: Target, server: ServerProcess) -> None:
    """Delete the endpoint of a platform: its workers would outlive it."""
    if target.is_platform:
        _run(target, "rm", MODEL_NAME, "--yes", "--url", server.url, check=False)


def _run(target: Target, *arguments: str, check: bool = True) -> None:
    variables: tuple[str, ...] = ()
    if target.headers:
        secret = target.headers.split()[-1]
        listed = subprocess.run(
            [*_HEADRACE, "keys", "ls", "--json", "--data-dir", str(target.data)], check=True, capture_output=True
        )
        key_id = listed.stdout.decode().split('"key": "')[1].split('"')[0]
        variables = ("env", f"AWS_ACCESS_KEY_ID={key_id}", f"AWS_SECRET_ACCESS_KEY={secret}")
    subprocess.run([*variables, *_HEADRACE, *arguments], check=check, stdout=sys.stderr)


def _open_flags() -> tuple[str, ...]:
    """Return the flag of a platform without keys; older versions are open on a loopback address and have none."""
    told = subprocess.run([*_HEADRACE, "up", "--help"], check=True, capture_output=True, text=True).stdout
    return ("--open",) if "--open" in told else ()
