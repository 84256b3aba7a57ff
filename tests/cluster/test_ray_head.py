"""A Ray cluster of our own, on this machine."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster.launcher import Phase
from headrace.cluster.processes import ProcessId, is_running
from headrace.cluster.ray_head import HeadFailed, RayHead
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.ray_link import ClusterAway
from headrace.cluster.ray_messages import Connection

from .listening import descendants, listening
from .sites import STUB, WAIT_S, ray_launcher, seen_as, spec, started

pytest.importorskip("ray")

SECRET = "sesame"


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayHead]:
    made = head_in(tmp_path)
    yield made
    made.end()


def head_in(folder: Path) -> RayHead:
    return RayHead(folder / "ray", environment={**os.environ, "AWS_SECRET_ACCESS_KEY": SECRET})


def state_in(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "ray" / "state.json").read_text())
    return found


async def test_it_is_for_this_user_alone_is_found_again_and_leaves_nothing(head: RayHead, tmp_path: Path) -> None:
    head.start(patience_s=WAIT_S)
    state = state_in(tmp_path)
    again = head_in(tmp_path)
    again.start(patience_s=WAIT_S)
    assert state_in(tmp_path) == state, "the next platform takes the one that runs"
    assert (tmp_path / "ray" / "token").stat().st_mode & 0o777 == 0o600
    assert Path(str(state["sessions"])).stat().st_mode & 0o777 == 0o700

    stranger = ray_launcher(tmp_path, head.address, connect_s=5.0)
    with pytest.raises(ClusterAway):
        await stranger.known()
    await stranger.close()

    leader = ProcessId(**state["process"])  # type: ignore[arg-type]
    processes = {leader.pid, *descendants(leader.pid)}
    assert len(processes) > 3
    for pid in processes:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"RAY_USAGE_STATS_ENABLED=0" in variables
        assert not any(SECRET.encode() in variable for variable in variables)
    assert "Usage stats collection is disabled" in head.log.read_text()
    ports = listening(processes)
    assert ports
    assert [address for address, _ in ports if not address.is_loopback] == []

    assert again.end()
    assert not head.is_alive()
    assert {pid for pid in processes if lives(pid)} == set()
    assert not (tmp_path / "ray").exists()
    assert not Path(str(state["sessions"])).exists()
    assert not head.end()


async def test_one_that_dies_is_started_again_when_it_is_needed(head: RayHead, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    launcher = RayLauncher(
        tmp_path / "workers",
        connection=Connection(address="ray", namespace="n"),
        environment=os.environ,
        command=STUB,
        node_folder=str(tmp_path / "node"),
        head=head,
    )
    first = await started(launcher, spec("first"))
    leader = ProcessId(**state_in(tmp_path)["process"])  # type: ignore[arg-type]
    for pid in (leader.pid, *descendants(leader.pid)):
        os.kill(pid, signal.SIGKILL)
    assert (await seen_as(launcher, "first", first, Phase.EXITED)).message
    second = await started(launcher, spec("second"))
    assert {*await launcher.known()} == {"second"}
    assert not is_running(leader)
    await launcher.stop("second", second, grace_s=0)
    await seen_as(launcher, "second", second, Phase.EXITED)
    await launcher.close()


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    (tmp_path / "ray").touch()
    with pytest.raises(HeadFailed, match=r"Ray cannot be started here: .*exists"):
        head_in(tmp_path).start(patience_s=WAIT_S)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
