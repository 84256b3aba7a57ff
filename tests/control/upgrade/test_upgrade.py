"""A store written by an older Headrace opens, is described as before, and its endpoints come up."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cluster.launcher import Handle, WorkerSpec
from headrace.control.api.context import CallContext
from headrace.platform.operations import OPERATIONS
from headrace.state.routes import ROUTE
from headrace.state.sql import SqlStore, open_store
from headrace.testing.fake_launcher import FakeMachine, FakeWorker, ManualClock, ready_after
from tests.control.support import AWS_SCOPE, ListedLogs, reconciler_of

HERE = Path(__file__).parent
DESCRIBED: dict[str, Any] = json.loads((HERE / "described_1.json").read_text())
NOW_S = DESCRIBED.pop("now_s")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((HERE / "store_1.sql").read_text())
    return path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def store(database: Path, clock: ManualClock) -> Iterator[SqlStore]:
    with contextlib.closing(open_store(database, now_s=clock)) as opened:
        yield opened


def ask(store: SqlStore, now_s: float, call: str) -> dict[str, Any]:
    service, operation, params = call.split(" ", 2)
    context = CallContext(
        store=store, logs=ListedLogs(), aws_scope=AWS_SCOPE, identity_arn="", now_s=now_s, request_id="r"
    )
    return OPERATIONS[service, operation](context, json.loads(params))


@pytest.mark.parametrize("call", DESCRIBED)
def test_everything_is_described_as_before(store: SqlStore, call: str) -> None:
    assert ask(store, NOW_S, call) == DESCRIBED[call]


@pytest.mark.parametrize("is_kept", [True, False], ids=["workers run on", "workers are gone"])
async def test_endpoints_come_up(database: Path, store: SqlStore, clock: ManualClock, *, is_kept: bool) -> None:
    machine = FakeMachine(clock=clock, script=lambda _spec: ready_after(1.0))
    ready = kept_workers(database) if is_kept else {}
    machine.workers.update(ready)
    reconciler = reconciler_of(store, machine, clock=clock)

    async def settle(seconds: float, *, pause_s: float = 0.5) -> None:
        for _ in range(int(seconds / pause_s)):
            clock.advance(pause_s)
            await reconciler.pass_once()

    def status(call: str, **params: Any) -> str:
        found = ask(store, clock(), f"sagemaker {call} {json.dumps(params)}")
        return str(found.get("EndpointStatus") or found.get("InferenceComponentStatus"))

    await settle(16)
    states = {name: status("DescribeEndpoint", EndpointName=name) for name in ("plain", "scaled", "host", "new")}
    assert set(states.values()) == {"InService"}, states
    assert status("DescribeEndpoint", EndpointName="failed") == "Failed"
    if is_kept:
        assert status("DescribeEndpoint", EndpointName="updating") == "Updating", "its canary still bakes"
        assert set(routed(store, "plain")) == {name for name in ready if name.startswith("plain-")}
    assert len(routed(store, "plain")) == 3
    await settle(2500, pause_s=50.0)
    assert status("DescribeEndpoint", EndpointName="updating") == "InService"
    components = {name: status("DescribeInferenceComponent", InferenceComponentName=name) for name in COMPONENTS}
    assert set(components.values()) == {"InService"}, components
    assert ask(store, clock(), 'sagemaker ListEndpoints {"NameContains": "leaving"}')["Endpoints"] == []


COMPONENTS = ("named", "contained", "crowded", "typed")


def kept_workers(database: Path) -> dict[str, FakeWorker]:
    """The workers that were ready when the older platform stopped, still running."""
    query = "SELECT name, status FROM headrace_records WHERE kind = 'worker'"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        statuses = {name: json.loads(status) for name, status in connection.execute(query)}
    return {
        name: FakeWorker(
            spec=WorkerSpec(name=name, artifacts=()),
            handle=msgspec.convert(status["handle"], Handle),
            script=ready_after(),
            started_s=NOW_S,
        )
        for name, status in statuses.items()
        if status["phase"] == "ready"
    }


def routed(store: SqlStore, endpoint: str) -> list[str]:
    route = store.get(ROUTE, endpoint)
    assert route is not None
    return [replica.worker for variant in route.spec.variants for fleet in variant.fleets for replica in fleet.replicas]
