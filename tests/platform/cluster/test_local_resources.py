"""The local launcher on a host with four GPUs that the machine of the tests need not have."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.gpus import Gpu
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.launcher import InsufficientCapacity, Limits, ResourceRequest, StartPending, WorkerPhase
from headrace.platform.cluster.worker_files import Assignment, read_value

from .sites import Site, local_site, seen_as, spec, until

ONE = ResourceRequest(num_cpus=1, num_accelerators=1)
TWO = ResourceRequest(num_cpus=1, num_accelerators=2)
GPUS = tuple(Gpu(index=index, name="NVIDIA L4") for index in range(4))
HOST = HostResources(num_cores=8, gpus=GPUS)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = local_site(tmp_path, HOST)
    yield made
    await made.end()


def gpus_of(site: Site, name: str) -> str:
    return site.variables(name)["CUDA_VISIBLE_DEVICES"]


def cores_of(site: Site, name: str) -> int | None:
    assignment = read_value(site.folder(name) / "worker.json", Assignment)
    assert assignment is not None
    return assignment.spec.threads


async def test_each_worker_sees_its_own_gpus_and_one_without_sees_none(site: Site) -> None:
    pair = await site.healthy("pair", resources=TWO)
    await site.healthy("single", resources=ONE)
    await site.healthy("none")
    assert [gpus_of(site, name) for name in ("pair", "single", "none")] == ["0,1", "2", ""]
    assert site.variables("pair")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    seen = await site.launcher.poll("pair", pair)
    assert seen.placement == "pair runs on GPU 0, 1 (NVIDIA L4)."
    assert seen.notices == ()


async def test_a_worker_waits_for_gpus_until_another_ends_also_after_a_restart_of_the_platform(site: Site) -> None:
    first = await site.healthy("first", resources=TWO)
    await site.healthy("second", resources=ONE)
    adopting = site.another()
    with pytest.raises(StartPending, match=r"requests 2 GPUs\. This host has 4, 1 of them free"):
        await adopting.start(spec("third", resources=TWO))
    assert not site.folder("third").exists()
    await adopting.stop("first", first, grace_s=0)
    await seen_as(adopting, "first", first, WorkerPhase.EXITED)
    third = await adopting.start(spec("third", resources=TWO))
    (site.folder("third") / "healthy").touch()
    await seen_as(adopting, "third", third, WorkerPhase.READY)  # its process has its own variables by then
    assert gpus_of(site, "third") == "0,1"
    await adopting.close()


async def test_the_gpus_of_a_worker_are_free_only_when_all_its_processes_have_ended(site: Site) -> None:
    handle = await site.healthy("first", resources=ResourceRequest(num_cpus=1, num_accelerators=4), child=True)
    os.kill(site.process("first").pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not await site.launcher.known()

    await until(is_gone)
    with pytest.raises(StartPending, match="0 of them free"):
        await site.launcher.start(spec("second", resources=ONE))
    await seen_as(site.launcher, "first", handle, WorkerPhase.EXITED)  # which ends its child

    async def is_free() -> bool:
        try:
            await site.launcher.start(spec("second", resources=ONE))
        except StartPending:
            return False
        return True

    await until(is_free)


async def test_a_component_that_requires_more_gpus_than_the_host_has_is_refused(site: Site) -> None:
    with pytest.raises(InsufficientCapacity, match=r"requests 5 GPUs; this host has 4\."):
        await site.launcher.start(
            spec("w", resources=ResourceRequest(num_cpus=1, num_accelerators=5, is_at_most=False))
        )


async def test_workers_share_a_gpu_if_allowed(tmp_path: Path) -> None:
    site = local_site(tmp_path, replace(HOST, gpus=GPUS[:1], workers_per_gpu=2))
    await site.healthy("first", resources=ONE)
    await site.healthy("second", resources=ONE)
    assert [gpus_of(site, name) for name in ("first", "second")] == ["0", "0"]
    with pytest.raises(StartPending, match="This host has 1, 0 of them free"):
        await site.launcher.start(spec("third", resources=ONE))
    await site.end()


async def test_a_host_without_gpus_leaves_the_variable_alone(tmp_path: Path) -> None:
    site = local_site(tmp_path, HostResources(num_cores=8))
    await site.healthy("w", resources=ONE)
    assert "CUDA_VISIBLE_DEVICES" not in site.variables("w")
    await site.end()


async def test_a_second_worker_gets_its_share_of_the_cores_and_all_once_the_first_is_stopped(site: Site) -> None:
    first = await site.healthy("first")
    await site.healthy("second")
    assert (cores_of(site, "first"), cores_of(site, "second")) == (8, 4)
    await site.launcher.start(replace(spec("limited"), threads=7, limits=Limits(num_cpus=7.0)))
    assert cores_of(site, "limited") == 7
    for name, handle in (await site.launcher.known()).items():
        await site.launcher.stop(name, handle, grace_s=60)
    await site.healthy("last")
    assert cores_of(site, "last") == 8, "workers that are being stopped are not counted"
    assert first.facts["num_cores"] == 8


async def test_a_worker_with_limits_is_moved_into_a_control_group(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.subtree_control").write_text("cpu memory")
    site = local_site(tmp_path, replace(HOST, cgroup=group))
    await site.launcher.start(replace(spec("w"), limits=Limits(num_cpus=0.5)))
    assert (group / "worker-w" / "cpu.max").read_text() == "50000 100000"
    assert (group / "worker-w" / "cgroup.procs").read_text() == str(site.process("w").pid)
    await site.end()
