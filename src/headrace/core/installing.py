"""The command that installs a missing package, as this copy of Headrace was installed: it is not on PyPI."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_UV_RECEIPT: Final = "uv-receipt.toml"
"""What `uv tool install` leaves in the environment of a tool, which no shell activates."""
_PROJECT: Final = "headrace"
_OURS: Final = re.compile(rf"{_PROJECT}\[([\w,-]+)\]")
_EXTRA: Final = re.compile(r"""\s*;\s*(?:\((.+)\)\s+and\s+)?extra\s*==\s*["']([\w-]+)["']\s*$""")


def pip_install(*requirements: str, prefix: str = sys.prefix, executable: str = sys.executable) -> str:
    """
    Return a command that installs requirements into the environment of this process.

    For an extra of Headrace these are the clone or the wheel that it was installed from, with the extra; if that is
    gone, the packages of the extra.
    """
    resolved = [option for text in requirements for option in _options(text)]
    quoted = [text if re.fullmatch(r"[\w./=-]+", text) else f"'{text}'" for text in resolved]
    return " ".join([_pip(Path(prefix), executable), "install", *quoted])


def _pip(prefix: Path, executable: str) -> str:
    """Return the pip of an environment: the shell's, if it is the same, or its path."""
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx runpip {_PROJECT}"
    if (prefix / _UV_RECEIPT).exists():
        return f"{executable} -m pip"
    own = prefix / "bin" / "pip"
    on_path = shutil.which("pip")
    is_activated = on_path is not None and Path(on_path).parent == own.parent
    return str(own) if own.exists() and not is_activated else "pip"


def extra_options(extras: str, installed: "Distribution") -> list[str]:
    """
    Return pip's arguments for extras of an installed Headrace.

    Source: PEP 610, `direct_url.json`; it is missing after an installation from an index, which then has the name.
    """
    origin: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    if not origin:
        return [f"{_PROJECT}[{extras}]"]
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        return [f"{_PROJECT}[{extras}] @ {origin['url']}"]
    path = unquote(url.path)
    if not Path(path).exists():
        return _packages(set(extras.split(",")), installed)
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return [*(["-e"] if is_editable else []), f"{path}[{extras}]"]


def _options(requirement: str) -> list[str]:
    ours = _OURS.fullmatch(requirement)
    if ours is None:
        return [requirement]
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return extra_options(ours[1], distribution(_PROJECT))
    except PackageNotFoundError:  # it runs from its source, without an installation
        return [requirement]


def _packages(extras: set[str], installed: "Distribution") -> list[str]:
    found = []
    for requirement in installed.requires or ():
        marker = _EXTRA.search(requirement)
        if marker is not None and marker[2] in extras:
            found.append(requirement[: marker.start()] + (f"; {marker[1]}" if marker[1] else ""))
    return found
