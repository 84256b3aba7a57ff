"""The Ray head node that the platform starts on this machine."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.core.processes import ProcessId
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.cluster.ray_head import HeadFailed, RayHead
from headrace.platform.cluster.ray_launcher import RayLauncher
from headrace.platform.cluster.ray_messages import Connection
from tests.waiting import WAIT_S

from .listening import descendants, listening
from .sites import LONG, STUB, ray_launcher, seen_as, spec, started, until

pytest.importorskip("ray")
pytestmark = LONG

SECRET = "sesame"


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayHead]:
    made = head_in(tmp_path)
    yield made
    made.end()


@pytest.fixture
async def launcher(head: RayHead, tmp_path: Path) -> AsyncIterator[RayLauncher]:
    (tmp_path / "workers").mkdir()
    made = RayLauncher(
        tmp_path / "workers",
        connection=Connection(address="ray", namespace="n", answer_s=WAIT_S),
        environment=os.environ,
        command=STUB,
        node_folder=str(tmp_path / "node"),
        head=head,
        connect_s=WAIT_S,  # loading Ray alone takes long on a busy machine
    )
    yield made
    await made.close()


def head_in(folder: Path) -> RayHead:
    return RayHead(folder / "ray", environment={**os.environ, "AWS_SECRET_ACCESS_KEY": SECRET})


def state_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ray" / "state.json").read_text())
    return found


async def test_a_head_is_private_restarts_after_its_death_and_leaves_nothing_behind(
    head: RayHead, launcher: RayLauncher, tmp_path: Path
) -> None:
    first = await started(launcher, spec("first"))
    state = state_in(tmp_path)
    again = head_in(tmp_path)
    again.start(timeout_s=WAIT_S)
    assert state_in(tmp_path) == state, "the next platform takes the one that runs"
    processes = processes_of(state)
    assert len(processes) > 3
    look_private(state, processes, tmp_path)
    await stranger_is_refused(head, tmp_path)

    for pid in processes:
        with suppress(ProcessLookupError):  # it ended with one that was killed before
            os.kill(pid, signal.SIGKILL)
    assert (await seen_as(launcher, "first", first, WorkerPhase.EXITED)).message
    second = await started(launcher, spec("second"))
    assert {*await launcher.known()} == {"second"}
    await launcher.stop("second", second, grace_s=0)
    await seen_as(launcher, "second", second, WorkerPhase.EXITED)

    processes = processes_of(state_in(tmp_path))
    assert again.end()
    assert not head.is_alive()
    assert {pid for pid in processes if lives(pid)} == set()
    assert not (tmp_path / "ray").exists()
    assert not Path(str(state["sessions"])).exists()
    assert not head.end()


def look_private(state: dict[str, Any], processes: set[int], folder: Path) -> None:
    """Other users have no access, no usage is reported, and Ray sees no secret of the platform."""
    assert (folder / "ray" / "token").stat().st_mode & 0o777 == 0o600
    assert Path(str(state["sessions"])).stat().st_mode & 0o777 == 0o700
    variables = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in processes}
    assert b"RAY_USAGE_STATS_ENABLED=0" in variables[state["process"]["pid"]].split(b"\0"), "and all that it starts"
    assert not any(SECRET.encode() in text for text in variables.values())
    assert "Usage stats collection is disabled" in (folder / "ray" / "log.txt").read_text()
    ports = listening(processes)
    assert ports
    assert [address for address, _ in ports if not address.is_loopback] == []


async def stranger_is_refused(head: RayHead, folder: Path) -> None:
    """A client without the token."""
    other = folder / "other"
    other.mkdir()
    (other / "ray.log").touch()
    stranger = ray_launcher(other, head.address, connect_s=WAIT_S)
    asking = asyncio.create_task(stranger.known())
    await until(lambda: asyncio.to_thread(lambda: "InvalidAuthToken" in (other / "ray.log").read_text()))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await stranger.close()


def processes_of(state: dict[str, Any]) -> set[int]:
    leader = ProcessId(**state["process"])
    return {leader.pid, *descendants(leader.pid)}


def test_a_head_that_cannot_start_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ray").touch()
    with pytest.raises(HeadFailed, match=r"Ray cannot be started on this machine: .*exists"):
        head_in(tmp_path).start(timeout_s=WAIT_S)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
