"""The command that installs a missing package."""

import sys
from pathlib import Path
from typing import Final

_TOOL_FILES: Final = ("uv-receipt.toml", "pipx_metadata.json")
"""Files that uv and pipx leave in the environment of a tool, which no shell activates."""


def pip_install(*requirements: str, prefix: str = sys.prefix, executable: str = sys.executable) -> str:
    """Return a command that installs requirements into the environment of this process."""
    is_tool = any((Path(prefix) / name).exists() for name in _TOOL_FILES)
    quoted = (f"'{text}'" if "[" in text else text for text in requirements)
    return " ".join([f"{executable} -m pip" if is_tool else "pip", "install", *quoted])
