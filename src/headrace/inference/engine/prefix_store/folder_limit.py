"""
The limit of a folder with prefix caches, which models and servers share: its least recently used files are removed.

Only files that Headrace wrote there are counted and removed. Two servers may remove files at the same time.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.inference.engine.prefix_store.block_file import TEMPORARY

_FOLDER: Final = re.compile(r"[0-9a-f]{32}")
_FILE: Final = re.compile(r"[0-9a-f]{32}\.(kv|state)(\.[0-9a-f]{16}\.tmp)?")
_KEPT_SHARE: Final = 0.9
"""Share of the limit that is left after a removal, so that the next one comes later."""
_ABANDONED_S: Final = 600.0
"""Age from which a temporary file is that of a server that was killed: one is written in less than a second."""


def remove_oldest(root: Path, max_bytes: int) -> int:
    """Remove the least recently used files if a folder exceeds its limit; return the bytes that are left."""
    files = sorted(_files(root))
    left = sum(size for _, size, _ in files)
    target = max_bytes * _KEPT_SHARE if left > max_bytes else left
    abandoned_s = time.time() - _ABANDONED_S
    for changed_s, size, path in files:
        if left > target or (path.endswith(TEMPORARY) and changed_s < abandoned_s):
            with suppress(OSError):
                Path(path).unlink()
                left -= size
    return left


def _files(root: Path) -> Iterator[tuple[float, int, str]]:
    """Yield time, size and path of each file of each model."""
    for folder in _entries(root):
        if _FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
            for file in _entries(folder.path):
                if _FILE.fullmatch(file.name):
                    with suppress(OSError):  # another server has just removed it
                        facts = file.stat(follow_symlinks=False)
                        yield facts.st_mtime, facts.st_size, file.path


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
