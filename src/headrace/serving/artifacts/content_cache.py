"""
A cache of fetched artifacts on this disk, shared by all worker processes.

An entry is a folder named by a hash of its source and version. It is filled under another name and renamed when it is
complete, so that a killed process leaves no partial entry. Its size is recorded: an entry that has lost files (a power
cut, a user) is filled again. Locks are the kernel's (`flock`) and end with their process: filling or removing an entry
needs an exclusive lock, using it a shared one.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.serving.artifacts.fetch_bounds import Deadline, DiskFull, FetchFailed, translate_os_errors

_LOCK_POLL_S: Final = 0.05
_LOCK: Final = ".lock"
_FILLING: Final = ".filling"
_SIZE: Final = ".size"
_MAX_RECORD: Final = 100


def content_key(*facts: object) -> str:
    """Return the name of an entry: a hash of the facts that identify its content."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:40]


class ContentCache:
    """A folder of cached entries, shared by processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._used: list[int] = []

    def entry(self, key: str, fill: Callable[[Path], None], deadline: Deadline) -> Path:
        """
        Return the folder of an entry, which is not removed before this process ends or closes the cache.

        Args:
            key: see `content_key`.
            fill: writes the content into an empty folder; called if there is no entry, by one process at a time.
            deadline: limits the wait for another process that is filling the entry.

        Raises:
            FetchFailed: the entry could not be filled; the partial content has been removed.
        """
        with translate_os_errors(f"The cache {self.folder}"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            lock, is_exclusive = self._lock(key, deadline)
            try:
                if is_exclusive and not self._is_complete(key):
                    self._fill(key, fill)
                os.utime(lock)
                fcntl.flock(lock, fcntl.LOCK_SH)
            except BaseException:
                os.close(lock)
                raise
            # NOTE: `flock` releases the exclusive lock before it takes the shared one: another process may have cleared
            # the entry in between.
            if (self.folder / key).is_dir():
                self._used.append(lock)
                return self.folder / key
            os.close(lock)

    def keep_over_exec(self) -> None:
        """Keep the entries locked for the program that replaces this process."""
        for lock in self._used:
            os.set_inheritable(lock, True)

    def final_folder(self, partial: Path) -> Path:
        """Return the folder of an entry that is being filled, as it will be named when it is complete."""
        return partial.with_name(partial.name.removesuffix(_FILLING))

    def clear_unused(self, *, unused_for_s: float = 0.0) -> None:
        """Remove the entries that no process uses or has taken for `unused_for_s`, and remains of killed processes."""
        for path in self.folder.glob(f"*{_LOCK}"):
            key = path.name.removesuffix(_LOCK)
            with _try_lock(path) as is_locked:
                if is_locked and time.time() - path.stat().st_mtime >= unused_for_s:
                    shutil.rmtree(self.folder / key, ignore_errors=True)
                    shutil.rmtree(self.folder / (key + _FILLING), ignore_errors=True)

    def close(self) -> None:
        while self._used:
            os.close(self._used.pop())

    def _lock(self, key: str, deadline: Deadline) -> tuple[int, bool]:
        """Lock a key; returns the lock and whether it is exclusive. It is shared if the entry exists and is in use."""
        with translate_os_errors(f"The cache {self.folder}"):
            lock = os.open(self.folder / (key + _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if self._try_lock_shared(lock, key):
                        return lock, False
                    deadline.check()
                    time.sleep(_LOCK_POLL_S)
                else:
                    return lock, True
        except BaseException:
            os.close(lock)
            raise

    def _try_lock_shared(self, lock: int, key: str) -> bool:
        """Take a shared lock if the entry exists and no process fills or removes it; returns whether it was taken."""
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (self.folder / key).is_dir():
            return True
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    def _is_complete(self, key: str) -> bool:
        try:
            record = os.open(self.folder / key / _SIZE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(record, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 -- a descriptor
                return file.read(_MAX_RECORD) == _size_of(self.folder / key)
        except OSError:
            return False

    def _fill(self, key: str, fill: Callable[[Path], None]) -> None:
        partial = self.folder / (key + _FILLING)
        try:
            try:
                self._fill_folder(partial, fill)
            except DiskFull:
                self.clear_unused()
                self._fill_folder(partial, fill)
            with translate_os_errors(f"The cache {self.folder}"):
                size = _size_of(partial)
                # Code of a model may have filled the folder, and left a link here that leads out of it.
                (partial / _SIZE).unlink(missing_ok=True)
                with (partial / _SIZE).open("x", encoding="utf-8") as file:
                    file.write(size)
                shutil.rmtree(self.folder / key, ignore_errors=True)
                partial.rename(self.folder / key)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _fill_folder(self, partial: Path, fill: Callable[[Path], None]) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        with translate_os_errors(f"The cache {self.folder}"):
            partial.mkdir(mode=0o700)
        fill(partial)


def _size_of(folder: Path) -> str:
    """Return the number and total size of the files, without links, compiled code and the recorded size itself."""
    sizes = [
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.suffix != ".pyc" and path != folder / _SIZE
    ]
    return f"{len(sizes)} {sum(sizes)}"


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock during the block, if no other process has a lock; yields whether it does."""
    try:
        lock = os.open(path, os.O_RDWR)
    except OSError as error:
        raise FetchFailed(f"The lock {path} of the cache cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
