"""CPU time of a server on this machine, identified by its port; Linux only. Source: proc(5)."""

import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"


def server_cpu_s(port: int, proc: Path = Path("/proc")) -> float | None:
    """
    Return the user and system time in seconds of the process that listens on `port` and of its descendants.

    None if there is no such process, or it belongs to another user.
    """
    inodes = set(_listening_inodes(port, proc))
    processes = dict(_processes(proc))
    roots = {pid for pid in processes if inodes & _socket_inodes(proc / str(pid) / "fd")}
    if not roots:
        return None
    family = _with_descendants(roots, {pid: parent for pid, (parent, _) in processes.items()})
    return sum(processes[pid][1] for pid in family) / os.sysconf("SC_CLK_TCK")


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(folder: Path) -> set[str]:
    inodes = set()
    try:
        for link in folder.iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass  # another user's process, or one that has just ended
    return inodes


def _processes(proc: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (pid, (parent, clock ticks)); the process name, which may contain spaces, ends at the last bracket."""
    for folder in proc.iterdir():
        fields = _read(folder / "stat").rpartition(")")[2].split() if folder.name.isdigit() else []
        if fields:
            yield int(folder.name), (int(fields[1]), sum(map(int, fields[11:15])))


def _with_descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    family = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
