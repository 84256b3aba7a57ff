"""A platform or a server of our own under soak: its processes by role, and its files by purpose."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from benchmarks.soak.aws import MAIN
from benchmarks.soak.load import until
from benchmarks.soak.probes import ProcessUse, command_lines, read_processes, size_bytes
from benchmarks.soak.series import FILE, MIB, RULES, WATCHED_FILE, Rule, Series

from headrace.platform.host.folders import DataFolder, LocalKey, read_local_key

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
    key: LocalKey | None = None
    """Of a platform."""
    mark: str
    """In the command line or the environment of each of its processes, and in no other's."""
    roles: Mapping[str, str]
    """The role of a process by a part of its command line; the first match counts."""
    files: Mapping[str, FileGroup]
    series: dict[str, Series] = field(default_factory=dict)
    _cpu_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    def pids(self) -> dict[str, list[int]]:
        """Return its processes by role."""
        found: dict[str, list[int]] = defaultdict(list)
        for pid, command in command_lines(self.mark).items():
            found[next(role for part, role in self.roles.items() if part in command)].append(pid)
        return found

    def sample(self, now_s: float) -> None:
        """Add a point to each series."""
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
    """Yield a platform in the background; stop it afterwards, with its workers."""
    data = folder / "data"
    bounds = ("--metrics-mib", str(METRICS_MIB), "--logs-mib", str(LOGS_MIB))
    place = ("--data-dir", str(data))
    _headrace("up", "--detach", *place, "--port", "0", *bounds, *options)
    try:
        url = json.loads((data / "running.json").read_text())["url"]
        yield Target(
            url=url,
            key=read_local_key(DataFolder(data)),
            mark=str(data),
            roles={
                "/s3/data": "object store",
                f"/workers/{MAIN}-v-": "worker",
                "/workers/": "other workers",
                "": "platform",
            },
            files=_platform_files(data),
        )
    finally:
        _headrace("down", *place)


def _platform_files(data: Path) -> dict[str, FileGroup]:
    metrics = (data / "metrics.sqlite", data / "metrics.sqlite-wal")
    ended = Rule(unit="bytes", bound=_SLACK * LOGS_MIB * MIB)
    return {
        "database": FileGroup(paths=(data / "records.sqlite",)),
        "write-ahead log": FileGroup(paths=(data / "records.sqlite-wal",), rule=Rule(unit="bytes", bound=_WAL_BYTES)),
        "metrics": FileGroup(paths=metrics, rule=Rule(unit="bytes", bound=_SLACK * METRICS_MIB * MIB + _WAL_BYTES)),
        "platform log": FileGroup(paths=(data / "platform.log",), rule=WATCHED_FILE),
        "logs of ended workers": FileGroup(paths=(data / "ended-logs",), rule=ended),
        "folders of workers": FileGroup(paths=(data / "workers",), rule=WATCHED_FILE),
        "log of the object store": FileGroup(paths=(data / "s3" / "log.txt",), rule=WATCHED_FILE),
        "objects": FileGroup(paths=(data / "s3" / "data",), rule=WATCHED_FILE),
        "pending invocations": FileGroup(paths=(data / "invocations",)),
        "data folder": FileGroup(paths=(data,), rule=WATCHED_FILE),
    }


@contextmanager
def server(folder: Path, model: str, options: Sequence[str]) -> Iterator[Target]:
    """Yield a model server; stop it afterwards."""
    log = folder / "server.log"
    name = f"soak-{os.getpid()}"
    arguments = ("serve", model, "--port", "0", "--served-model-name", name, "--kv-cache-bytes", SERVER_KV_CACHE)
    command = [_command(), *arguments, "--max-model-len", "2048", "--log-format", "json", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())
    try:
        until(lambda: process.poll() is not None or _ready_url(log) is not None, "the server is ready")
        url = _ready_url(log)
        if url is None:
            raise RuntimeError(log.read_text())
        yield Target(
            url=url,
            mark=name,
            roles={"": "server"},
            files={"log": FileGroup(paths=(log,), rule=WATCHED_FILE)},
        )
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_S)


def _ready_url(log: Path) -> str | None:
    """Return the URL of a server that answers its health check, or None."""
    lines = (line for line in log.read_text().splitlines() if '"server.listening"' in line)
    for line in lines:
        url = str(json.loads(line)["url"])
        try:
            return url if httpx.get(f"{url}/ping", trust_env=False).status_code == httpx.codes.OK else None
        except httpx.HTTPError:
            return None
    return None


def left_processes(target: Target) -> int:
    """Return how many processes of a stopped target still run, after some seconds to end."""
    deadline_s = time.monotonic() + 10
    while (count := sum(map(len, target.pids().values()))) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return count


def _command() -> str:
    return shutil.which("headrace", path=str(Path(sys.executable).parent)) or "headrace"


def _environment() -> dict[str, str]:
    """Return the environment without settings of the platform's and of AWS."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_"))}


def _headrace(*arguments: str) -> None:
    subprocess.run([_command(), *arguments], env=_environment(), check=True, stdout=subprocess.DEVNULL)
