"""The local launcher, beyond the contract in `test_launcher_contract`."""

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.platform.cluster.launcher import LaunchFailed, WorkerPhase
from headrace.platform.cluster.local import LocalLauncher
from tests.waiting import WAIT_S

from .sites import STUB, Site, local_site, seen_as, spec


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = local_site(tmp_path)
    yield made
    await made.end()


async def test_a_stop_continues_in_the_next_process_without_a_second_sigterm(site: Site) -> None:
    handle = await site.healthy("w", deaf=True)
    await site.launcher.stop("w", handle, grace_s=WAIT_S)
    due_s = float((site.folder("w") / "stopping").read_text())
    await site.launcher.close()
    second = site.another()
    await second.stop("w", handle, grace_s=10 * WAIT_S)
    assert float((site.folder("w") / "stopping").read_text()) == due_s
    await second.stop("w", handle, grace_s=0)
    await seen_as(second, "w", handle, WorkerPhase.EXITED)
    await second.close()


async def test_a_worker_that_accepts_but_never_answers_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    handle = await site.launcher.start(spec("w"))
    folder = tmp_path / "workers"
    impatient = LocalLauncher(folder, cache_folder=tmp_path, environment={}, command=STUB, ping_timeout_s=0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        elsewhere = replace(handle, url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert (await impatient.poll("w", elsewhere)).phase is WorkerPhase.STARTING


async def test_files_with_secrets_are_readable_by_their_owner_only(site: Site) -> None:
    await site.healthy("w")
    assert site.folder("w").stat().st_mode & 0o777 == 0o700
    assert (site.folder("w") / "worker.json").stat().st_mode & 0o777 == 0o600


async def test_a_failed_start_is_one_clear_error(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path, environment={}, command=("/nowhere/python",))
    with pytest.raises(LaunchFailed, match="No such file"):
        await launcher.start(spec("w"))
    (tmp_path / "file").touch()
    blocked = LocalLauncher(tmp_path / "file", cache_folder=tmp_path, environment={}, command=STUB)
    with pytest.raises(LaunchFailed, match="Not a directory"):
        await blocked.start(spec("w"))


async def test_broken_files_in_the_folder_of_workers_are_ignored(site: Site, tmp_path: Path) -> None:
    handle = await site.healthy("w")
    for name, content in (("a", b"{"), ("b", b"\xff"), ("c", b'{"launcher": "ray", "url": "", "facts": {}}')):
        (tmp_path / "workers" / name).mkdir()
        (tmp_path / "workers" / name / "handle.json").write_bytes(content)
    assert await site.launcher.known() == {"w": handle}
