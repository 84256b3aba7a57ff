"""NUMA nodes, where the memory of this process lies, and whether its threads may move."""

import os
import re
from collections import Counter
from pathlib import Path

from headrace import _native

BARRIERS = 200
REPEATS = 5
"""Readings, of which the best counts."""
PAUSE_S = 0.001
"""Longer than threads spin for the next step: they sleep and are woken."""


def describe_placement(*, sys_fs: Path = Path("/sys"), proc: Path = Path("/proc/self")) -> dict[str, object]:
    """Return the nodes and their CPUs, resident gigabytes by node, and the number of threads pinned to one CPU."""
    nodes = {
        folder.name.removeprefix("node"): (folder / "cpulist").read_text().strip()
        for folder in sorted((sys_fs / "devices/system/node").glob("node[0-9]*"))
    }
    allowed = [_allowed_cpus(task / "status") for task in (proc / "task").iterdir()]
    return {
        "numa_nodes": nodes,
        "resident_gb_by_node": _resident_gb(proc / "numa_maps"),
        "threads": len(allowed),
        "pinned_threads": sum(cpus.isdigit() for cpus in allowed) if len(os.sched_getaffinity(0)) > 1 else 0,
    }


def _allowed_cpus(status: Path) -> str:
    return status.read_text().partition("Cpus_allowed_list:")[2].split("\n", 1)[0].strip()


def _resident_gb(numa_maps: Path) -> dict[str, float]:
    """Return the resident memory by node; nothing where the kernel has no NUMA."""
    if not numa_maps.is_file():
        return {}
    sizes: Counter[str] = Counter()
    for line in numa_maps.read_text().splitlines():
        page = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            sizes[node] += int(pages) * int(page[1] if page else 4)
    return {node: round(kib / 1e6, 3) for node, kib in sorted(sizes.items())}


def synchronisation_us(threads: int, *, num_runs: int) -> dict[str, float]:
    """Return microseconds of a barrier, of a run without work that follows at once, and of one after a pause."""

    def best_s(num_barriers: int, pause_s: float = 0.0) -> float:
        means = (
            _native.time_runs(threads, num_runs=num_runs, num_barriers=num_barriers, pause_s=pause_s)
            for _ in range(REPEATS)
        )
        return min(means)

    empty_s, filled_s = best_s(0), best_s(BARRIERS)
    return {
        "barrier": max(0.0, filled_s - empty_s) / BARRIERS * 1e6,
        "run": empty_s * 1e6,
        "run after a pause": best_s(0, PAUSE_S) * 1e6,
    }
