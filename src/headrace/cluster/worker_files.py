"""
The folder of a worker: what the launcher tells it, what it tells the launcher, and its log.

Whole files are replaced by renaming, so that a reader never sees half of one, whoever is killed when.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headrace.cluster.launcher import WorkerPhase, WorkerSpec
from headrace.cluster.processes import ProcessId

LOOPBACK: Final = "127.0.0.1"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker process is told."""

    spec: WorkerSpec
    port: int
    """To listen on."""
    cache_folder: str
    """Of fetched artifacts, shared by workers."""
    log_position: int
    """Where its own lines begin in the log of its name."""
    host: str = LOOPBACK
    """Address to listen on."""
    token: str = field(default="", repr=False)
    """Bearer token that requests must bring; empty: none."""
    parent: ProcessId | None = None
    """The process that started it, if its end is to be the worker's, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker process tells."""

    phase: WorkerPhase
    """FETCHING, STARTING (also later: `/ping` says when it is ready) or EXITED."""
    exit_code: int | None = None
    ended_in: WorkerPhase | None = None
    """The phase before EXITED."""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """Paths in the folder of one worker."""

    folder: Path

    @property
    def assignment(self) -> Path:
        """An `Assignment`; it holds secrets."""
        return self.folder / "worker.json"

    @property
    def handle(self) -> Path:
        """The `Handle` of its newest process."""
        return self.folder / "handle.json"

    @property
    def report(self) -> Path:
        """A `Report`."""
        return self.folder / "report.json"

    @property
    def ready(self) -> Path:
        """There since `/ping` answered 200 for the first time."""
        return self.folder / "ready"

    @property
    def stopping(self) -> Path:
        """There since it was asked to stop; holds the time of SIGKILL, seconds since 1970."""
        return self.folder / "stopping"

    @property
    def log(self) -> Path:
        """Its stdout and stderr."""
        return self.folder / "log.txt"

    @property
    def log_base(self) -> Path:
        """Bytes that were cut from the beginning of the log."""
        return self.folder / "log.base"

    @property
    def scratch(self) -> Path:
        """What it makes for itself."""
        return self.folder / "scratch"


def worker_files(root: Path, name: str) -> WorkerFiles:
    """
    Paths of the worker `name` below the folder of all workers.

    Raises:
        ValueError: the name could lead elsewhere.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a worker; wanted: letters, digits, '.', '_' and '-', at most 200.")
    return WorkerFiles(root / name)


def write_value(path: Path, value: object) -> None:
    """Replace a file by a value, readable by its owner only."""
    write_whole(path, msgspec.json.encode(value))


def read_value(path: Path, kind: type[_Value]) -> _Value | None:
    """Read a value; None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- opened with its permissions
        file.write(content)
    partial.replace(path)
