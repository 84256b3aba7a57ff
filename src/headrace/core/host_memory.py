"""The memory of this machine, within the limits of its cgroups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NO_LIMIT_BYTES: Final = 1 << 62


def available_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """
    Return the memory this process can still allocate: the minimum of the machine's and its cgroups'.

    Cache that the kernel can drop counts as free. Source: Linux `proc_meminfo(5)`, cgroup-v1 and -v2 documentation.
    """
    headrooms = (headroom for _, headroom in _cgroup_bounds(proc, cgroups))
    return min(_meminfo(proc, "MemAvailable"), *headrooms, _NO_LIMIT_BYTES)


def total_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of this machine, or the smallest limit of the cgroups of this process."""
    limits = (limit for limit, _ in _cgroup_bounds(proc, cgroups))
    return min(_meminfo(proc, "MemTotal"), *limits, _NO_LIMIT_BYTES)


def _meminfo(proc: Path, wanted: str) -> int:
    for line in _read(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == wanted:
            return int(rest.split()[0]) * 1024
    return _NO_LIMIT_BYTES


def _cgroup_bounds(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and headroom, in bytes, of each cgroup of this process, from its own up to the root."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _bounds(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _bounds(
                cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )


def _bounds(root: Path, path: str, limit_name: str, usage_name: str, droppable_name: str) -> Iterator[tuple[int, int]]:
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        limit, usage = _read(group / limit_name).strip(), _read(group / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            yield int(limit), max(0, int(limit) - int(usage) + _statistic(group, droppable_name))
        if group == root:
            return


def _statistic(group: Path, name: str) -> int:
    for line in _read(group / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
