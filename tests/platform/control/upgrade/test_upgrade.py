"""A stored store opens, is described as when it was written, and its endpoints come up."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.platform.cluster.launcher import Handle, WorkerSpec
from headrace.platform.control.api.context import CallContext
from headrace.platform.host.operations import KINDS, OPERATIONS, refuse_newer
from headrace.platform.state.records import Unreadable
from headrace.platform.state.routes import ROUTE
from headrace.platform.state.schema import SCHEMA_VERSION
from headrace.platform.state.store import Store, open_store
from headrace.testing.fake_launcher import FakeMachine, FakeWorker, ManualClock, ready_after
from tests.platform.control.support import AWS_SCOPE, ListedLogs, reconciler_of

HERE = Path(__file__).parent
DESCRIBED: dict[str, Any] = json.loads((HERE / f"described_{SCHEMA_VERSION}.json").read_text())
CALLS = [call for call in DESCRIBED if call != "now_s"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    load_store(path)
    return path


def load_store(path: Path) -> None:
    """Make the database of a platform of the first version that is still read."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((HERE / f"store_{SCHEMA_VERSION}.sql").read_text())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(DESCRIBED["now_s"])


@pytest.fixture
def store(database: Path, clock: ManualClock) -> Iterator[Store]:
    with contextlib.closing(open_store(database, now_s=clock)) as opened:
        yield opened


def ask(store: Store, now_s: float, call: str) -> dict[str, Any]:
    service, operation, params = call.split(" ", 2)
    context = CallContext(store=store, logs=ListedLogs(), aws_scope=AWS_SCOPE, now_s=now_s)
    return OPERATIONS[service, operation](context, json.loads(params))


def test_everything_is_described_as_before(store: Store, clock: ManualClock) -> None:
    assert {call: ask(store, clock(), call) for call in CALLS} == {call: DESCRIBED[call] for call in CALLS}


def test_every_record_can_be_read(store: Store) -> None:
    refuse_newer(store.schema_versions(), what="The store")
    for kind in KINDS.values():
        assert [record for record in store.list(kind) if isinstance(record, Unreadable)] == []
    written = {"access-key", "alarm", "endpoint", "endpoint-config", "inference-component", "model", "route"}
    written |= {"scalable-target", "scaling-policy", "scheduled-action", "worker"}
    assert set(store.schema_versions()) == written, "later kinds came after the stored store"


@pytest.mark.parametrize("is_kept", [True, False], ids=["workers run on", "workers are gone"])
async def test_endpoints_come_up(database: Path, store: Store, clock: ManualClock, *, is_kept: bool) -> None:
    machine = FakeMachine(clock=clock, script=lambda _spec: ready_after(1.0))
    ready = kept_workers(database, clock()) if is_kept else {}
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


def kept_workers(database: Path, now_s: float) -> dict[str, FakeWorker]:
    """The workers that were ready when the older platform stopped, still running."""
    query = "SELECT name, status FROM headrace_records WHERE kind = 'worker'"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        statuses = {name: json.loads(status) for name, status in connection.execute(query)}
    return {
        name: FakeWorker(
            spec=WorkerSpec(name=name, artifacts=()),
            handle=msgspec.convert(status["handle"], Handle),
            script=ready_after(),
            started_s=now_s,
        )
        for name, status in statuses.items()
        if status["phase"] == "ready"
    }


def routed(store: Store, endpoint: str) -> list[str]:
    route = store.get(ROUTE, endpoint)
    assert route is not None
    return [replica.worker for variant in route.spec.variants for fleet in variant.fleets for replica in fleet.replicas]
