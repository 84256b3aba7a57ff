"""Workers as processes: started, watched, stopped, found again."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cluster.launcher import Handle, LaunchFailed, Observation, Phase, WorkerSpec
from headrace.cluster.local import LocalLauncher
from headrace.cluster.processes import ProcessId, is_running, kill_session, process_id
from headrace.cluster.worker_logs import WorkerLogs

STUB = (sys.executable, "-S", "-P", str(Path(__file__).parent / "stub_worker.py"))
WAIT_S = 60.0


def launcher_in(folder: Path, **options: float) -> LocalLauncher:
    environment = {"PATH": os.environ["PATH"]}
    cache = folder / "cache"
    return LocalLauncher(folder / "workers", cache_folder=cache, environment=environment, command=STUB, **options)


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    made = launcher_in(tmp_path)
    yield made
    for handle in (await made.known()).values():
        kill_session(process_of(handle))

    async def nobody_lives() -> bool:
        return not await made.known()

    await until(nobody_lives)
    await made.close()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not await is_so():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.01)


async def seen_as(launcher: LocalLauncher, name: str, handle: Handle, phase: Phase) -> Observation:
    """Poll until a worker is in a phase."""
    deadline_s = time.monotonic() + WAIT_S
    while (seen := await launcher.poll(name, handle)).phase is not phase:
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(0.01)
    return seen


def spec(name: str = "w", **asked: object) -> WorkerSpec:
    return WorkerSpec(name=name, environment={"STUB": json.dumps(asked)})


def process_of(handle: Handle) -> ProcessId:
    return ProcessId(**handle.facts["process"])


def folder_of(launcher: LocalLauncher, name: str = "w") -> Path:
    return launcher._folder / name


async def healthy(launcher: LocalLauncher, name: str = "w", **asked: object) -> Handle:
    handle = await launcher.start(spec(name, **asked))
    (folder_of(launcher, name) / "healthy").touch()
    await seen_as(launcher, name, handle, Phase.READY)
    return handle


async def test_a_worker_is_ready_when_ping_says_so_and_unhealthy_when_it_does_not_any_more(launcher) -> None:
    handle = await launcher.start(spec())
    folder = folder_of(launcher)
    await until(lambda: asyncio.to_thread((folder / "listening").exists))
    assert (await launcher.poll("w", handle)).phase is Phase.STARTING
    (folder / "healthy").touch()
    assert (await launcher.poll("w", handle)).phase is Phase.READY
    (folder / "healthy").unlink()
    assert (await launcher.poll("w", handle)).phase is Phase.UNHEALTHY
    (folder / "healthy").touch()
    assert (await launcher.poll("w", handle)).phase is Phase.READY


async def test_a_worker_that_fetches_says_so_with_its_notices(launcher) -> None:
    handle = await launcher.start(spec(fetch=True))
    seen = await seen_as(launcher, "w", handle, Phase.FETCHING)
    assert seen.notices == ("a notice",)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["loading", "Error: the model is broken.", "bye"], "the model is broken."),
        (["Error: first", "Error: last"], "last"),
        (["nothing to say"], ""),
        ([], ""),
    ],
)
async def test_a_worker_that_fails_is_seen_with_its_code_and_its_sentence(launcher, lines, message) -> None:
    handle = await launcher.start(spec(print=lines, exit=3))
    seen = await seen_as(launcher, "w", handle, Phase.EXITED)
    assert (seen.exit_code, seen.message) == (3, message)
    assert await launcher.poll("w", handle) == seen
    assert [event.message for event in WorkerLogs(launcher._folder).read("w")] == lines


async def test_the_sentence_of_an_earlier_worker_of_the_name_is_not_taken(launcher) -> None:
    old = await launcher.start(spec(print=["Error: old"], exit=2))
    await seen_as(launcher, "w", old, Phase.EXITED)
    new = await launcher.start(spec(print=["fine"], exit=1))
    seen = await seen_as(launcher, "w", new, Phase.EXITED)
    assert (seen.exit_code, seen.message) == (1, "")
    assert (await launcher.poll("w", old)).phase is Phase.EXITED
    assert [event.message for event in WorkerLogs(launcher._folder).read("w")] == ["Error: old", "fine"]


async def test_kill_9_of_a_worker_is_seen_as_its_signal(launcher) -> None:
    handle = await healthy(launcher)
    os.kill(process_of(handle).pid, signal.SIGKILL)
    assert (await seen_as(launcher, "w", handle, Phase.EXITED)).exit_code == -signal.SIGKILL


async def test_a_stop_ends_a_worker_and_may_be_said_again(launcher) -> None:
    handle = await healthy(launcher)
    await launcher.stop("w", handle, grace_s=WAIT_S)
    await launcher.stop("w", handle, grace_s=WAIT_S)
    assert (await seen_as(launcher, "w", handle, Phase.EXITED)).exit_code == -signal.SIGTERM
    await launcher.stop("w", handle, grace_s=WAIT_S)


async def test_a_worker_that_does_not_stop_is_killed_after_its_grace_with_all_it_started(launcher) -> None:
    handle = await healthy(launcher, deaf=True, child=True)
    child = process_id(int((folder_of(launcher) / "child").read_text()))
    assert child is not None
    await launcher.stop("w", handle, grace_s=WAIT_S)
    assert is_running(process_of(handle))
    await launcher.stop("w", handle, grace_s=0.05)
    assert (await seen_as(launcher, "w", handle, Phase.EXITED)).exit_code == -signal.SIGKILL
    await until(lambda: asyncio.to_thread(lambda: not is_running(child)))


async def test_what_a_worker_left_running_ends_when_its_end_is_seen(launcher) -> None:
    handle = await healthy(launcher, child=True)
    child = process_id(int((folder_of(launcher) / "child").read_text()))
    assert child is not None
    os.kill(process_of(handle).pid, signal.SIGKILL)
    await seen_as(launcher, "w", handle, Phase.EXITED)
    await until(lambda: asyncio.to_thread(lambda: not is_running(child)))


async def test_starting_again_gives_the_living_worker(launcher) -> None:
    handle = await healthy(launcher)
    assert await launcher.start(spec()) == handle


async def test_living_workers_have_ports_of_their_own(launcher) -> None:
    handles = await asyncio.gather(*(launcher.start(spec(f"w{number}")) for number in range(5)))
    assert len({handle.url for handle in handles}) == 5
    assert set(await launcher.known()) == {f"w{number}" for number in range(5)}


async def test_another_life_of_the_platform_adopts_the_workers(launcher, tmp_path) -> None:
    handle = await healthy(launcher)
    await launcher.close()
    second = launcher_in(tmp_path)
    assert await second.known() == {"w": handle}
    assert (await second.poll("w", handle)).phase is Phase.READY
    assert await second.start(spec()) == handle
    (folder_of(launcher) / "healthy").unlink()
    assert (await second.poll("w", handle)).phase is Phase.UNHEALTHY
    await second.stop("w", handle, grace_s=WAIT_S)
    await seen_as(second, "w", handle, Phase.EXITED)
    await second.close()


async def test_a_stop_goes_on_in_another_life_without_a_second_sigterm(launcher, tmp_path) -> None:
    handle = await healthy(launcher, deaf=True)
    await launcher.stop("w", handle, grace_s=WAIT_S)
    due_s = float((folder_of(launcher) / "stopping").read_text())
    await launcher.close()
    second = launcher_in(tmp_path)
    await second.stop("w", handle, grace_s=10 * WAIT_S)
    assert float((folder_of(launcher) / "stopping").read_text()) == due_s
    await second.stop("w", handle, grace_s=0)
    await seen_as(second, "w", handle, Phase.EXITED)
    await second.close()


async def test_an_exited_worker_is_forgotten_with_its_folder_and_a_living_one_is_not(launcher) -> None:
    handle = await healthy(launcher)
    await launcher.forget("w")
    assert folder_of(launcher).is_dir()
    os.kill(process_of(handle).pid, signal.SIGKILL)
    await seen_as(launcher, "w", handle, Phase.EXITED)
    await launcher.forget("w")
    await launcher.forget("w")
    assert not folder_of(launcher).exists()
    assert (await launcher.poll("w", handle)).phase is Phase.EXITED


async def test_a_port_that_was_taken_meanwhile_is_not_called_ready(launcher) -> None:
    handle = await launcher.start(spec(print=["Error: Port in use."], exit=2))
    seen = await seen_as(launcher, "w", handle, Phase.EXITED)
    assert "Port in use" in seen.message


async def test_a_worker_that_listens_and_never_answers_is_not_waited_for(launcher, tmp_path) -> None:
    handle = await launcher.start(spec())
    impatient = launcher_in(tmp_path, ping_timeout_s=0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        elsewhere = replace(handle, url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert (await impatient.poll("w", elsewhere)).phase is Phase.STARTING


async def test_secrets_lie_in_files_of_the_owner_alone(launcher) -> None:
    await healthy(launcher)
    folder = folder_of(launcher)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "worker.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["../w", "a/b", "", ".hidden", "x" * 300])
async def test_names_that_lead_elsewhere_are_refused(launcher, name) -> None:
    with pytest.raises(LaunchFailed, match="cannot name a worker"):
        await launcher.start(spec(name))


async def test_what_cannot_be_started_is_one_sentence(tmp_path) -> None:
    launcher = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path, environment={}, command=("/nowhere/python",))
    with pytest.raises(LaunchFailed, match="No such file"):
        await launcher.start(spec())
    bad_text = WorkerSpec(name="w", environment={"A": "\ud800"})
    with pytest.raises(LaunchFailed, match="cannot be started"):
        await launcher.start(bad_text)
    (tmp_path / "file").touch()
    blocked = LocalLauncher(tmp_path / "file", cache_folder=tmp_path, environment={}, command=STUB)
    with pytest.raises(LaunchFailed, match="Not a directory"):
        await blocked.start(spec())


async def test_broken_files_in_the_folder_of_workers_harm_nobody(launcher) -> None:
    handle = await healthy(launcher)
    for name, content in (("a", b"{"), ("b", b"\xff"), ("c", b'{"launcher": "ray", "url": "", "facts": {}}')):
        (launcher._folder / name).mkdir()
        (launcher._folder / name / "handle.json").write_bytes(content)
    assert await launcher.known() == {"w": handle}
