"""Three machines with a platform each, PostgreSQL and an S3 server between them; applies faults and undoes them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos import echo_server
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.world import IMAGE, Undo, count_answers
from benchmarks.harness.platforms import PATIENCE_S, Platform, PostgreSQL, Target, signal_process, until
from benchmarks.harness.proc import children, processes_with
from benchmarks.harness.servers import headrace_command
from benchmarks.machines.leaders import Leaders
from benchmarks.machines.network import Machine
from benchmarks.machines.ray_cluster import RayCluster

from headrace.platform.storage.object_storage import find_weed
from headrace.platform.storage.seaweed import server_flags, unused_ports

NAMES: Final = ("ada", "bob", "cyd")
HEAD: Final = "head"
"""The machine of Ray's control service."""
PORT: Final = 7450
_DATABASE_PORT: Final = 5432
_READ_TIMEOUT_S: Final = 20.0
"""Longest silence that a client waits through: a machine that is gone says nothing."""
_S3_KEYS: Final = {"AWS_ACCESS_KEY_ID": "storage", "AWS_SECRET_ACCESS_KEY": "storage-secret"}
_AS_USER: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""PostgreSQL refuses to run as root."""


class World:
    """The machines, which are on a network of their own: `network.enter`."""

    def __init__(self, folder: Path, stack: ExitStack, *, step_s: float, ray: str = "") -> None:
        """
        Start PostgreSQL and the S3 server.

        Args:
            folder: for the data and logs of all machines.
            stack: ends what was started.
            step_s: time between two characters of a stream.
            ray: run workers on Ray's nodes, whose control service has its state in `memory` or `redis`; empty: no Ray.
        """
        self._folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        database_machine = Machine("database", 10, has_power=False)
        storage_machine = Machine("storage", 11, has_power=False)
        head = (Machine(HEAD, 12),) if ray else ()
        self._others = (database_machine, storage_machine, *head)
        self.machines = [Machine(name, number) for number, name in enumerate(NAMES, start=1)]
        for machine in (*self._others, *self.machines):
            machine.start()
            stack.callback(machine.lose_power)
        self._database = PostgreSQL(
            folder / "postgresql",
            _DATABASE_PORT,
            host=database_machine.address,
            inside=(*database_machine.inside, *_AS_USER),
        )
        stack.callback(self._database.close)
        self.database_url = f"postgresql://headrace@{database_machine.address}:{_DATABASE_PORT}/postgres"
        self._storage_ports = unused_ports()
        self._storage_url = f"http://{storage_machine.address}:{self._storage_ports['s3']}"
        self._start_storage(storage_machine, stack)
        self._key = self._create_key()
        self._ray = RayCluster(folder, *head, database_machine if ray == "redis" else None) if ray else None
        self.platforms = [self._new_platform(machine, step_s) for machine in self.machines]
        self.leaders = Leaders(self.database_url)
        stack.callback(self.leaders.close)

    def start(self) -> None:
        if self._ray is not None:
            for machine in (self._ray.head, *self.machines):
                self._ray.join(machine)
            self._ray.wait(len(self.machines))
        threads = [threading.Thread(target=platform.start_and_wait) for platform in self.platforms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.leaders.start()

    @property
    def load_targets(self) -> list[Target]:
        return [self._target(machine, keeps_connections=False) for machine in self.machines]

    @property
    def operator_targets(self) -> list[Target]:
        return [self._target(machine) for machine in self.machines]

    def _target(self, machine: Machine, **options: bool) -> Target:
        return Target(host=machine.address, port=PORT, key=self._key, read_timeout_s=_READ_TIMEOUT_S, **options)

    def _start_storage(self, machine: Machine, stack: ExitStack) -> None:
        folder = self._folder / "storage"
        folder.mkdir()
        # Not its default ports: they name its sockets in /tmp, which all machines share.
        flags = server_flags(folder, self._storage_ports, host=machine.address)
        with (self._folder / "storage.log").open("wb") as log:
            process = subprocess.Popen(
                [*machine.inside, find_weed(os.environ) or "weed", *flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_S3_KEYS, "HOME": str(folder)},
            )
        stack.callback(process.wait)
        stack.callback(process.kill)  # it would write into the folder while that is removed
        client = Target(host=machine.address, port=self._storage_ports["s3"], key=tuple(_S3_KEYS.values())).client("s3")
        until(lambda: _stores(client), "the S3 server stores objects")
        client.close()

    def _create_key(self) -> tuple[str, str]:
        command = [headrace_command(), "keys", "create", "--database", self.database_url]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = dict(word.split("=", 1) for word in printed.split() if word.startswith("AWS_"))
        return found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]

    def _new_platform(self, machine: Machine, step_s: float) -> Platform:
        images = self._folder / "images.toml"
        command = f"{sys.executable} -I {echo_server.__file__} {{port}} {self.notes} {{host}} {step_s}"
        images.write_text(f'[images."{IMAGE}"]\ncommand = {json.dumps(command)}\n')
        where = ("--database", self.database_url, "--s3-endpoint", self._storage_url, "--images", str(images))
        cluster, access = ((), {}) if self._ray is None else (("--cluster", self._ray.address), self._ray.access)
        return Platform(
            name=machine.name,
            folder=self._folder / machine.name / "data",
            host=machine.address,
            port=PORT,
            log=self._folder / f"{machine.name}.log",
            flags=(*where, "--advertise", machine.address, *cluster),
            environment={**_S3_KEYS, **access, "HEADRACE_HOME": str(self._folder / machine.name / "home")},
            inside=machine.inside,
            is_open=False,
        )

    def worker_processes(self) -> dict[int, str]:
        return processes_with(f"{Path(echo_server.__file__).name} ", str(self.notes))

    def leftovers(self) -> list[str]:
        """Return the processes of the platforms and their workers that are left."""
        mine = [str(self._folder / name) for name in NAMES]
        found = {pid: line for pid, line in processes_with(str(self._folder)).items() if any(f in line for f in mine)}
        return [f"{pid}: {line}" for pid, line in {**found, **self.worker_processes()}.items()]

    def answers(self) -> dict[str, int]:
        return count_answers(self.notes)

    def begun(self) -> dict[str, list[str]]:
        """Return the machines whose workers each attempt has reached."""
        found: dict[str, list[str]] = {}
        for path in self.notes.glob("*.begun"):
            for line in path.read_text().splitlines():
                found.setdefault(line, []).append(path.name.partition("-")[0])
        return found

    @staticmethod
    def stop(platform: Platform) -> int:
        """SIGTERM, to the process behind `nsenter`; return its exit code."""
        process, platform.process = platform.process, None
        if process is None:
            return 0
        for pid in children(process.pid):
            signal_process(pid, signal.SIGTERM)
        try:
            return process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def apply(self, fault: Fault) -> tuple[str, Undo] | None:
        """Apply a fault once all platforms answer; return the machine that it hit and how to undo it."""
        if not all(platform.answers(timeout_s=1.0) for platform in self.platforms):
            return None
        machine = [*self.machines, *self._others[2:]][fault.target]
        return machine.name, FAULTS[fault.kind](self, machine)

    def lose_power(self, machine: Machine, *, is_disk_lost: bool = False) -> Undo:
        platforms = [platform for platform in self.platforms if platform.name == machine.name]
        for platform in platforms:
            platform.kill()  # `nsenter`, so that nothing takes the end of the platform for one of its own making
        if self._ray is not None:
            self._ray.left(machine)
        machine.lose_power()
        if is_disk_lost:
            shutil.rmtree(self._folder / machine.name)

        def undo() -> None:
            machine.start()
            if self._ray is not None:
                self._ray.join(machine)
            for platform in platforms:
                platform.inside = machine.inside
                platform.start()

        return undo

    def restart(self, machine: Machine) -> Undo:
        platform = self.platforms[self.machines.index(machine)]
        self.stop(platform)
        return platform.start

    def peers(self, machine: Machine) -> list[Machine]:
        return [other for other in self.machines if other is not machine]

    def all_others(self, machine: Machine) -> list[Machine]:
        return [*self.peers(machine), *self._others]

    def name_of(self, url: str) -> str:
        return next((machine.name for machine in self.machines if f"//{machine.address}:" in url), "")

    @property
    def database_machine(self) -> Machine:
        return self._others[0]

    @property
    def storage_machine(self) -> Machine:
        return self._others[1]


def _cut(machine: Machine) -> Undo:
    machine.cut()
    return machine.mend


def _cut_to(machine: Machine, others: Sequence[Machine]) -> Undo:
    machine.cut_to(others)
    return lambda: machine.mend_to(others)


def _cut_from(machine: Machine, others: Sequence[Machine]) -> Undo:
    return _all(*(_cut_to(other, [machine]) for other in others))


def _cut_both_ways(machine: Machine, others: Sequence[Machine]) -> Undo:
    return _all(_cut_to(machine, others), _cut_from(machine, others))


def _all(*undo: Undo) -> Undo:
    return lambda: [call() for call in undo] and None


_LINKS: Final[Mapping[str, Callable[[World, Machine], Sequence[Machine]]]] = {
    "": World.all_others,
    "-database": lambda world, _: [world.database_machine],
    "-storage": lambda world, _: [world.storage_machine],
    "-peers": World.peers,
}
_DIRECTIONS: Final = {"cut": _cut_both_ways, "mute": _cut_to, "deaf": _cut_from}


def _of_links(direction: str, link: str) -> Callable[[World, Machine], Undo]:
    return lambda world, machine: _DIRECTIONS[direction](machine, _LINKS[link](world, machine))


FAULTS: Final[Mapping[str, Callable[[World, Machine], Undo]]] = {
    "machine-power": World.lose_power,
    "machine-loss": lambda world, machine: world.lose_power(machine, is_disk_lost=True),
    "machine-stop": World.restart,
    **{f"machine-{way}{link}": _of_links(way, link) for way in _DIRECTIONS for link in _LINKS},
    "machine-cut": lambda _, machine: _cut(machine),
    "machine-head-power": World.lose_power,
    "machine-head-cut": lambda _, machine: _cut(machine),
}
"""
Kind of a fault → how it hits a machine. A mute one sends nothing to other machines, a deaf one gets nothing.

Those of the head hit the machine of Ray's control service only, all others one with a platform.
"""


def _stores(client: Any) -> bool:
    """Return whether the S3 server takes an object: its volumes register some seconds after it answers."""
    with suppress(Exception):
        client.create_bucket(Bucket="probe")
    with suppress(Exception):
        client.put_object(Bucket="probe", Key="probe", Body=b"")
        return True
    return False
