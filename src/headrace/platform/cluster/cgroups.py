"""
Control groups (v2) that bound the cores and the memory of workers, where the kernel lets this user create them.

A group with processes cannot bound its children (the "no internal processes" rule), so the workers' groups are made
beside the platform's own, in a parent that is delegated to this user and has no processes itself. systemd makes one
with `Delegate=cpu memory` and `DelegateSubgroup=platform`.

Source: Linux `Documentation/admin-guide/cgroup-v2.rst`, `systemd.resource-control(5)`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import Limits

_CONTROLLERS: Final = frozenset({"cpu", "memory"})
_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 1000
"""The smallest quota that the kernel accepts."""
_PREFIX: Final = "worker-"


class WorkerCgroups:
    """The groups of workers in one delegated group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bound(self, name: str, pid: int, limits: Limits) -> None:
        """Move a process that has just been started into a group with limits; without limits it stays where it is."""
        files = limit_files(limits)
        if not files:
            return
        group = self._group(name)
        try:
            control = self._folder / "cgroup.subtree_control"
            if missing := _CONTROLLERS - {*control.read_text().split()}:
                control.write_text(" ".join(f"+{controller}" for controller in sorted(missing)))
            group.mkdir(exist_ok=True)
            for file, value in files.items():
                (group / file).write_text(value)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            get_logger().warning("worker.not_bounded", worker=name, error=str(error))

    def remove(self, name: str) -> None:
        """Remove the group of a worker whose processes have ended."""
        with suppress(OSError):  # it has none, or a process is still ending: the next call removes it
            self._group(name).rmdir()

    def _group(self, name: str) -> Path:
        return self._folder / f"{_PREFIX}{name}"


def limit_files(limits: Limits) -> dict[str, str]:
    """Return the contents of a group's files, by name."""
    files = {"cpu.max": "max", "memory.max": "max"}
    if limits.num_cpus is None and limits.memory_bytes is None:
        return {}
    if limits.num_cpus is not None:
        files["cpu.max"] = f"{max(round(limits.num_cpus * _PERIOD_US), _LEAST_QUOTA_US)} {_PERIOD_US}"
    if limits.memory_bytes is not None:
        files["memory.max"] = str(limits.memory_bytes)
    return files


def delegated_group(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return the parent of this process's group if workers' groups can be made in it, else None."""
    own = _own_group(proc, mount)
    if own is None or own == mount:
        return None
    parent = own.parent
    try:
        has_all = {*(parent / "cgroup.controllers").read_text().split()} >= _CONTROLLERS
        is_empty = not (parent / "cgroup.procs").read_text().strip()
    except OSError:
        return None
    needed = (parent, parent / "cgroup.procs", parent / "cgroup.subtree_control")
    return parent if has_all and is_empty and all(os.access(path, os.W_OK) for path in needed) else None


def _own_group(proc: Path, mount: Path) -> Path | None:
    """Return the folder of this process's group in the unified hierarchy; None with v1 only."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return mount / line.removeprefix("0::/")
    return None
