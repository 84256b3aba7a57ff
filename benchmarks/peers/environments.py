"""Create the peers' virtual environments with pip, each in its own folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.manifest import InstalledPeer
from benchmarks.peers.peers import Peer

_LOG_TAIL_LINES = 20


class StepFailed(Exception):
    """A command failed; the message has its name and the end of its output."""


def run_logged(command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """
    Run a command, its output appended to a file.

    Raises:
        StepFailed: It exited with an error.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    if result.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        raise StepFailed(f"{Path(command[0]).name} failed ({result.returncode}), see {log}:\n{tail}")


def is_current(installed: InstalledPeer, peer: Peer) -> bool:
    """Return whether this peer is installed with the current requirements."""
    return installed.requirements == peer.requirements and Path(installed.python).is_file()


def install(peer: Peer, root: Path) -> InstalledPeer:
    """
    Recreate the environment of one peer.

    Raises:
        StepFailed: pip failed, or the peer does not start.
    """
    folder = root / peer.name
    log = root / "logs" / f"{peer.name}.log"
    log.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    run_logged([sys.executable, "-m", "venv", str(folder)], log)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run_logged([*pip, "install", "--upgrade", "pip"], log)
    wheels_only = ["--only-binary", ":all:"]
    for name in peer.from_source:
        wheels_only += ["--no-binary", name]
    environment = {"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1), **peer.build_environment}
    run_logged([*pip, "install", *wheels_only, *peer.requirements], log, environment=environment)
    if peer.unwanted:
        run_logged([*pip, "uninstall", "--yes", *peer.unwanted], log)
    return describe(peer, python, log)


def describe(peer: Peer, python: str, log: Path) -> InstalledPeer:
    """
    Check that an environment works, and return its packages.

    Raises:
        StepFailed: The environment does not work.
    """
    run_logged([python, "-c", peer.check], log)
    listing = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = {row["name"]: row["version"] for row in json.loads(listing.stdout)}
    tools = None
    if peer.tools_package is not None:
        where = f"import {peer.tools_package} as package; print(package.__path__[0])"
        found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
        tools = str(Path(found.stdout.strip()) / "bin")
    return InstalledPeer(python=python, tools=tools, requirements=peer.requirements, versions=versions)
