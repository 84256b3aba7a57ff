"""Platforms on Ray clusters with the real small model: a node lost under load, the platform killed, one of its own."""

import json
from pathlib import Path

import msgspec
import pytest

from headrace.core.processes import ProcessId, is_running, is_session_running, process_id
from tests.platform.host.running import IMAGE, Running, until, up
from tests.platform.host.test_end_to_end import answered, delete_endpoint, make_endpoint
from tests.platform.host.test_faults import Load, described

from .listening import descendants
from .ray_nodes import NODE_CPUS, Nodes
from .sites import LONG

pytest.importorskip("ray")
pytestmark = LONG


def handles(running: Running) -> dict[str, dict[str, object]]:
    """Worker → its handle, of those that run."""
    found = {path.parent: json.loads(path.read_text()) for path in running.folder.glob("workers/*/handle.json")}
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
    finally:
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
def test_its_own_cluster_survives_a_killed_platform_and_ends_with_a_stopped_one(
    tmp_path: Path, smollm2_path: Path
) -> None:
    folder, env = tmp_path / "data", {"HEADRACE_HOME": str(tmp_path / "home")}
    running = up(folder, "--cluster", "ray", env=env)
    try:
        make_endpoint(running, "own", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
        running.until_in_service("own")
        assert answered(running, "own")
        before, state = handles(running), (folder / "ray" / "state.json").read_bytes()
        assert {handle["launcher"] for handle in before.values()} == {"ray"}
    finally:
        running.close()
        running.kill()
    head = msgspec.convert(json.loads(state)["process"], ProcessId)
    assert is_running(head)
    following = up(folder, "--cluster", "ray", env=env)
    try:
        until(lambda: answered(following, "own"), "the endpoint answers")
        assert handles(following) == before, "adopted"
        assert (folder / "ray" / "state.json").read_bytes() == state
        processes = [process for pid in descendants(head.pid) if (process := process_id(pid)) is not None]
    finally:
        assert following.stop() == 0, following.log()
    assert not [process for process in (head, *processes) if is_running(process)]
    assert not (folder / "ray").exists()


def test_a_platform_stopped_before_its_cluster_is_ready_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / "ray" / "state.json"
    running = up(tmp_path / "data", "--cluster", "ray")
    until(lambda: path.exists() and json.loads(path.read_bytes())["process"], "Ray is being started")
    head = msgspec.convert(json.loads(path.read_bytes())["process"], ProcessId)
    assert running.stop() == 0, running.log()
    assert not is_session_running(head)
    assert not path.parent.exists()
