"""The Ray launcher, beyond the contract in `test_launcher_contract`."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.core.processes import is_running
from headrace.platform.cluster.launcher import InsufficientCapacity, ResourceRequest, StartPending, WorkerPhase
from headrace.platform.cluster.ray_link import ClusterUnreachable
from headrace.platform.cluster.worker_logs import WorkerLogs

from .listening import descendants, listening
from .ray_nodes import MEMORY_BYTES, NODE_CPUS, Nodes
from .sites import LONG, Site, ray_launcher, ray_site, seen_as, spec, started, until

pytest.importorskip("ray")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), LONG]

GIB = 1 << 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> AsyncIterator[Site]:
    made = ray_site(tmp_path_factory.mktemp("ray"), nodes.address)
    yield made
    await made.end()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_left(site: Site) -> AsyncIterator[None]:
    """Make room for the next test."""
    yield
    for name, handle in (await site.launcher.known()).items():
        await site.launcher.stop(name, handle, grace_s=0)
        await seen_as(site.launcher, name, handle, WorkerPhase.EXITED)


async def test_a_worker_requires_its_token_and_is_unreachable_from_other_machines(site: Site) -> None:
    handle = await site.healthy("w")
    assert handle.url.startswith("http://127.0.0.1:")
    assert len(handle.token) >= 32
    assert json.loads((site.folder("w") / "worker.json").read_text())["token"] == handle.token
    processes = {*descendants(os.getpid()), site.process("w").pid}
    ports = listening(processes)
    assert int(handle.url.rpartition(":")[2]) in {port for _, port in ports}
    assert [address for address, _ in ports if not address.is_loopback] == []


async def test_a_worker_that_fits_no_node_is_refused_with_the_resources(site: Site) -> None:
    resources = ResourceRequest(num_cpus=9, memory_bytes=GIB, is_at_most=False)
    numbers = r"Requested on one node: 9 CPU and 1 GiB of memory\. Nodes: 2 x 4 CPU and 8 GiB of memory"
    with pytest.raises(InsufficientCapacity, match=rf"is large enough for the worker\. {numbers}"):
        await started(site.launcher, spec("w", resources=resources))
    with pytest.raises(InsufficientCapacity, match=r"Requested on one node: 0\.1 CPU and 9 GiB of memory"):
        await started(
            site.launcher, spec("w", resources=ResourceRequest(num_cpus=0.1, memory_bytes=9 * GIB, is_at_most=False))
        )
    assert await site.launcher.known() == {}


async def test_an_instance_type_gets_at_most_the_largest_node_with_a_notice(site: Site) -> None:
    resources = ResourceRequest(num_cpus=8, num_accelerators=1, memory_bytes=16 * GIB)
    handle = await started(site.launcher, spec("w", resources=resources))
    (notice,) = (await seen_as(site.launcher, "w", handle, WorkerPhase.STARTING)).notices
    assert notice == (
        "The worker requests 8 CPU, 1 GPU and 16 GiB of memory, which no node of the cluster has: "
        "it gets 4 CPU and 8 GiB of memory. The model runs on the CPU."
    )
    assert json.loads((site.folder("w") / "worker.json").read_text())["spec"]["threads"] <= NODE_CPUS
    assert handle.memory_bytes == MEMORY_BYTES


async def test_a_worker_that_waits_for_resources_does_not_delay_others(site: Site) -> None:
    whole = ResourceRequest(num_cpus=NODE_CPUS)
    first = await started(site.launcher, spec("first", resources=whole))
    await started(site.launcher, spec("second", resources=whole))
    with pytest.raises(StartPending, match=r"has enough free resources now\. .* Free on all together: 0 CPU"):
        await site.launcher.start(spec("third", resources=whole))
    await site.launcher.stop("first", first, grace_s=0)
    await seen_as(site.launcher, "first", first, WorkerPhase.EXITED)
    third = await started(site.launcher, spec("third", resources=whole))
    assert third.facts["node"] == first.facts["node"]


async def test_copies_of_a_fleet_are_on_different_nodes_though_one_has_more_room(site: Site) -> None:
    small = ResourceRequest(num_cpus=0.1)
    first = await started(site.launcher, spec("fleet-1", resources=small))
    other = await started(site.launcher, spec("other-1", resources=ResourceRequest(num_cpus=NODE_CPUS - 1)))
    second = await started(site.launcher, spec("fleet-2", resources=small))
    assert first.facts["node"] != other.facts["node"] == second.facts["node"]


async def test_a_worker_that_requests_a_gpu_is_placed_on_a_node_with_one(site: Site, nodes: Nodes) -> None:
    node = nodes.add(num_cpus=1, num_gpus=1)
    try:
        resources = ResourceRequest(num_cpus=0.1, num_accelerators=1, is_at_most=False)
        handle = await started(site.launcher, spec("w", resources=resources))
        assert handle.facts["node"] == node.node_id
        variables = Path(f"/proc/{site.process('w').pid}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=0" in variables
        with pytest.raises(StartPending, match=r"Requested on one node: 0\.1 CPU and 1 GPU"):
            await site.launcher.start(spec("waiting", resources=resources))
        two = ResourceRequest(num_cpus=0.1, num_accelerators=2, is_at_most=False)
        with pytest.raises(
            InsufficientCapacity, match=r"Requested on one node: 0\.1 CPU and 2 GPU\. .*1 CPU, 1 GPU and 8 GiB"
        ):
            await site.launcher.start(spec("two", resources=two))
    finally:
        await asyncio.to_thread(nodes.lose, node.node_id)
    assert (await seen_as(site.launcher, "w", handle, WorkerPhase.EXITED)).is_blameless


async def test_workers_on_a_node_have_different_gpus_and_one_without_sees_none(site: Site, nodes: Nodes) -> None:
    # One may be reserved for the worker that waited in an earlier test.
    node = nodes.add(num_cpus=NODE_CPUS + 2, num_gpus=4)
    pair = ResourceRequest(num_cpus=0.1, num_accelerators=2, is_at_most=False)
    single = ResourceRequest(num_cpus=0.1, num_accelerators=1, is_at_most=False)
    large = ResourceRequest(num_cpus=NODE_CPUS + 1, is_at_most=False)
    handles = {}
    try:
        for name, resources in (("pair", pair), ("single", single), ("none", large)):
            handles[name] = await started(site.launcher, spec(name, resources=resources))
        assert {handle.facts["node"] for handle in handles.values()} == {node.node_id}
        visible = [site.variables(name)["CUDA_VISIBLE_DEVICES"] for name in handles]
        gpus = ",".join(visible[:2]).split(",")
        assert len({*gpus}) == 3 == len(gpus), visible
        assert {*gpus} < {"0", "1", "2", "3"}
        assert visible[2] == ""
    finally:
        await asyncio.to_thread(nodes.lose, node.node_id)
    for name, handle in handles.items():
        await seen_as(site.launcher, name, handle, WorkerPhase.EXITED)


async def test_ready_workers_stay_ready_while_the_cluster_is_unreachable(site: Site, tmp_path: Path) -> None:
    handle = await site.healthy("w")
    lost = ray_launcher(tmp_path, "127.0.0.1:9", connect_s=0.5)
    with pytest.raises(ClusterUnreachable, match="cannot be reached"):
        await lost.start(spec("other"))
    assert (await lost.poll("w", handle)).phase is WorkerPhase.READY
    await lost.close()


async def test_a_platform_on_another_machine_goes_on_with_the_workers(site: Site, nodes: Nodes, tmp_path: Path) -> None:
    handle = await site.healthy("w", print=["hello"])
    folder = tmp_path / site.folders.parent.name  # the namespace, on which the platforms agree
    folder.mkdir()
    second = ray_launcher(folder, nodes.address)
    assert (await started(second, spec("w")), await second.known()) == (handle, {"w": handle})
    assert (await second.poll("w", handle)).phase is WorkerPhase.READY
    assert [event.message for event in WorkerLogs(folder / "workers").read("w")] == ["hello"]
    await second.stop("w", handle, grace_s=0)
    await seen_as(second, "w", handle, WorkerPhase.EXITED)
    await second.forget("w")
    assert not (folder / "workers" / "w").exists()
    await second.close()


async def test_connecting_goes_on_while_its_callers_give_up(nodes: Nodes, tmp_path: Path) -> None:
    hasty = ray_launcher(tmp_path, nodes.address, connect_s=0.01)
    with pytest.raises(ClusterUnreachable, match=r"cannot be reached: no answer within 0\.01 s"):
        await hasty.known()

    async def is_connected() -> bool:
        try:
            return await hasty.known() == {}
        except ClusterUnreachable:
            return False

    await until(is_connected)
    await hasty.close()


async def test_the_workers_of_a_lost_node_exit_and_another_node_is_used(site: Site, nodes: Nodes) -> None:
    lost = await site.healthy("lost", resources=ResourceRequest(num_cpus=NODE_CPUS), print=["last words"])
    stays = await site.healthy("stays")
    assert lost.facts["node"] != stays.facts["node"], "each has a node of its own"
    process = site.process("lost")

    async def is_log_here() -> bool:
        await site.launcher.poll("lost", lost)
        return site.said("lost") == ["last words"]

    await until(is_log_here)  # a log is copied at each observation
    try:
        await asyncio.to_thread(nodes.lose, lost.facts["node"])
        seen = await seen_as(site.launcher, "lost", lost, WorkerPhase.EXITED)
        assert "node" in seen.message
        assert seen.was_lost
        assert (await site.launcher.poll("stays", stays)).phase is WorkerPhase.READY
        assert site.said("lost") == ["last words"]
        assert ["node" in str(end["cause"]) for end in site.ends("lost")] == [True]
        await until(lambda: asyncio.to_thread(lambda: not is_running(process)))
        back = await site.healthy("back")
        assert back.facts["node"] == stays.facts["node"]
    finally:
        nodes.add(num_cpus=NODE_CPUS)
