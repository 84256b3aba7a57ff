"""The contract of launchers: the same tests for workers on this machine, another one, and a Ray cluster."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from headrace.core.processes import is_running
from headrace.platform.cluster.launcher import Handle, LaunchFailed, WorkerPhase, WorkerSpec
from tests.waiting import WAIT_S

from .sites import LONG, Site, local_site, machines_site, ray_site, seen_as, spec, started, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), LONG]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "machines", "ray_nodes"])
async def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "local":
        made = local_site(folder)
    elif request.param == "machines":
        made = machines_site(folder)
    else:
        made = ray_site(folder, request.getfixturevalue("nodes").address)
    yield made
    await made.end()


async def test_a_worker_is_ready_when_ping_says_so_and_unhealthy_when_it_does_not_any_more(site: Site) -> None:
    handle = await started(site.launcher, spec("pinged"))
    folder = site.folder("pinged")
    await until(lambda: asyncio.to_thread((folder / "listening").exists))
    assert (await site.launcher.poll("pinged", handle)).phase is WorkerPhase.STARTING
    (folder / "healthy").touch()
    assert (await site.launcher.poll("pinged", handle)).phase is WorkerPhase.READY
    (folder / "healthy").unlink()
    assert (await site.launcher.poll("pinged", handle)).phase is WorkerPhase.UNHEALTHY
    (folder / "healthy").touch()
    assert (await site.launcher.poll("pinged", handle)).phase is WorkerPhase.READY


async def test_a_fetching_worker_is_observed_with_its_notices(site: Site) -> None:
    handle = await started(site.launcher, spec("fetching", fetch=True))
    seen = await seen_as(site.launcher, "fetching", handle, WorkerPhase.FETCHING)
    assert seen.notices == ("a notice",)


async def test_failed_workers_are_observed_with_exit_code_reason_and_log(site: Site) -> None:
    cases = {
        "loud": (["loading", "Error: the model is broken.", "bye"], "the model is broken."),
        "twice": (["Error: first", "Error: last"], "last"),
        "shy": (["nothing to say"], ""),
        "mute": ([], ""),
    }

    async def fail(name: str, lines: list[str], message: str) -> None:
        handle = await started(site.launcher, spec(name, print=lines, exit=3))
        seen = await seen_as(site.launcher, name, handle, WorkerPhase.EXITED)
        assert (seen.exit_code, seen.message) == (3, message)
        assert await site.launcher.poll(name, handle) == seen
        assert site.said(name) == lines
        assert [(end["exit_code"], end["level"]) for end in site.ends(name)] == [(3, "error")]

    await asyncio.gather(*(fail(name, *case) for name, case in cases.items()))
    assert not cases.keys() & (await site.launcher.known()).keys()


async def test_the_error_line_of_an_earlier_worker_of_the_name_is_ignored(site: Site) -> None:
    old = await started(site.launcher, spec("again", print=["Error: old"], exit=2))
    await seen_as(site.launcher, "again", old, WorkerPhase.EXITED)
    new = await started(site.launcher, spec("again", print=["fine"], exit=1))
    seen = await seen_as(site.launcher, "again", new, WorkerPhase.EXITED)
    assert (seen.exit_code, seen.message) == (1, "")
    assert (await site.launcher.poll("again", old)).phase is WorkerPhase.EXITED
    assert site.said("again") == ["Error: old", "fine"]


async def test_a_kill_9_of_a_worker_is_observed_as_its_signal_and_ends_its_children(site: Site) -> None:
    handle = await site.healthy("killed", child=True)
    child = site.child("killed")
    os.kill(site.process("killed").pid, signal.SIGKILL)
    seen = await seen_as(site.launcher, "killed", handle, WorkerPhase.EXITED)
    assert seen.exit_code == -signal.SIGKILL
    (end,) = site.ends("killed")
    assert (end["signal"], end["cause"]) == ("SIGKILL", seen.cause)
    assert end.get("phase") in ("ready", None), "only the platform pings a worker on another node"
    await until(lambda: asyncio.to_thread(lambda: not is_running(child)))


async def test_a_stop_ends_a_worker_and_is_idempotent(site: Site) -> None:
    handle = await site.healthy("stopped")
    await site.launcher.stop("stopped", handle, grace_s=WAIT_S)
    await site.launcher.stop("stopped", handle, grace_s=WAIT_S)
    assert (await seen_as(site.launcher, "stopped", handle, WorkerPhase.EXITED)).exit_code == -signal.SIGTERM
    await site.launcher.stop("stopped", handle, grace_s=WAIT_S)


async def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace_with_its_children(site: Site) -> None:
    handle = await site.healthy("deaf", deaf=True, child=True)
    child, process = site.child("deaf"), site.process("deaf")
    await site.launcher.stop("deaf", handle, grace_s=WAIT_S)
    assert is_running(process)
    await site.launcher.stop("deaf", handle, grace_s=0.05)
    assert (await seen_as(site.launcher, "deaf", handle, WorkerPhase.EXITED)).exit_code == -signal.SIGKILL
    await until(lambda: asyncio.to_thread(lambda: not is_running(child)))


async def test_workers_started_together_have_distinct_ports_and_starting_is_idempotent(site: Site) -> None:
    names = {f"one-of-{number}" for number in range(5)}
    handles = await asyncio.gather(*(started(site.launcher, spec(name)) for name in names))
    assert len({handle.url for handle in handles}) == 5
    assert names <= (await site.launcher.known()).keys()
    assert await asyncio.gather(*(site.launcher.start(spec(name)) for name in names)) == handles


async def test_the_next_platform_process_adopts_the_workers(site: Site) -> None:
    handle = await site.healthy("adopted")
    second = site.another()
    assert (await second.known())["adopted"] == handle
    assert (await second.poll("adopted", handle)).phase is WorkerPhase.READY
    assert await second.start(spec("adopted")) == handle
    (site.folder("adopted") / "healthy").unlink()
    await seen_as(second, "adopted", handle, WorkerPhase.UNHEALTHY)
    await second.stop("adopted", handle, grace_s=WAIT_S)
    await seen_as(second, "adopted", handle, WorkerPhase.EXITED)
    assert "adopted" not in await second.known()
    await second.close()


async def test_only_exited_workers_are_forgotten_with_their_folders(site: Site) -> None:
    handle = await site.healthy("forgotten", print=["hello"])
    await site.launcher.forget("forgotten")
    assert (await site.launcher.poll("forgotten", handle)).phase is WorkerPhase.READY
    assert site.said("forgotten") == ["hello"]
    os.kill(site.process("forgotten").pid, signal.SIGKILL)
    await seen_as(site.launcher, "forgotten", handle, WorkerPhase.EXITED)
    await site.launcher.forget("forgotten")
    await site.launcher.forget("forgotten")
    assert site.said("forgotten") == []
    assert not site.folder("forgotten").exists()
    assert (await site.launcher.poll("forgotten", handle)).phase is WorkerPhase.EXITED


async def test_a_handle_is_serialisable_and_its_repr_has_no_token(site: Site) -> None:
    handle = await started(site.launcher, spec("noted"))
    written = json.loads(json.dumps(msgspec.to_builtins(handle)))
    assert msgspec.convert(written, Handle) == handle
    assert handle.launcher == site.launcher.name
    assert not handle.token or handle.token not in repr(handle)


@pytest.mark.parametrize("name", ["../w", "a/b", "", ".hidden", "x" * 300])
async def test_unsafe_names_are_refused(site: Site, name: str) -> None:
    with pytest.raises(LaunchFailed, match="is not a worker name"):
        await site.launcher.start(spec(name))


async def test_unencodable_text_is_refused(site: Site) -> None:
    with pytest.raises(LaunchFailed, match="cannot be started"):
        await site.launcher.start(WorkerSpec(name="unwritable", environment={"A": "\ud800"}))
