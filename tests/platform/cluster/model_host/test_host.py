"""A model host: loads for requests, unloads for memory."""

import asyncio
from pathlib import Path

import pytest

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.worker_files import worker_files
from headrace.testing.fake_launcher import fails_after

from .hosts import LIMIT_BYTES, MODEL_BYTES, HostScene, model


@pytest.fixture
def scene() -> HostScene:
    return HostScene()


async def use(host: ModelHost, scene: HostScene, name: str) -> None:
    scene.clock.advance(1.0)
    host.register(model(name))
    async with host.lease(name):
        pass


async def lease(host: ModelHost, name: str) -> None:
    async with host.lease(name):
        pass


async def settled(host: ModelHost) -> None:
    while host._tasks:
        await asyncio.sleep(0)


async def test_requests_for_a_model_wait_for_one_load(scene: HostScene) -> None:
    host = scene.host()
    host.register(model("a"))
    timings = []

    async def request() -> None:
        async with host.lease("a") as lease:
            timings.append(lease.timing)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(request())
    assert len(scene.machine.started) == 1
    assert sum(timing is not None and timing.load is not None for timing in timings) == 1, "one reports the load"
    async with host.lease("a") as lease:
        assert lease.timing is None, "it did not wait"
    await host.close()


async def test_the_least_recently_used_model_leaves(scene: HostScene) -> None:
    host = scene.host()
    for name in ("a", "b", "c", "a", "d"):
        await use(host, scene, name)
    await settled(host)
    assert scene.running() == ["a", "c", "d"]
    assert scene.ended == [scene.machine.started[1]], "its log can be kept"
    with pytest.raises(ModelUnavailable, match="not registered") as refused:
        async with host.lease("b"):
            pass
    assert refused.value.reason == "unknown", "it is read again from the object storage"
    await host.close()


async def test_a_busy_model_leaves_after_its_requests_and_takes_no_new_ones(scene: HostScene) -> None:
    host = scene.host()
    for name in ("a", "b", "c"):
        host.register(model(name))
    async with host.lease("a"), host.lease("b"), host.lease("c"):
        host.register(model("d"))
        waiting = asyncio.create_task(use(host, scene, "d"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert [found.name for found, _ in host.loaded] == ["b", "c"]
    await waiting
    await settled(host)
    assert sorted(scene.running()) == ["b", "c", "d"]
    await host.close()


async def test_a_model_that_is_not_cached_leaves_after_its_last_request(scene: HostScene) -> None:
    host = scene.host()
    host.register(model("a", ttl_s=0.0))
    async with host.lease("a"):
        async with host.lease("a"):
            pass
        assert scene.running() == ["a"]
    await settled(host)
    assert scene.running() == []
    await host.close()


async def test_measured_memory_decides_not_the_estimate(scene: HostScene) -> None:
    host = scene.host()
    scene.memory_bytes |= {"small": 1, "large": LIMIT_BYTES - 1, "huge": LIMIT_BYTES + 1}
    for name in ("b", "small", "large"):
        await use(host, scene, name)
    await settled(host)
    assert sorted(scene.running()) == ["large", "small"], "what was used before leaves once the new one is measured"
    with pytest.raises(ModelUnavailable, match="all models together may take 300 MiB") as refused:
        await use(host, scene, "huge")
    assert refused.value.reason == "no-memory"
    await settled(host)
    assert "huge" not in scene.running()
    await host.close()


async def test_the_peak_of_a_load_is_reserved_for_the_next_one(scene: HostScene) -> None:
    scene.peak_bytes = 2 * MODEL_BYTES
    host = scene.host()
    for name in "ab":
        await use(host, scene, name)
    await host.unload("b")
    await use(host, scene, "c")
    await settled(host)
    assert sorted(scene.running()) == ["a", "c"]
    await use(host, scene, "b")  # its load takes what two models take
    await settled(host)
    assert sorted(scene.running()) == ["b", "c"]
    await host.close()


async def test_growth_is_measured_after_requests(scene: HostScene) -> None:
    host = scene.host()
    for name in ("a", "b"):
        await use(host, scene, name)
    scene.memory_bytes["b"] = LIMIT_BYTES
    scene.clock.advance(100.0)
    async with host.lease("b"):
        pass
    await settled(host)
    assert scene.running() == ["b"]
    await host.close()


async def test_a_load_that_fails_tells_all_that_wait_and_is_tried_again(scene: HostScene) -> None:
    host = scene.host()
    scene.machine.script = lambda _spec: fails_after(message="No such file.", ended_in=WorkerPhase.FETCHING)
    host.register(model("a"))
    for _ in range(2):
        host.register(model("a"))
        with pytest.raises(ModelUnavailable, match=r"No such file\.") as refused:
            async with host.lease("a"):
                pass
        assert refused.value.reason == "not-fetched"
        await settled(host)
    assert len(scene.machine.started) == 2
    assert scene.machine.workers == {}
    await host.close()


async def test_a_request_waits_for_a_load_no_longer_than_it_may(scene: HostScene) -> None:
    host = scene.host()
    scene.machine.waits_for = "a GPU"
    host.register(model("a"))
    with pytest.raises(ModelUnavailable, match="still being loaded") as refused:
        async with host.lease("a", wait_s=0.05):
            pass
    assert refused.value.reason == "not-ready"
    scene.machine.waits_for = ""
    async with host.lease("a"):
        pass
    assert len(scene.machine.started) == 1, "the load went on"
    await host.close()


async def test_a_model_whose_process_has_ended_is_loaded_again(scene: HostScene) -> None:
    host = scene.host()
    await use(host, scene, "a")
    scene.machine.crash(scene.machine.started[0])
    await host.check("a")
    async with host.lease("a"):
        pass
    assert len(scene.machine.started) == 2
    assert await host.unload("a")
    assert not await host.unload("a")
    await host.close()


async def test_a_pinned_model_stays_and_refuses_what_cannot_fit_beside_it(scene: HostScene) -> None:
    host = scene.host(is_forgetting=False)
    scene.memory_bytes |= {"pinned": 200 << 20, "large": 101 << 20}
    host.register(model("pinned", is_pinned=True, ttl_s=0.0))
    for name in ("pinned", "a", "b"):
        if name != "pinned":
            host.register(model(name))
        scene.clock.advance(1.0)
        await lease(host, name)
    await settled(host)
    assert sorted(scene.running()) == ["b", "pinned"], "neither its age nor its time to live unloads it"
    host.keep("pinned", 0.0)
    host.register(model("large"))
    for _ in range(2):  # when it has been measured, and then at once
        num_started = len(scene.machine.started)
        with pytest.raises(ModelUnavailable, match="of which pinned models take 200 MiB") as refused:
            await lease(host, "large")
        assert refused.value.reason == "no-memory"
        await settled(host)
    assert len(scene.machine.started) == num_started
    assert scene.running() == ["pinned"]
    assert "pinned models" in host.status("large").error
    assert host.retire("pinned")
    await settled(host)
    assert scene.running() == []
    await host.close()


async def test_an_idle_model_is_unloaded_after_its_time_to_live(scene: HostScene) -> None:
    host = scene.host(is_forgetting=False)
    host.register(model("a", ttl_s=0.01))
    async with host.lease("a"):
        gone = host._entries["a"].gone
        assert host.status("a").expires_in_s == 0.01, "not while it is used"
    scene.clock.advance(1.0)
    await gone.wait()
    assert (scene.running(), host.status("a").value) == ([], "unloaded")
    async with host.lease("a"):
        host.keep("a", None)
    scene.clock.advance(10.0)
    assert (host.status("a").value, host.status("a").expires_in_s) == ("loaded", None)
    host.keep("a", 1.0)
    await settled(host)
    assert scene.running() == [], "it has been idle for longer"
    await host.close()


async def test_a_model_whose_only_client_has_gone_expires_once_it_is_loaded(scene: HostScene) -> None:
    host = scene.host(is_forgetting=False)
    scene.machine.waits_for = "a GPU"
    host.register(model("a", ttl_s=0.0))
    waiting = asyncio.create_task(lease(host, "a"))
    while not host.processes:
        await asyncio.sleep(0)
    assert host.status("a").value == "loading"
    assert not host.retire("a"), "a load is not interrupted"
    waiting.cancel()
    scene.machine.waits_for = ""
    await settled(host)
    assert (len(scene.machine.started), scene.running()) == (1, [])
    await host.close()


async def test_any_name_of_a_model_is_a_folder_of_its_worker(scene: HostScene) -> None:
    host = scene.host(is_forgetting=False)
    for name in ("publisher/repository/a.Q4", "../../etc", "é" * 300, "a:latest"):
        host.register(model(name))
        await lease(host, name)
    for worker in scene.machine.started:
        assert worker_files(Path("/models"), worker).folder.parent == Path("/models")
    await host.close()


async def test_requests_that_wait_for_an_unload_load_the_model_again(scene: HostScene) -> None:
    host = scene.host(is_forgetting=False)
    host.register(model("a"))
    async with host.lease("a"):
        assert host.retire("a")
        assert host.status("a").value == "unloading"
        waiting = asyncio.create_task(lease(host, "a"))
        await asyncio.sleep(0)
    await waiting
    assert len(scene.machine.started) == 2
    await host.close()
