"""
Files that desktops leave in folders and archives: nothing is searched for a model or for code by their names.

Source: Apple `AppleSingle/AppleDouble Formats`: `._model.gguf` has the Finder's attributes of `model.gguf`. `tar` and
`zip` of macOS pack such twins, and copies to other file systems write them.
"""

from collections.abc import Iterable
from pathlib import Path

_TWIN = "._"
_NAMES = frozenset({".ds_store", "__macosx", "thumbs.db", "desktop.ini"})
_PYTHON_CACHE = "__pycache__"


def is_stray(path: str) -> bool:
    """Return whether a desktop made a file, by the parts of its POSIX path; it is left out when files are copied."""
    return any(part.startswith(_TWIN) or part.lower() in _NAMES for part in path.split("/"))


def is_hidden(name: str) -> bool:
    """Return whether a file name is no candidate for a model or code: it begins with a dot or is a stray one."""
    return name.startswith(".") or name == _PYTHON_CACHE or is_stray(name)


def listed(folder: Path, patterns: Iterable[str] = ("*",)) -> list[Path]:
    """Return the paths in a folder that match a pattern, in order of patterns and names; as `glob.glob`, not hidden."""
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if not is_hidden(path.name)]
