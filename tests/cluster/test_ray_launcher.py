"""Workers on a Ray cluster of two nodes in this machine: the same promises as those of the local launcher, and more."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.cluster.launcher import Handle, LaunchFailed, Observation, Phase, WorkerSpec
from headrace.cluster.processes import ProcessId, is_running, process_id
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.ray_link import ClusterAway
from headrace.cluster.ray_messages import Connection
from headrace.cluster.worker_files import read_value
from headrace.cluster.worker_logs import WorkerLogs

from .ray_nodes import Nodes, ray_nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

STUB = (sys.executable, "-S", "-P", str(Path(__file__).parent / "stub_worker.py"))
WAIT_S = 60.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes(2, 2) as made:
        yield made


def launcher_in(folder: Path, address: str, **options: float) -> RayLauncher:
    (folder / "workers").mkdir(exist_ok=True)
    return RayLauncher(
        folder / "workers",
        connection=Connection(address=address, namespace=folder.name),
        environment=os.environ,
        command=STUB,
        node_folder=str(folder / "node"),
        **options,
    )


@pytest.fixture
async def launcher(tmp_path: Path, nodes: Nodes) -> AsyncIterator[RayLauncher]:
    made = launcher_in(tmp_path, nodes.address)
    yield made
    for name, handle in (await made.known()).items():
        await made.stop(name, handle, grace_s=0)
        await seen_as(made, name, handle, Phase.EXITED)
    await made.close()


def spec(name: str = "w", *, threads: int = 1, **asked: object) -> WorkerSpec:
    return WorkerSpec(name=name, environment={"STUB": json.dumps(asked)}, threads=threads)


async def seen_as(launcher: RayLauncher, name: str, handle: Handle, phase: Phase) -> Observation:
    deadline_s = time.monotonic() + WAIT_S
    while (seen := await launcher.poll(name, handle)).phase is not phase:
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(0.05)
    return seen


def on_node(folder: Path, name: str = "w") -> Path:
    return folder / "node" / folder.name / "workers" / name


def process_of(folder: Path, name: str = "w") -> ProcessId:
    handle = read_value(on_node(folder, name) / "handle.json", Handle)
    assert handle is not None
    return ProcessId(**handle.facts["process"])


async def healthy(launcher: RayLauncher, folder: Path, name: str = "w", **asked: object) -> Handle:
    handle = await launcher.start(spec(name, **asked))
    (on_node(folder, name) / "healthy").touch()
    await seen_as(launcher, name, handle, Phase.READY)
    return handle


async def test_a_worker_is_ready_by_its_ping_asks_for_a_token_and_is_adopted(launcher, tmp_path, nodes) -> None:
    handle = await launcher.start(spec())
    assert handle.url.startswith("http://127.0.0.1:"), "nobody else can reach this cluster"
    assert len(handle.token) >= 32
    assert handle.token not in repr(handle)
    assert (await launcher.poll("w", handle)).phase is Phase.STARTING
    (on_node(tmp_path) / "healthy").touch()
    await seen_as(launcher, "w", handle, Phase.READY)
    assert json.loads((on_node(tmp_path) / "worker.json").read_text())["token"] == handle.token
    assert await launcher.start(spec()) == handle
    await launcher.close()

    second = launcher_in(tmp_path, nodes.address)
    assert await second.known() == {"w": handle}
    (on_node(tmp_path) / "healthy").unlink()
    await seen_as(second, "w", handle, Phase.UNHEALTHY)
    await second.stop("w", handle, grace_s=WAIT_S)
    seen = await seen_as(second, "w", handle, Phase.EXITED)
    assert seen.exit_code == -signal.SIGTERM
    assert await second.known() == {}
    await second.forget("w")
    assert not (tmp_path / "workers" / "w").exists()
    assert not on_node(tmp_path).exists()
    await second.close()


async def test_a_worker_that_fails_is_seen_with_its_code_its_sentence_and_its_log(launcher, tmp_path) -> None:
    lines = ["loading", "Error: the model is broken.", "bye"]
    handle = await launcher.start(spec(print=lines, exit=3))
    seen = await seen_as(launcher, "w", handle, Phase.EXITED)
    assert (seen.exit_code, seen.message) == (3, "the model is broken.")
    assert await launcher.poll("w", handle) == seen
    assert [event.message for event in WorkerLogs(tmp_path / "workers").read("w")] == lines

    again = await launcher.start(spec(print=["fine"], exit=1))
    seen = await seen_as(launcher, "w", again, Phase.EXITED)
    assert (seen.exit_code, seen.message) == (1, "")
    assert (await launcher.poll("w", handle)).phase is Phase.EXITED
    assert [event.message for event in WorkerLogs(tmp_path / "workers").read("w")] == [*lines, "fine"]


async def test_a_deaf_worker_is_killed_after_its_grace_with_all_it_started(launcher, tmp_path) -> None:
    handle = await healthy(launcher, tmp_path, deaf=True, child=True)
    child = process_id(int((on_node(tmp_path) / "child").read_text()))
    assert child is not None
    await launcher.stop("w", handle, grace_s=0.05)
    assert (await seen_as(launcher, "w", handle, Phase.EXITED)).exit_code == -signal.SIGKILL
    assert not is_running(child)


async def test_what_fits_on_no_node_is_refused_with_the_numbers(launcher) -> None:
    with pytest.raises(LaunchFailed, match=r"is large enough for it\. Wanted: 9 CPU on one node"):
        await launcher.start(spec(threads=9))
    assert await launcher.known() == {}


async def test_a_cluster_that_is_away_is_said_and_what_serves_stays_ready(launcher, tmp_path) -> None:
    handle = await healthy(launcher, tmp_path)
    lost = launcher_in(tmp_path, "127.0.0.1:9", connect_s=0.5)
    with pytest.raises(ClusterAway, match="cannot be reached"):
        await lost.start(spec("other"))
    assert (await lost.poll("w", handle)).phase is Phase.READY
    await lost.close()


async def test_a_node_that_is_lost_takes_its_workers_along_and_another_one_has_room(launcher, tmp_path, nodes) -> None:
    lost = await healthy(launcher, tmp_path, "lost", threads=2, print=["last words"])
    stays = await healthy(launcher, tmp_path, "stays")
    assert lost.facts["node"] != stays.facts["node"], "each has a node of its own"
    process = process_of(tmp_path, "lost")
    await asyncio.to_thread(nodes.lose, lost.facts["node"])
    seen = await seen_as(launcher, "lost", lost, Phase.EXITED)
    assert "node" in seen.message
    assert (await launcher.poll("stays", stays)).phase is Phase.READY
    assert [event.message for event in WorkerLogs(tmp_path / "workers").read("lost")] == ["last words"]
    deadline_s = time.monotonic() + WAIT_S
    while is_running(process):
        assert time.monotonic() < deadline_s, "it outlived its node"
        await asyncio.sleep(0.05)
    back = await healthy(launcher, tmp_path, "back")
    assert back.facts["node"] == stays.facts["node"]
    nodes.add(num_cpus=2)
