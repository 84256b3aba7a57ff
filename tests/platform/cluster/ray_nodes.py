"""A Ray cluster of several nodes on this machine, for one test session; it listens on loopback only."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.platform.cluster.ray_head import choose_ports
from tests.waiting import WAIT_S

NODE_CPUS = 4
"""Of each node that the tests share: workers of two `ml.c5.large` fit on one."""
OBJECT_STORE_BYTES = 80 * 1024 * 1024
MEMORY_BYTES = 8 << 30
"""Resources of each node, unless a test names others."""
LOOPBACK = "127.0.0.1"


class Nodes:
    """The nodes; the head takes no workers."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, *, num_cpus: int, num_gpus: int = 0, memory_bytes: int = MEMORY_BYTES) -> Any:
        """Add a node that claims these resources; the machine need not have them."""
        return self._cluster.add_node(
            **agent_ports(),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory_bytes,
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=LOOPBACK,
        )

    def lose(self, node_id: str) -> None:
        """Kill a node without a shutdown, as a power cut does."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other process of this user has a cluster for its tests: each takes some 1.5 GB and 15 processes."""
    with (Path(tempfile.gettempdir()) / f"headrace-tests-ray-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def ray_nodes(*cpus: int) -> Iterator[Nodes]:
    """Start a head node without CPUs, and nodes with the given CPUs."""
    with only_one():
        yield from _ray_nodes(cpus)


def agent_ports() -> dict[str, int]:
    """Ports for a node's agents: Ray ends a node that waits over 15 s for a port that an agent chooses."""
    names = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    return dict(zip(names, choose_ports(len(names)), strict=True))


def patiently(get_node: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Let Ray wait longer for a new node: its limit of 30 s is not configurable, and a busy machine takes longer."""

    def get_node_when_there(gcs_address: str, node_id: str) -> dict[str, Any]:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)

    return get_node_when_there


def with_listen_port(start_process: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the agent's port to the node too: Ray passes it to the agent only, and the node waits 15 s (Ray #65983)."""

    def start(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        if process_type == "raylet":
            command = [*command, f"--dashboard_agent_listen_port={choose_ports(1)[0]}"]
        return start_process(command, process_type, *arguments, **options)

    return start


def _ray_nodes(cpus: Sequence[int]) -> Iterator[Nodes]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # otherwise Ray uses another address than loopback
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.get_node = patiently(services.get_node)  # type: ignore[assignment]
    services.start_ray_process = with_listen_port(services.start_ray_process)  # type: ignore[assignment]
    # A killed node refuses connections at once and is noticed within two periods; a slow one has two minutes to answer.
    system = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 60_000,
        "health_check_failure_threshold": 2,
        "agent_register_timeout_ms": 300_000,
        "worker_register_timeout_seconds": 300,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
            "node_ip_address": LOOPBACK,
            "include_dashboard": False,
            "_system_config": system,
            **agent_ports(),
        },
    )
    try:
        nodes = Nodes(cluster)
        for num_cpus in cpus:
            nodes.add(num_cpus=num_cpus)
        yield nodes
    finally:
        cluster.shutdown()
