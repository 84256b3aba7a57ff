"""Read what processes and files take: memory, descriptors, threads, CPU time and bytes on disk."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1024
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Memory, descriptors, threads and CPU time of one process, or of several together."""

    rss_bytes: int = 0
    pss_bytes: int = 0
    anonymous_bytes: int = 0
    """Resident memory that is no page of a file: heaps, stacks, and maps of none."""
    descriptors: int = 0
    threads: int = 0
    cpu_s: float = 0.0

    def __add__(self, other: "ProcessUse") -> "ProcessUse":
        """Return the use of both together."""
        return ProcessUse(
            rss_bytes=self.rss_bytes + other.rss_bytes,
            pss_bytes=self.pss_bytes + other.pss_bytes,
            anonymous_bytes=self.anonymous_bytes + other.anonymous_bytes,
            descriptors=self.descriptors + other.descriptors,
            threads=self.threads + other.threads,
            cpu_s=self.cpu_s + other.cpu_s,
        )


def command_lines(mark: str, *, proc: Path = _PROC) -> dict[int, str]:
    """Return the command line of each process that has `mark` in its command line or in its environment."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                command, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
            except OSError:
                continue  # it has ended, or belongs to another user
            if mark.encode() in command + environment:
                found[int(folder.name)] = command.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def read_process(pid: int, *, proc: Path = _PROC) -> ProcessUse | None:
    """Return what a process takes, or None if it has ended."""
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        memory = _kib_lines((folder / "smaps_rollup").read_text())
        return ProcessUse(
            rss_bytes=memory.get("Rss", 0) * _KIB,
            pss_bytes=memory.get("Pss", 0) * _KIB,
            anonymous_bytes=memory.get("Anonymous", 0) * _KIB,
            descriptors=sum(1 for _ in (folder / "fd").iterdir()),
            threads=int(fields[17]),
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        )
    except (OSError, IndexError):
        return None


def read_processes(pids: Iterable[int]) -> ProcessUse:
    """Return what processes take together; those that have ended take nothing."""
    uses = (read_process(pid) for pid in pids)
    return sum((use for use in uses if use is not None), ProcessUse())


def _kib_lines(content: str) -> Mapping[str, int]:
    """Return the lines `Name:  123 kB`."""
    parts = (line.split() for line in content.splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in parts if len(words) == 3 and words[2] == "kB"}


def size_bytes(*paths: Path) -> int:
    """Return the bytes that files, and folders with all in them, take on disk; a sparse file counts what it fills."""
    return sum(_size_bytes(path) for path in paths)


def _size_bytes(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(_size_bytes(Path(entry.path)) for entry in os.scandir(path) if not entry.is_symlink())
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0  # it was deleted while the folder was read
