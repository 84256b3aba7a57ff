"""
Fetched artifacts on this disk, each once, whoever wants them and however many at a time.

An entry is a folder named by a hash of what was fetched and in which version. It is filled beside its place and renamed
when it is whole, so that a process that is killed leaves nothing that could be mistaken for an entry. Its size is
written down: one that lost something (a power cut, somebody's hand) is filled anew. Locks are the kernel's (`flock`),
they end with their process: an exclusive one fills or removes an entry, a shared one uses it.
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

from headrace.cluster.fetch_bounds import Deadline, DiskFull, FetchFailed, translate_os_errors

_LOCK_POLL_S: Final = 0.05
_LOCK: Final = ".lock"
_FILLING: Final = ".filling"
_SIZE: Final = ".size"


def content_key(*facts: object) -> str:
    """The name of an entry: the same facts give the same name."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:40]


class ContentCache:
    """A folder of entries, shared by processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._used: list[int] = []

    def entry(self, key: str, fill: Callable[[Path], None], deadline: Deadline) -> Path:
        """
        The folder of an entry. It stays until this process ends (or closes the cache).

        Args:
            key: see `content_key`.
            fill: puts the content into an empty folder; called if there is no entry, by one process at a time.
            deadline: of the fetch; another process may be filling.

        Raises:
            FetchFailed: it could not be filled; nothing is left of it.
        """
        with translate_os_errors(f"The cache {self.folder}"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            lock, is_ours = self._lock(key, deadline)
            try:
                if is_ours and not self._is_whole(key):
                    self._fill(key, fill)
                os.utime(lock)
                fcntl.flock(lock, fcntl.LOCK_SH)
            except BaseException:
                os.close(lock)
                raise
            # NOTE: the exclusive lock is let go before the shared one is taken; somebody may have cleared between.
            if (self.folder / key).is_dir():
                self._used.append(lock)
                return self.folder / key
            os.close(lock)

    def keep_over_exec(self) -> None:
        """Let the program that replaces this process hold the entries, too."""
        for lock in self._used:
            os.set_inheritable(lock, True)

    def clear_unused(self) -> None:
        """Remove all entries that no process uses, and what killed processes left."""
        for path in self.folder.glob(f"*{_LOCK}"):
            key = path.name.removesuffix(_LOCK)
            with _tried(path) as is_ours:
                if is_ours:
                    shutil.rmtree(self.folder / key, ignore_errors=True)
                    shutil.rmtree(self.folder / (key + _FILLING), ignore_errors=True)

    def close(self) -> None:
        """Use no entry any more."""
        while self._used:
            os.close(self._used.pop())

    def _lock(self, key: str, deadline: Deadline) -> tuple[int, bool]:
        """The lock of a key; whether it is an exclusive one, or the entry is there and others use it, too."""
        with translate_os_errors(f"The cache {self.folder}"):
            lock = os.open(self.folder / (key + _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if self._is_shared_by_users(lock, key):
                        return lock, False
                    deadline.check()
                    time.sleep(_LOCK_POLL_S)
                else:
                    return lock, True
        except BaseException:
            os.close(lock)
            raise

    def _is_shared_by_users(self, lock: int, key: str) -> bool:
        """Whether the entry is there and only used: then a shared lock is enough."""
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (self.folder / key).is_dir():
            return True
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    def _is_whole(self, key: str) -> bool:
        try:
            return (self.folder / key / _SIZE).read_text() == _size_of(self.folder / key)
        except OSError:
            return False

    def _fill(self, key: str, fill: Callable[[Path], None]) -> None:
        partial = self.folder / (key + _FILLING)
        try:
            try:
                self._fill_once(partial, fill)
            except DiskFull:
                self.clear_unused()
                self._fill_once(partial, fill)
            with translate_os_errors(f"The cache {self.folder}"):
                (partial / _SIZE).write_text(_size_of(partial))
                shutil.rmtree(self.folder / key, ignore_errors=True)
                partial.rename(self.folder / key)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _fill_once(self, partial: Path, fill: Callable[[Path], None]) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        with translate_os_errors(f"The cache {self.folder}"):
            partial.mkdir(mode=0o700)
        fill(partial)


def _size_of(folder: Path) -> str:
    """Number of files, and their bytes in all; links and the note itself do not count."""
    sizes = [
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path != folder / _SIZE
    ]
    return f"{len(sizes)} {sum(sizes)}"


@contextmanager
def _tried(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock if nobody else holds one."""
    try:
        lock = os.open(path, os.O_RDWR)
    except OSError as error:
        raise FetchFailed(f"The cache's {path} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
