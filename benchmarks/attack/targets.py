"""The targets: a model server, or a platform with one endpoint."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.attack.attacks import HOST
from benchmarks.cpu_serving.server_process import ServerFailed
from benchmarks.cpu_serving.servers import MODEL_NAME, Launch

START_TIMEOUT_S = 120.0
_POLL_S = 0.1
_HEADRACE = (sys.executable, "-m", "headrace")


def launch_of(target: str, model: str, folder: Path, *, stalls: Path) -> Launch:
    """Return the command that starts a target with its files in `folder`; `stalls` gets the stacks of its stalls."""
    headrace = (sys.executable, "-m", "benchmarks.attack.watched", str(stalls))
    if target == "platform":
        return Launch(arguments=(*headrace, "up", "--open", "--host", HOST, "--data-dir", str(folder / "data")))
    served = ("--host", HOST, "--served-model-name", MODEL_NAME, "--log-level", "warning")
    return Launch(arguments=(*headrace, "serve", model, *served))


def prepare(target: str, model: str, url: str) -> None:
    """Create the endpoint of a platform."""
    if target == "server":
        return
    _wait_until_healthy(url)
    subprocess.run([*_HEADRACE, "deploy", model, "--name", MODEL_NAME, "--url", url], check=True, stdout=sys.stderr)


def clear(target: str, url: str) -> None:
    """Delete the endpoint of a platform: its workers would outlive it."""
    if target == "platform":
        subprocess.run([*_HEADRACE, "rm", MODEL_NAME, "--yes", "--url", url], check=False, stdout=sys.stderr)


def _wait_until_healthy(url: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=START_TIMEOUT_S).close()
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
        else:
            return
    raise ServerFailed(f"{url}/health did not answer 200 within {START_TIMEOUT_S:.0f} s.")
