"""An environment per client: packages of PyPI by uv, those of npm by npm."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.clients.clients import Client

INSTALL_TIMEOUT_S = 900
_PACKAGE = re.compile(r"^@?[^@\[<=]+")
"""The name of a package without its version and extras; names of npm may begin with an @."""
_UV = "uv==0.13.9"
_AS_UV = {"PIP_CERT": "SSL_CERT_FILE", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_INDEX_URL": "UV_INDEX_URL"}
_SCRIPTS = Path(__file__).parent / "first_examples"
_ROOT = Path(__file__).resolve().parents[2]


class NotInstalled(Exception):
    """A client could not be installed; the message is the end of the installer's output."""


def environments_folder() -> Path:
    """Return the folder in which environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace" / "client-examples"


def command_of(client: Client, root: Path) -> list[str]:
    """
    Return the command that runs a client's script, in its environment, which is created if it is missing.

    Raises:
        NotInstalled: the packages could not be installed.
    """
    if client.program:
        return [sys.executable, str(_SCRIPTS / client.script)]
    if client.shared:
        return [_shared_python(client.shared[0]), str(_SCRIPTS / client.script)]
    folder = root / client.script.partition(".")[0]
    complete = folder / "complete"
    wanted = " ".join(client.packages)
    if not complete.exists() or complete.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _install_npm(client, folder) if client.is_javascript else _install_python(client, folder, root)
        complete.write_text(wanted, encoding="utf-8")
    if client.is_javascript:
        for script in ("common.mjs", "agents.mjs", client.script):  # Node.js looks for packages beside the script
            shutil.copy(_SCRIPTS / script, folder)
        return ["node", str(folder / client.script)]
    return [str(folder / "bin" / "python"), str(_SCRIPTS / client.script)]


def version_of(client: Client, root: Path) -> str:
    """
    Return the version of the client's first package in its environment, or of its program.

    Raises:
        NotInstalled: the system has no such program.
    """
    if client.debian:
        found = re.match(r"[\d.]+", _run(["dpkg-query", "--show", "--showformat=${Version}", client.debian]))
        return found[0] if found else ""
    if client.program:
        return _run([client.program, "--version"]).partition("/")[2].split()[0]
    if client.shared:
        return _python_version(Path(_shared_python(client.shared[0])), client.shared[1])
    folder = root / client.script.partition(".")[0]
    package = _PACKAGE.findall(client.packages[0])[0]
    if client.is_javascript:
        described = json.loads((folder / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
        return str(described["version"])
    return _python_version(folder / "bin" / "python", package)


def _python_version(python: Path, package: str) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    return _run([str(python), "-c", program]).strip()


def _shared_python(name: str) -> str:
    """Return the Python of an environment that tests share, which is created if it is missing."""
    return _run([str(_ROOT / "scripts" / "environment"), name]).strip()


def _install_python(client: Client, folder: Path, root: Path) -> None:
    uv = str(_uv(root))
    variables = {**os.environ, **{new: os.environ[old] for old, new in _AS_UV.items() if old in os.environ}}
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], variables)
    python = str(folder / "bin" / "python")
    _run([uv, "pip", "install", "--quiet", "--python", python, *client.packages], variables)


def _install_npm(client: Client, folder: Path) -> None:
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *client.packages])


def _uv(root: Path) -> Path:
    """Return uv, which installs an environment in seconds; it is installed by pip, once."""
    folder = root / "uv"
    program = folder / "bin" / "uv"
    if not program.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", _UV])
    return program


def _run(command: list[str], variables: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)[:300]) from error
    if done.returncode != 0:
        raise NotInstalled((done.stderr or done.stdout).strip()[-300:])
    return done.stdout
