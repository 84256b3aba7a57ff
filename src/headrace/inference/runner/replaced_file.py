"""
Replace a file atomically, and remove what killed writers left.

A writer holds a lock on its temporary file, so that another process can tell a file that is being written from one
whose writer is gone.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced_file(path: Path) -> Iterator[tuple[int, Path]]:
    """
    Yield a new file (its descriptor and its temporary name), which takes the place of `path` at the end of the block.

    First remove the temporary files of writers of any file with this suffix that were killed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"*{path.suffix}.*"):
        _remove_if_abandoned(leftover)
    handle, temporary = _locked_temporary(path)
    try:
        yield handle, temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _locked_temporary(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if Path(name).exists():  # else another process removed it before it was locked
                return handle, Path(name)
        except OSError:
            os.close(handle)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(handle)


def _remove_if_abandoned(temporary: Path) -> None:
    with suppress(OSError), temporary.open("rb") as file:  # a file that is locked, or not ours, stays
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()
