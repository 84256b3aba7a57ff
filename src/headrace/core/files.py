"""
Files below a folder of this machine, with the calls that let the machines of a platform share them.

There are three sorts: small files, which are replaced as a whole; contents, which never change once they are kept; and
logs of progress, which grow. `Files` has them on this machine only. A subclass keeps them where other machines find
them, and the folder is then a cache. All methods block.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.core.durable import write_durably


class Files:
    """Files of this machine, where they are complete without the calls for other machines."""

    is_shared = False
    """True: another machine may go on with what this one has begun, from the logs of progress."""

    def __init__(self, root: Path) -> None:
        """Use a folder, which is created with its first file."""
        self.root = root

    def fenced(self, term: int) -> "Files":  # noqa: ARG002 -- of a subclass
        """Return these files for a leader, whose changes fail after its term where machines share them."""
        return self

    def folder(self, folder: Path) -> Path:
        """Create a folder below the root, private to its owner, and return it."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    # Small files.

    def read(self, path: Path) -> bytes | None:
        """Return a small file; None if there is none."""
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_many(self, paths: Collection[Path]) -> Mapping[Path, bytes]:
        """Return those of some small files that exist."""
        return {path: content for path in paths if (content := self.read(path)) is not None}

    def write(self, path: Path, content: bytes) -> None:
        """Store a small file durably."""
        self.folder(path.parent)
        write_durably(path, content)

    def remove(self, path: Path) -> None:
        """Remove a small file, if it exists."""
        path.unlink(missing_ok=True)

    def names(self, folder: Path) -> list[str]:
        """Return the names of the small files in a folder, and of the folders that have some; others may be among."""
        try:
            return [path.name for path in folder.iterdir() if not path.name.startswith(".")]  # they are being written
        except (FileNotFoundError, NotADirectoryError):
            return []

    # Contents.

    def keep(self, path: Path) -> None:
        """Keep a file, which is durable on this machine, as a content."""

    def fetch(self, path: Path) -> Path:
        """Bring a content to its path, and return it; raise `FileNotFoundError` if there is none."""
        if not path.exists():
            raise FileNotFoundError(path)
        return path

    def has(self, path: Path) -> bool:
        """Return whether there is a content."""
        return path.exists()

    def discard(self, path: Path) -> None:
        """Remove a content, if it exists."""
        path.unlink(missing_ok=True)

    def contents(self, folder: Path) -> Mapping[str, float]:
        """Return when each content in a folder was stored, by its name; others may be among them."""
        found = {}
        for name in self.names(folder):
            with suppress(FileNotFoundError):
                found[name] = (folder / name).stat().st_mtime
        return found

    def num_bytes(self) -> int:
        """Return the bytes of all contents; a content with several names counts once."""
        sizes = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                with suppress(OSError):
                    found = (Path(folder) / name).stat()
                    sizes[found.st_ino] = found.st_size
        return sum(sizes.values())

    # Logs of progress.

    def append(self, path: Path, entry: bytes) -> None:
        """Add an entry to a log, for another machine that goes on."""

    def entries(self, path: Path, *, first: int = 0) -> Iterator[bytes]:  # noqa: ARG002 -- of a subclass
        """Yield the entries of a log from one on; none on one machine, whose own files have the progress."""
        yield from ()

    def end_log(self, path: Path) -> None:
        """Remove a log."""

    def remove_tree(self, folder: Path) -> None:
        """Remove the small files and logs below a folder, and all that it has on this machine."""
        shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove copies that have not been used for long."""
