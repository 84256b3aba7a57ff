"""Ray clusters that are not reached by loopback, but by a network address or through Ray's client."""

import asyncio
import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.platform.cluster.launcher import LaunchFailed, ResourceRequest, WorkerPhase
from headrace.platform.cluster.ray_head import PATIENT, agent_flags
from tests.e2e.conftest import free_port
from tests.waiting import WAIT_S

from .ray_nodes import LOOPBACK, OBJECT_STORE_BYTES
from .sites import LONG, ray_site, seen_as, spec, started

pytest.importorskip("ray")
pytestmark = LONG


@dataclass(frozen=True)
class Elsewhere:
    """A cluster that a user has started, with a token and Ray's client server."""

    host: str
    port: int
    client_port: int
    access: Mapping[str, str]
    """Environment variables with the token."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """One cluster for all tests: to start Ray takes longer than they do."""
    folder, host, client_port = tmp_path_factory.mktemp("ray"), own_address(), free_port()
    client_flags = [f"--ray-client-server-port={client_port}"] if importlib.util.find_spec("grpc") else []
    with ray_started(folder, host, *client_flags) as port:
        yield Elsewhere(host, port, client_port, access(folder))


def own_address() -> str:
    """Return the address by which other machines reach this one, without sending anything; loopback if none do."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


@contextmanager
def ray_started(folder: Path, address: str, *flags: str) -> Iterator[int]:
    """Run `ray start --head` like a user; return its port."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--node-ip-address={address}", f"--port={port}", "--min-worker-port=0", "--max-worker-port=0"]
    command += ["--include-dashboard=false", *agent_flags(), *flags]
    command += [f"--object-store-memory={OBJECT_STORE_BYTES}"]
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        **PATIENT,
        **access(folder),
    }
    if not address.startswith("127."):
        environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            deadline_s = time.monotonic() + WAIT_S
            while b"runtime started" not in (folder / "log").read_bytes():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            yield port
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def access(folder: Path) -> dict[str, str]:
    """Return environment variables with a token that the cluster requires."""
    path = folder / "token"
    if not path.exists():
        path.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


async def test_a_worker_listens_only_on_its_nodes_network_address(cluster: Elsewhere, tmp_path: Path) -> None:
    if cluster.host.startswith("127."):
        pytest.skip("this machine has no address on a network")
    site = ray_site(tmp_path, f"{cluster.host}:{cluster.port}", **cluster.access)
    handle = await site.healthy("w")
    assert re.fullmatch(rf"https://{cluster.host}:\d+#sha256=[0-9a-f]{{64}}", handle.url)
    assert handle.token
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect((LOOPBACK, urlsplit(handle.url).port))
    await site.end()


async def test_a_cluster_is_reached_through_rays_client(cluster: Elsewhere, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Ray's client is not installed")
    site = ray_site(tmp_path, f"ray://{cluster.host}:{cluster.client_port}", **cluster.access)
    handle = await site.healthy("w", print=["hello"])
    with pytest.raises(LaunchFailed, match="Requested on one node: 9 CPU"):
        await site.launcher.start(spec("large", resources=ResourceRequest(num_cpus=9, is_at_most=False)))
    await asyncio.gather(*(started(site.launcher, spec(f"w{number}")) for number in range(3)))
    await site.launcher.close()
    second = site.another()
    assert (await second.known())["w"] == handle
    assert (await seen_as(second, "w", handle, WorkerPhase.READY)).phase is WorkerPhase.READY
    assert site.said("w") == ["hello"]
    await replace(site, launcher=second).end()
