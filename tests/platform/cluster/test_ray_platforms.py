"""Platforms on Ray clusters with the real small model: a node lost under load, the platform killed, one of its own."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.core.processes import ProcessId, is_running, is_session_running, process_id
from tests.platform.host.endpoints import answered, delete_endpoint, make_endpoint
from tests.platform.host.running import IMAGE, Running, until, up
from tests.platform.host.test_faults import Load, described
from tests.waiting import WAIT_S

from . import sites
from .listening import descendants, listening
from .ray_nodes import LOOPBACK, NODE_CPUS, Nodes
from .sites import LONG, ray_launcher

pytest.importorskip("ray")
pytestmark = LONG

SECRET = "sesame"


def handles(running: Running) -> dict[str, dict[str, object]]:
    """Worker → its handle, of those that run."""
    found = {}
    for path in running.folder.glob("workers/*/handle.json"):
        with suppress(FileNotFoundError):  # its folder is being removed
            found[path.parent] = json.loads(path.read_text())
    return {folder.name: handle for folder, handle in found.items() if not (folder / "report.json").exists()}


@pytest.mark.model
def test_a_lost_node_and_a_killed_platform_lose_no_endpoint(nodes: Nodes, tmp_path: Path, smollm2_path: Path) -> None:
    env = {"HEADRACE_HOME": str(tmp_path / "home")}
    running = up(tmp_path / "data", "--cluster", nodes.address, env=env)
    try:
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}}
        make_endpoint(running, "spread", container, InitialInstanceCount=2, InstanceType="ml.c5.large")
        running.until_in_service("spread")
        before = handles(running)
        assert len({handle["facts"]["node"] for handle in before.values()}) == 2, "one on each node"
        with Load(running, "spread", 4).running() as load:
            load.more(6)
            lost, _ = before.values()
            nodes.lose(lost["facts"]["node"])
            load.more(6)
            until(lambda: len(handles(running).keys() - before.keys()) == 1, "another one was started")
            until(
                lambda: described(running, "spread")["ProductionVariants"][0]["CurrentInstanceCount"] == 2, "both serve"
            )
            load.more(6)
        assert set(load.outcomes) <= {"answered", "424", "429"}, load.outcomes
        assert load.outcomes.total() - load.num_answered <= 4, load.outcomes
        after = handles(running)
        assert lost["facts"]["node"] not in {handle["facts"]["node"] for handle in after.values()}
        logs = running.client("logs").filter_log_events(logGroupName="/aws/sagemaker/Endpoints/spread")["events"]
        assert any("server.ready" in event["message"] for event in logs)
    except BaseException:
        running.stop()  # its workers would outlive a killed platform, and occupy the nodes of the next test
        raise
    running.close()
    running.kill()
    following = up(tmp_path / "data", "--cluster", nodes.address, env=env)
    try:
        until(lambda: answered(following, "spread"), "the endpoint answers")
        assert handles(following) == after, "adopted"
        delete_endpoint(following, "spread")
    finally:
        assert following.stop() == 0, following.log()
        nodes.add(num_cpus=NODE_CPUS)


@pytest.mark.model
def test_its_own_cluster_is_private_survives_a_killed_platform_restarts_and_ends_with_a_stopped_one(
    tmp_path: Path, smollm2_path: Path
) -> None:
    folder = tmp_path / "data"
    env = {"HEADRACE_HOME": str(tmp_path / "home"), "AWS_SECRET_ACCESS_KEY": SECRET}
    running = up(folder, "--cluster", "ray", env=env)
    try:
        make_endpoint(running, "own", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
        running.until_in_service("own")
        assert answered(running, "own")
        before, state = handles(running), state_in(folder)
        assert {handle["launcher"] for handle in before.values()} == {"ray"}
        processes = processes_of(state)
        assert len(processes) > 3
        look_private(state, processes, folder)
    finally:
        running.close()
        running.kill()
    assert is_running(msgspec.convert(state["process"], ProcessId))
    following = up(folder, "--cluster", "ray", env=env)
    try:
        until(lambda: answered(following, "own"), "the endpoint answers")
        assert handles(following) == before, "adopted"
        assert state_in(folder) == state
        asyncio.run(stranger_is_refused(f"{LOOPBACK}:{state['port']}", tmp_path / "other"))
        for pid in processes:
            with suppress(ProcessLookupError):  # it ended with one that was killed before
                os.kill(pid, signal.SIGKILL)
        until(lambda: handles(following).keys() - before.keys(), "another worker was started")
        until(lambda: answered(following, "own"), "it answers")
        last = [found for pid in processes_of(state_in(folder)) if (found := process_id(pid)) is not None]
        assert len(last) > 3
    finally:
        assert following.stop() == 0, following.log()
    assert not [process for process in last if is_running(process)]
    assert not (folder / "ray").exists()
    assert not Path(str(state["sessions"])).exists()


def state_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ray" / "state.json").read_text())
    return found


def processes_of(state: dict[str, Any]) -> set[int]:
    leader = msgspec.convert(state["process"], ProcessId)
    return {leader.pid, *descendants(leader.pid)}


def look_private(state: dict[str, Any], processes: set[int], folder: Path) -> None:
    """Other users have no access, no usage is reported, and neither Ray nor a worker sees a secret of the platform."""
    assert (folder / "ray" / "token").stat().st_mode & 0o777 == 0o600
    assert Path(str(state["sessions"])).stat().st_mode & 0o777 == 0o700
    variables = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in processes}
    assert b"RAY_USAGE_STATS_ENABLED=0" in variables[state["process"]["pid"]].split(b"\0"), "and all that it starts"
    assert not any(SECRET.encode() in text for text in variables.values())
    assert "Usage stats collection is disabled" in (folder / "ray" / "log.txt").read_text()
    ports = listening(processes)
    assert ports
    assert [address for address, _ in ports if not address.is_loopback] == []


async def stranger_is_refused(address: str, folder: Path) -> None:
    """A client without the token."""
    folder.mkdir()
    (folder / "ray.log").touch()
    stranger = ray_launcher(folder, address, connect_s=WAIT_S)
    asking = asyncio.create_task(stranger.known())
    await sites.until(lambda: asyncio.to_thread(lambda: "InvalidAuthToken" in (folder / "ray.log").read_text()))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await stranger.close()


def test_a_platform_stopped_before_its_cluster_is_ready_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / "ray" / "state.json"
    running = up(tmp_path / "data", "--cluster", "ray")
    until(lambda: path.exists() and json.loads(path.read_bytes())["process"], "Ray is being started")
    head = msgspec.convert(json.loads(path.read_bytes())["process"], ProcessId)
    assert running.stop() == 0, running.log()
    assert not is_session_running(head)
    assert not path.parent.exists()
