"""A platform or a server of our own under soak: its processes by role, and its files by purpose."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.proc import ProcessUse, processes_with, read_processes
from benchmarks.harness.servers import Launch, ServerProcess, headrace_command, pings
from benchmarks.soak.aws import MAIN
from benchmarks.soak.series import FILE, MIB, RULES, WATCHED_FILE, Rule, Series

from headrace.testing.local_platform import local_platform

_PATIENCE_S = 120.0
METRICS_MIB, LOGS_MIB = 4, 4
"""Small bounds, so that a run of an hour reaches them."""
_SLACK = 1.5
"""A bounded file may exceed its bound between two prunings."""
_WAL_BYTES = 8 * MIB
"""Twice the write-ahead log at which SQLite checkpoints by itself (1,000 pages of 4 KiB)."""
SERVER_KV_CACHE = "64MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files with one purpose."""

    paths: tuple[Path, ...]
    rule: Rule = FILE


@dataclass(kw_only=True)
class Target:
    """A running platform or server."""

    url: str
    key: tuple[str, str] | None = None
    """Of a platform: an id and its secret."""
    mark: str
    """In the command line or the environment of each of its processes, and in no other's."""
    roles: Mapping[str, str]
    """The role of a process by a part of its command line; the first match counts."""
    files: Mapping[str, FileGroup]
    series: dict[str, Series] = field(default_factory=dict)
    _cpu_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def pids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for pid, command in processes_with(self.mark, in_environment=True).items():
            found[next(role for part, role in self.roles.items() if part in command)].append(pid)
        return found

    def sample(self, now_s: float) -> None:
        for role, pids in sorted(self.pids().items()):
            self._add(f"{role} processes", RULES["processes"], now_s, len(pids))
            if role in self.roles.values() and not role.startswith("other"):
                self._add_use(role, read_processes(pids), now_s)
        for name, group in self.files.items():
            self._add(name, group.rule, now_s, size_bytes(*group.paths))

    def _add_use(self, role: str, use: ProcessUse, now_s: float) -> None:
        for name in ("rss", "pss", "anonymous"):
            self._add(f"{role} {name}", RULES[name], now_s, getattr(use, f"{name}_bytes"))
        for name in ("descriptors", "threads"):
            self._add(f"{role} {name}", RULES[name], now_s, getattr(use, name))
        if role in self._cpu_s:
            before_s, before_cpu_s = self._cpu_s[role]
            self._add(f"{role} cpu", RULES["cpu"], now_s, max(0.0, use.cpu_s - before_cpu_s) / (now_s - before_s))
        self._cpu_s[role] = (now_s, use.cpu_s)

    def _add(self, name: str, rule: Rule, now_s: float, value: float) -> None:
        self.series.setdefault(name, Series(name=name, rule=rule)).points.append((now_s, value))


@contextmanager
def platform(folder: Path, options: Sequence[str]) -> Iterator[Target]:
    """Yield a platform; stop it afterwards, with its workers."""
    bounds = ("--metrics-mib", str(METRICS_MIB), "--logs-mib", str(LOGS_MIB))
    data = folder / "data"
    with local_platform(folder, *bounds, *options) as running:
        yield Target(
            url=running.url,
            key=(running.access_key, running.secret_key),
            mark=str(data),
            roles={
                "/s3/data": "object store",
                f"/workers/{MAIN}-v-": "worker",
                "/workers/": "other workers",
                "": "platform",
            },
            files=_platform_files(data, log=running.log_path),
        )


def _platform_files(data: Path, *, log: Path) -> dict[str, FileGroup]:
    def bounded(*paths: str, most: float) -> FileGroup:
        return FileGroup(paths=tuple(data / path for path in paths), rule=Rule(unit="bytes", bound=most))

    def watched(path: Path) -> FileGroup:
        return FileGroup(paths=(path,), rule=WATCHED_FILE)

    metrics_bytes = _SLACK * METRICS_MIB * MIB + _WAL_BYTES
    return {
        "database": FileGroup(paths=(data / "records.sqlite",)),
        "write-ahead log": bounded("records.sqlite-wal", most=_WAL_BYTES),
        "metrics": bounded("metrics.sqlite", "metrics.sqlite-wal", most=metrics_bytes),
        "platform log": watched(log),
        "logs of ended workers": bounded("ended-logs", most=_SLACK * LOGS_MIB * MIB),
        "folders of workers": watched(data / "workers"),
        "log of the object store": watched(data / "s3" / "log.txt"),
        "objects": watched(data / "s3" / "data"),
        "pending invocations": FileGroup(paths=(data / "invocations",)),
        "data folder": watched(data),
    }


@contextmanager
def server(folder: Path, model: str, options: Sequence[str]) -> Iterator[Target]:
    """Yield a model server; stop it afterwards."""
    log, name = folder / "server.log", f"soak-{os.getpid()}"
    named = ("--served-model-name", name, "--kv-cache-bytes", SERVER_KV_CACHE, "--max-model-len", "2048")
    command = (headrace_command(), "serve", model, *named, "--log-format", "json", *options)
    with ServerProcess(Launch(arguments=command), log=log) as process:
        process.wait_until(pings, timeout_s=_PATIENCE_S)
        files = {"log": FileGroup(paths=(log,), rule=WATCHED_FILE)}
        yield Target(url=process.url, mark=name, roles={"": "server"}, files=files)
        process.stop()


def left_processes(target: Target) -> int:
    """Return how many processes of a stopped target still run, after some seconds to end."""
    deadline_s = time.monotonic() + 10
    while (count := sum(map(len, target.pids().values()))) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return count


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
