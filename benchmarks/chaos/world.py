"""The platform of a run and all that it stands on; applies faults to it and undoes them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.chaos import echo_server
from benchmarks.chaos.breakable import FakeClock, SmallDisk, small_disk
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.schedule import Fault, Setup
from benchmarks.harness.platforms import Platform, PostgreSQL, Target, signal_process, until
from benchmarks.harness.proc import children, is_alive, processes_with
from tests.platform.cluster.ray_nodes import Nodes, ray_nodes

from headrace.platform.cluster.ports import PLATFORM_PORTS, free_ports

IMAGE = "chaos/echo"
_NODE = {"num_cpus": 64, "memory_bytes": 256 << 30}
"""The resources that a node claims: more than the workers of a run reserve, so that one node can take them all."""
_DELAY_S = 0.2
_CORRUPTED_SHARE = 0.2
_KILLED_AT_START = 4
"""One kill in this many may hit a platform that starts; the others wait until it answers, so that it ever does."""

Undo = Callable[[], None]


class World:
    """One or more platforms, with proxies before them and before their database."""

    def __init__(self, setup: Setup, folder: Path, stack: ExitStack) -> None:
        self.setup = setup
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.disk: SmallDisk | None = stack.enter_context(small_disk(folder / "disk")) if setup.has_small_disk else None
        self._clock = FakeClock(folder) if setup.has_fake_clock else None
        ports = free_ports(PLATFORM_PORTS)
        self._database: PostgreSQL | None = None
        self._database_proxy: Proxy | None = None
        if setup.is_postgresql:
            self._database = PostgreSQL(folder / "postgresql", next(ports))
            stack.callback(self._database.close)
            self._database_proxy = Proxy(self._database.port)
            stack.callback(self._database_proxy.close)
        self._ray: Nodes | None = None
        self._nodes: list[Any] = []
        if setup.nodes:
            os.environ["HEADRACE_HOME"] = str(self._home)  # of the nodes, which keep their workers' folders there
            self._ray = stack.enter_context(ray_nodes())
            self._nodes = [self._ray.add(**_NODE) for _ in range(setup.nodes)]
        stack.callback(self._kill_all)
        self.platforms = [self._new_platform(index, next(ports)) for index in range(setup.platforms)]
        self._load_proxies = [Proxy(platform.port, seed=index) for index, platform in enumerate(self.platforms)]
        self._operator_proxies = [Proxy(platform.port) for platform in self.platforms]
        for proxy in self._client_proxies:
            stack.callback(proxy.close)

    def start(self) -> None:
        for platform in self.platforms:
            platform.start_and_wait()

    @property
    def _client_proxies(self) -> Sequence[Proxy]:
        return (*self._load_proxies, *self._operator_proxies)

    @property
    def load_targets(self) -> list[Target]:
        return [Target(port=proxy.port) for proxy in self._load_proxies]

    @property
    def operator_targets(self) -> list[Target]:
        return [Target(port=proxy.port) for proxy in self._operator_proxies]

    def _new_platform(self, index: int, port: int) -> Platform:
        data = self.folder / "disk" / f"data-{index}"
        images = self.folder / "images.toml"
        command = f"{sys.executable} -I {echo_server.__file__} {{port}} {self.notes}"
        images.write_text(f'[images."{IMAGE}"]\ncommand = {json.dumps(command)}\n')
        flags = ["--images", str(images), "--processes", str(self.setup.processes)]
        if self._database_proxy is not None:
            where = f"postgresql://headrace@127.0.0.1:{self._database_proxy.port}/postgres"
            flags += ["--database", where]
        if self._ray is not None:
            flags += ["--cluster", self._ray.address]
        return Platform(
            name=f"platform {index}",
            folder=data,
            port=port,
            log=self.folder / f"platform-{index}.log",
            flags=flags,
            environment=self._clock.variables if self._clock is not None else {},
            inside=self.disk.inside if self.disk is not None else (),
        )

    @property
    def _data(self) -> Path:
        """The folder of the workers: that of the first platform."""
        return (self.disk.seen if self.disk is not None else self.folder / "disk") / "data-0"

    @property
    def _home(self) -> Path:
        return self.folder / "home"

    def workers(self) -> dict[str, int]:
        """Return the names of the workers and their process ids, as the platform or its nodes know them."""
        found = {}
        for path in sorted(
            [*self._data.glob("workers/*/handle.json"), *self._home.glob("nodes/*/workers/*/handle.json")]
        ):
            with suppress(OSError, KeyError, TypeError, ValueError):
                found[path.parent.name] = int(json.loads(path.read_text())["facts"]["process"]["pid"])
        return found

    def worker_processes(self) -> dict[int, str]:
        """Return the processes that are workers of this run, whether the platform knows them or not."""
        return processes_with(f"{Path(echo_server.__file__).name} ", str(self.notes))

    def leftovers(self) -> list[str]:
        """Return the processes of this run, without those of the harness."""
        found = processes_with(str(self.folder))
        database = str(self.folder / "postgresql")
        return [f"{pid}: {command}" for pid, command in found.items() if database not in command]

    def answers(self) -> dict[str, int]:
        """Return how often each request was answered in full by a worker."""
        return count_answers(self.notes)

    @staticmethod
    def begun() -> dict[str, list[str]]:
        """Return nothing: there is one host."""
        return {}

    @staticmethod
    def stop(platform: Platform) -> int:
        return platform.stop()

    def apply(self, fault: Fault) -> tuple[str, Undo] | None:
        """Apply a fault; return what it hit and how to undo it, or None if there is nothing to hit now."""
        hit = {
            "worker": self._hit_worker,
            "platform": self._hit_platform,
            "process": self._hit_process,
            "storage": self._hit_storage,
            "database": self._hit_database,
            "node": self._hit_node,
            "client": self._hit_clients,
            "disk": self._hit_disk,
            "clock": self._hit_clock,
        }
        thing, _, action = fault.kind.partition("-")
        return hit[thing](action, fault)

    def _hit_worker(self, action: str, fault: Fault) -> tuple[str, Undo] | None:
        alive = [(name, pid) for name, pid in self.workers().items() if is_alive(pid)]
        if not alive:
            return None
        name, pid = alive[fault.target % len(alive)]
        return name, _hit(pid, action)

    def _hit_platform(self, action: str, fault: Fault) -> tuple[str, Undo] | None:
        platforms = [platform for platform in self.platforms if platform.pid is not None]
        if not platforms:
            return None
        platform = platforms[fault.target % len(platforms)]
        pid = platform.pid or 0
        if action == "kill":
            if fault.target % _KILLED_AT_START and not platform.answers(timeout_s=0.5):
                return None
            platform.kill()
            return platform.name, platform.start
        undo = [_hit(process, action) for process in (pid, *children(pid))]
        return platform.name, lambda: [call() for call in undo] and None

    def _hit_process(self, action: str, fault: Fault) -> tuple[str, Undo] | None:
        pids = [child for platform in self.platforms if platform.pid for child in children(platform.pid)]
        if not pids:
            return None
        pid = pids[fault.target % len(pids)]
        return f"process {pid}", _hit(pid, action)

    def _hit_storage(self, action: str, _: Fault) -> tuple[str, Undo] | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((self._data / "s3" / "state.json").read_text())
            pid = int(state["process"]["pid"])
            if is_alive(pid):
                return f"weed {pid}", _hit(pid, action)
        return None

    def _hit_node(self, action: str, fault: Fault) -> tuple[str, Undo] | None:
        ray, nodes = self._ray, self._nodes
        if ray is None or not nodes:
            return None
        node = nodes[fault.target % len(nodes)]
        if action == "kill":
            nodes.remove(node)
            ray.lose(node.node_id)
            return f"node {node.node_id[:8]}", lambda: nodes.append(ray.add(**_NODE))
        (raylet,) = node.all_processes["raylet"]
        return f"node {node.node_id[:8]}", _hit(raylet.process.pid, action)

    def _hit_database(self, action: str, _: Fault) -> tuple[str, Undo] | None:
        database, proxy = self._database, self._database_proxy
        if database is None or proxy is None or database.pid is None:
            return None
        match action:
            case "kill":
                database.kill()
                return action, database.start
            case "stop":
                pids = [database.pid, *children(database.pid)]
                for pid in pids:
                    signal_process(pid, signal.SIGSTOP)
                return action, lambda: [signal_process(pid, signal.SIGCONT) for pid in pids] and None
            case "restart":
                database.restart()
                return action, _nothing
        return self._hit_proxies([proxy], action)

    def _hit_clients(self, action: str, _: Fault) -> tuple[str, Undo]:
        return self._hit_proxies(self._load_proxies if action == "corrupt" else self._client_proxies, action)

    def _hit_proxies(self, proxies: Sequence[Proxy], action: str) -> tuple[str, Undo]:
        def set_all(*, is_on: bool) -> None:
            for proxy in proxies:  # a fault leaves what another one has set
                match action:
                    case "cut":
                        proxy.is_refusing = is_on
                        if is_on:
                            proxy.cut()
                    case "delay":
                        proxy.delay_s = _DELAY_S if is_on else 0.0
                    case "corrupt":
                        proxy.corrupted_share = _CORRUPTED_SHARE if is_on else 0.0

        set_all(is_on=True)
        return f"{len(proxies)} proxies", lambda: set_all(is_on=False)

    def _hit_disk(self, _action: str, _fault: Fault) -> tuple[str, Undo] | None:
        if self.disk is None:
            return None
        self.disk.fill()
        return "disk", self.disk.empty

    def _hit_clock(self, _: str, fault: Fault) -> tuple[str, Undo] | None:
        clock = self._clock
        if clock is None:
            return None
        clock.move(fault.amount)
        return f"{fault.amount:+d} s", lambda: clock.move(0)

    def _kill_all(self) -> None:
        """End everything that is left; what is stopped, too."""
        for platform in getattr(self, "platforms", ()):
            platform.kill()
        deadline_s = time.monotonic() + 10
        while (left := self.leftovers()) and time.monotonic() < deadline_s:
            for line in left:
                signal_process(int(line.partition(":")[0]), signal.SIGKILL)
            time.sleep(0.05)


def count_answers(notes: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path in notes.glob("*.done"):
        for line in path.read_text().splitlines():
            counts[line] = counts.get(line, 0) + 1
    return counts


def _nothing() -> None:
    pass


def _hit(pid: int, action: str) -> Undo:
    """Kill a process and wait for its death, or stop it."""
    if action == "kill":
        signal_process(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid), f"process {pid} is dead")
        return _nothing
    signal_process(pid, signal.SIGSTOP)
    return lambda: signal_process(pid, signal.SIGCONT)
