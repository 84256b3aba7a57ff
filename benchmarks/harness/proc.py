"""CPU time, memory and descriptors of processes by /proc, and the CPU time that all others take meanwhile."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1024
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Memory, descriptors, threads and CPU time of one process, or of several together."""

    rss_bytes: int = 0
    """Resident; a page that two processes share counts twice."""
    pss_bytes: int = 0
    """Proportional: a shared page is divided among its processes."""
    peak_rss_bytes: int = 0
    """The largest resident size so far; of several processes, the sum."""
    anonymous_bytes: int = 0
    """Resident memory that is no page of a file: heaps, stacks, and maps of none."""
    descriptors: int = 0
    threads: int = 0
    cpu_s: float = 0.0

    def __add__(self, other: "ProcessUse") -> "ProcessUse":
        sums = [own + others for own, others in zip(astuple(self), astuple(other), strict=True)]
        return ProcessUse(**dict(zip(self.__slots__, sums, strict=True)))

    @property
    def memory(self) -> dict[str, int]:
        """The sizes that result files keep."""
        return {name: getattr(self, name) for name in ("rss_bytes", "pss_bytes", "peak_rss_bytes")}


def read_process(pid: int, *, proc: Path = _PROC) -> ProcessUse | None:
    """Return what a process takes, or None if it has ended."""
    folder = proc / str(pid)
    try:
        fields = _stat_fields(folder)
        memory = _kib_lines((folder / "smaps_rollup").read_text() + (folder / "status").read_text())
        return ProcessUse(
            rss_bytes=memory.get("Rss", 0) * _KIB,
            pss_bytes=memory.get("Pss", 0) * _KIB,
            peak_rss_bytes=memory.get("VmHWM", 0) * _KIB,
            anonymous_bytes=memory.get("Anonymous", 0) * _KIB,
            descriptors=sum(1 for _ in (folder / "fd").iterdir()),
            threads=int(fields[17]),
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        )
    except (OSError, IndexError):
        return None


def read_processes(pids: Iterable[int], *, proc: Path = _PROC) -> ProcessUse:
    """Return what processes take together; those that have ended take nothing."""
    uses = (read_process(pid, proc=proc) for pid in pids)
    return sum((use for use in uses if use is not None), ProcessUse())


def cpu_s(pids: Iterable[int], *, proc: Path = _PROC) -> float:
    """Return the CPU time of live processes, user and system, seconds."""
    ticks = 0
    for pid in pids:
        if fields := _stat_fields(proc / str(pid)):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_A_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUse:
    """CPU time and switches of one thread so far."""

    cpu_s: float = 0.0
    wakeups: int = 0
    """Times that it waited and was woken."""
    preemptions: int = 0

    def __sub__(self, other: "TaskUse") -> "TaskUse":
        return TaskUse(
            cpu_s=self.cpu_s - other.cpu_s,
            wakeups=self.wakeups - other.wakeups,
            preemptions=self.preemptions - other.preemptions,
        )


def read_tasks(pid: int, *, proc: Path = _PROC) -> dict[int, TaskUse]:
    """Return what each thread of a process has used, by its number; the first one has that of the process."""
    tasks = {}
    for folder in (proc / str(pid) / "task").iterdir():
        with suppress(OSError):  # it has ended
            status = (folder / "status").read_text()
            switches = {kind: int(count) for kind, count in re.findall(r"(\w+)_ctxt_switches:\s+(\d+)", status)}
            tasks[int(folder.name)] = TaskUse(
                cpu_s=int((folder / "schedstat").read_text().split()[0]) / 1e9,
                wakeups=switches["voluntary"],
                preemptions=switches["nonvoluntary"],
            )
    return tasks


def session_pids(session: int, *, proc: Path = _PROC) -> list[int]:
    """Return the processes of a session, which is named by its leader."""
    folders = [folder for folder in proc.iterdir() if folder.name.isdigit()]
    return sorted(int(f.name) for f in folders if (fields := _stat_fields(f)) and int(fields[3]) == session)


def session_cpu_s(session: int, *, proc: Path = _PROC) -> float:
    """Return the CPU time of a session's live processes."""
    return cpu_s(session_pids(session, proc=proc), proc=proc)


def session_use(session: int, *, proc: Path = _PROC) -> ProcessUse:
    """Return what a session's processes take together."""
    return read_processes(session_pids(session, proc=proc), proc=proc)


def processes_with(*texts: str, in_environment: bool = False, proc: Path = _PROC) -> dict[int, str]:
    """
    Return the command lines of other running processes that contain all texts; zombies have no command line.

    With `in_environment` the texts may be in a process's environment, too.
    """
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it has ended, or belongs to another user
                command = _text(folder / "cmdline").strip()
                searched = command + _text(folder / "environ") if in_environment else command
                if all(text in searched for text in texts):
                    found[int(folder.name)] = command
    return found


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    found: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, listed.read_text().split()))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    fields = _stat_fields(_PROC / str(pid))
    return bool(fields) and fields[0] not in "ZX"


# ---- disturbances ----
# Two threads that wait for each other lose far more than their share when a third process runs, so a ratio between
# engines that were disturbed unequally is meaningless: a disturbed measurement is repeated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds used up to a moment."""

    at_s: float
    all_s: float
    """CPU time of everything on this machine, including time stolen by its host."""
    own_s: float
    """CPU time of the measured process group, and of this process."""


def read_usage(group: int) -> Usage:
    """Return the CPU time used so far; `group` is the measured process group, with its ended children."""
    times = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = times
    stats = [_stat_fields(folder) for folder in _PROC.iterdir() if folder.name.isdigit()]
    own = sum(sum(map(int, fields[11:15])) for fields in stats if fields and int(fields[2]) == group)
    return Usage(
        at_s=time.perf_counter(),
        all_s=(user + nice + system + irq + softirq + steal) / _TICKS_A_SECOND,
        own_s=own / _TICKS_A_SECOND + time.process_time(),
    )


def foreign_cores(before: Usage, after: Usage) -> float:
    """Return how many cores other processes used on average between two moments."""
    used_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, used_s / max(after.at_s - before.at_s, 1e-9))


def _stat_fields(folder: Path) -> list[str]:
    """Return the fields of `stat` behind the program's name; nothing for a process that has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _kib_lines(content: str) -> Mapping[str, int]:
    """Return the lines `Name:  123 kB`."""
    parts = (line.split() for line in content.splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in parts if len(words) == 3 and words[2] == "kB"}


def _text(file: Path) -> str:
    return file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
