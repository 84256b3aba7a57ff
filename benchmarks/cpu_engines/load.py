"""
CPU time that other processes took during a measurement: a disturbed measurement is repeated.

Two threads that wait for each other lose far more than their share when a third process runs, so a ratio between
engines that were disturbed unequally is meaningless.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STEAL_FIELD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds used up to a moment."""

    at_s: float
    all_s: float
    """CPU time of everything on this machine, including time stolen by its host."""
    own_s: float
    """CPU time of the measured process group, and of this process."""


def read_usage(group: int) -> Usage:
    """Return the CPU time used so far; `group` is the measured process group."""
    return Usage(at_s=time.perf_counter(), all_s=_all_s(), own_s=_group_s(group) + time.process_time())


def foreign_cores(before: Usage, after: Usage) -> float:
    """Return how many cores other processes used on average between two moments."""
    used_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, used_s / max(after.at_s - before.at_s, 1e-9))


def _all_s() -> float:
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[: _STEAL_FIELD + 1]
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _group_s(group: int) -> float:
    """Return the CPU time of all processes of a group, including their ended children."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        fields = text.rsplit(")", 1)[1].split()
        if int(fields[2]) == group:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_S
