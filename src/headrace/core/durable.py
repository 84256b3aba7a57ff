"""Files that survive a kill -9 and a loss of power: written aside, synced, and renamed. The functions block."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file at once by new content, which is on the disk when this returns. Raises `OSError`."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let the names of the files in a folder survive. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
