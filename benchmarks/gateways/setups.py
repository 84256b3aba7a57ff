"""The platforms that are compared: one, two and four processes on one port, and one and two platforms on PostgreSQL."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.gateways import worker
from benchmarks.gateways.load import ENDPOINT
from benchmarks.harness import platforms
from benchmarks.harness.platforms import Platform, PostgreSQL, aws_client, until
from benchmarks.harness.proc import children, processes_with

from headrace.platform.cluster.ports import PLATFORM_PORTS, free_ports

IMAGE: Final = "bench/echo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The gateways of a setup."""

    processes: int = 1
    platforms: int = 1
    is_postgresql: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "1 process": Kind(),
    "2 processes": Kind(processes=2),
    "4 processes": Kind(processes=4),
    "1 platform, PostgreSQL": Kind(is_postgresql=True),
    "2 platforms, PostgreSQL": Kind(platforms=2, is_postgresql=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Running platforms with one endpoint, which has one worker."""

    name: str
    platforms: Sequence[Platform]
    worker_port: int
    worker_pid: int

    @property
    def ports(self) -> list[int]:
        return [platform.port for platform in self.platforms]

    def gateway_pids(self) -> list[int]:
        """Return the processes that serve: children of each platform's first one."""
        return [child for platform in self.platforms if platform.pid for child in children(platform.pid)]

    def pin(self, gateways: Sequence[int], rest: Sequence[int]) -> None:
        """Let the gateways and the worker run on these cores only."""
        for pid in self.gateway_pids():
            set_cores(pid, gateways)
        set_cores(self.worker_pid, rest)


def set_cores(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process run on these cores only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def start(names: Sequence[str], folder: Path, stack: ExitStack) -> list[Setup]:
    """Start all setups; the stack stops them."""
    ports = free_ports(PLATFORM_PORTS)
    database: PostgreSQL | None = None
    if any(KINDS[name].is_postgresql for name in names):
        database = PostgreSQL(folder / "postgresql", next(ports))
        stack.callback(database.close)
    return [_start(name, folder / f"setup-{number}", ports, database, stack) for number, name in enumerate(names)]


def _start(name: str, folder: Path, ports: Any, database: PostgreSQL | None, stack: ExitStack) -> Setup:
    kind = KINDS[name]
    folder.mkdir()
    flags = ["--processes", str(kind.processes)]
    if database is not None and kind.is_postgresql:
        flags += ["--database", database.create(folder.name.replace("-", "_"))]
    started = [new_platform(folder, number, next(ports), flags) for number in range(kind.platforms)]
    for platform in started:
        stack.callback(platform.stop)
        platform.start_and_wait()
    create_endpoint([platform.port for platform in started])
    ((pid, command),) = processes_with(Path(worker.__file__).name, str(folder)).items()
    return Setup(name=name, platforms=started, worker_port=int(command.split()[-2]), worker_pid=pid)


def new_platform(folder: Path, number: int, port: int, flags: Sequence[str]) -> Platform:
    """Return a platform that is to be started, with the image of the worker."""
    images = folder / "images.toml"
    command = f"{sys.executable} -I {worker.__file__} {{port}} {folder}"
    images.write_text(f'[images."{IMAGE}"]\ncommand = {json.dumps(command)}\n')
    return Platform(
        name=f"platform {number}",
        folder=folder / f"data-{number}",
        port=port,
        log=folder / f"platform-{number}.log",
        flags=["--images", str(images), *flags],
    )


def new_pair(folder: Path, stack: ExitStack, *flags: str) -> tuple[list[Platform], Any]:
    """Start two platforms on one PostgreSQL with an endpoint; return them, and further free ports."""
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own
    ports = free_ports(PLATFORM_PORTS)
    database = PostgreSQL(folder / "postgresql", next(ports))
    stack.callback(database.close)
    shared = ["--database", database.create("pair"), *flags]
    pair = [new_platform(folder, number, next(ports), shared) for number in range(2)]
    for platform in pair:
        stack.callback(platform.stop)
        platform.start_and_wait()
    create_endpoint([platform.port for platform in pair])
    return pair, ports


def create_endpoint(ports: Sequence[int], *, name: str = ENDPOINT) -> None:
    """Create an endpoint at the first platform, and wait until all can invoke it."""
    with closing(aws_client("sagemaker", ports[0])) as sagemaker:
        platforms.create_endpoint(sagemaker, name, {"Image": IMAGE})
    for port in ports:
        until(partial(_is_in_service, port, name), f"{name} is in service at {port}")


def _is_in_service(port: int, name: str) -> bool:
    with closing(aws_client("sagemaker", port)) as sagemaker:
        return platforms.is_in_service(sagemaker, name)
