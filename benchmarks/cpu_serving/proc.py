"""CPU time and memory of a session's processes, from /proc: all that a server or the load tool started."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that the processes of a session hold together."""

    rss_bytes: int
    """Resident; a page that two processes share counts twice."""
    pss_bytes: int
    """Proportional: a shared page is divided among its processes."""
    peak_rss_bytes: int
    """Sum of each process's largest resident size so far."""


def session_pids(session: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a session, which is named by its leader."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        fields = _stat_fields(folder)
        if fields and int(fields[3]) == session:
            found.append(int(folder.name))
    return sorted(found)


def session_cpu_s(session: int, *, proc: Path = Path("/proc")) -> float:
    """Return the CPU time of a session's live processes, user and system, seconds."""
    ticks = 0
    for pid in session_pids(session, proc=proc):
        fields = _stat_fields(proc / str(pid))
        if fields:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_A_SECOND


def session_memory(session: int, *, proc: Path = Path("/proc")) -> Memory:
    """Return the memory of a session's processes."""
    totals = {"Rss": 0, "Pss": 0, "VmHWM": 0}
    for pid in session_pids(session, proc=proc):
        folder = proc / str(pid)
        for file in ("smaps_rollup", "status"):
            for name, kib in _kib_lines(folder / file).items():
                if name in totals:
                    totals[name] += kib * _KIB
    return Memory(rss_bytes=totals["Rss"], pss_bytes=totals["Pss"], peak_rss_bytes=totals["VmHWM"])


def _stat_fields(folder: Path) -> list[str]:
    """Return the fields of `stat` behind the program's name; nothing for a process that has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _kib_lines(file: Path) -> dict[str, int]:
    """Return the lines `Name:  123 kB` of a file."""
    try:
        lines = file.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    parts = (line.split() for line in lines)
    return {words[0].rstrip(":"): int(words[1]) for words in parts if len(words) == 3 and words[2] == "kB"}
