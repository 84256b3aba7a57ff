"""Requests to the control plane as a whole: unsupported operations, and limits of their bodies."""

import asyncio
import gzip
import threading
from typing import Any

import cbor2
import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.app import ControlApp
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import Fenced
from headrace.platform.state.store import open_store
from headrace.serving.http.body import BodyBudget
from headrace.serving.wire.aws import calls, services
from tests import plain_http
from tests.platform.control.calls import CONTAINER
from tests.platform.control.support import AWS_SCOPE, ListedLogs, Platform
from tests.waiting import WAIT_S


def test_unsupported_operations_are_refused_by_name(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(ClientError, match="CreateTrainingPlan is not supported by Headrace"):
        client.create_training_plan(TrainingPlanName="p", TrainingPlanOfferingId="o")
    body = b"no JSON at all"
    target = {"X-Amz-Target": "SageMaker.CreateTrainingJob", "Content-Type": "application/x-amz-json-1.1"}
    answer = plain_http.post(still_platform.url, content=body, headers=target, timeout=WAIT_S)
    assert (answer.status_code, "CreateTrainingJob is not supported" in answer.text) == (400, True)
    with pytest.raises(ClientError, match="Could not find inference component"):
        client.delete_inference_component(InferenceComponentName="i")


def test_all_supported_operations_are_in_botocores_models() -> None:
    assert all(operation in services.operation_names(service) for service, operation in OPERATIONS)


def test_a_body_that_is_too_large_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    environment = {f"k{number}": "x" * 1000 for number in range(100)}
    container = {**CONTAINER, "Environment": environment}
    with pytest.raises(ClientError) as caught:
        client.create_model(ModelName="m", Containers=[container] * 45)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413


MANY_LISTS = b'{"x": [' + b"[]," * 60_000 + b"[]]}"
JSON_CALL = {"X-Amz-Target": "SageMaker.ListModels", "Content-Type": "application/x-amz-json-1.1"}
CBOR_CALL = {"smithy-protocol": "rpc-v2-cbor", "Content-Type": "application/cbor"}
CBOR_PATH = "/service/GraniteServiceVersion20100801/operation/ListMetrics"


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/", JSON_CALL, MANY_LISTS),
        ("/", JSON_CALL | {"Content-Encoding": "gzip"}, gzip.compress(MANY_LISTS)),
        (CBOR_PATH, CBOR_CALL, cbor2.dumps({"x": [[]] * 60_000})),
        (CBOR_PATH, CBOR_CALL, b"\xa1\x61x\x9f" + b"\x01" * 600_000 + b"\xff"),
    ],
    ids=["JSON", "gzip", "CBOR lists", "CBOR numbers"],
)
def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(
    still_platform: Platform, path: str, headers: dict[str, str], body: bytes
) -> None:
    answer = plain_http.post(still_platform.url + path, content=body, headers=headers, timeout=WAIT_S)
    assert (answer.status_code, b"RequestEntityTooLarge" in answer.content) == (413, True)
    assert b"Send less" in answer.content


def test_a_long_body_with_few_values_is_read_in_both_formats(still_platform: Platform) -> None:
    values = {"x": ["y" * 1000] * 100, "z": [1.5, 70_000, 2**40, b"ab", None] * 1000}
    bodies = ((CBOR_PATH, CBOR_CALL, cbor2.dumps(values)), ("/", JSON_CALL, b'{"x": "' + b"[" * 100_000 + b'"}'))
    for path, headers, body in bodies:
        answer = plain_http.post(still_platform.url + path, content=body, headers=headers, timeout=WAIT_S)
        assert answer.status_code == 200, answer.text


def call_directly(app: ControlApp, body: bytes) -> tuple[int, int]:
    """Return the status of a call, and the turns that the event loop took meanwhile."""

    async def call() -> tuple[int, int]:
        turns = 0
        task = asyncio.create_task(status_of(app, body))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
            BEATEN.set()
        return await task, turns

    return asyncio.run(call())


async def status_of(app: ControlApp, body: bytes) -> int:
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    headers = [(name.lower().encode(), value.encode()) for name, value in JSON_CALL.items()]
    scope: Any = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b""}
    await app({**scope, "headers": headers}, receive, send)  # type: ignore[arg-type]
    return int(statuses[0])


BEATEN = threading.Event()


@pytest.fixture
def app() -> Any:
    store = open_store("sqlite://")
    yield ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=ListedLogs(), own_images={}, is_strict=False)
    store.close()


def test_the_event_loop_turns_while_a_call_is_parsed(app: ControlApp, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = calls.parse

    def parse_slowly(*args: Any, **kwargs: Any) -> Any:
        BEATEN.clear()
        assert BEATEN.wait(WAIT_S)
        return parse(*args, **kwargs)

    monkeypatch.setattr(calls, "parse", parse_slowly)
    status, turns = call_directly(app, b"{}")
    assert status == 200
    assert turns > 0


@pytest.mark.parametrize(("num_bytes", "most"), [(16 * 1024, 2), (16 * 1024 + 1, 1)])
def test_large_bodies_are_parsed_one_at_a_time(
    app: ControlApp, monkeypatch: pytest.MonkeyPatch, num_bytes: int, most: int
) -> None:
    both = threading.Barrier(2)
    parse, running, seen = calls.parse, [], []

    def parse_together(*args: Any, **kwargs: Any) -> Any:
        running.append(1)
        seen.append(len(running))
        if most == 2:
            both.wait(WAIT_S)
        running.pop()
        return parse(*args, **kwargs)

    monkeypatch.setattr(calls, "parse", parse_together)

    async def call_twice() -> list[int]:
        return await asyncio.gather(*(status_of(app, b"{}".ljust(num_bytes)) for _ in range(2)))

    assert asyncio.run(call_twice()) == [200, 200]
    assert max(seen) == most


def test_bodies_over_the_budget_are_throttled(app: ControlApp) -> None:
    app._budget = BodyBudget(1000)
    assert call_directly(app, b" " * 70_000)[0] == 429
    assert call_directly(app, b"{}")[0] == 200
    assert app._budget.held_bytes == 0


def test_a_call_in_the_name_of_a_former_leader_writes_nothing(app: ControlApp) -> None:
    """The operation of a stack may be in the middle of a call when another platform begins to lead."""
    store, group = app._context.store, {"ModelPackageGroupName": "g"}
    store.begin_term(1)
    app.call("sagemaker", "CreateModelPackageGroup", group, term=1)
    store.begin_term(2)

    with pytest.raises(Fenced):
        app.call("sagemaker", "DeleteModelPackageGroup", group, term=1)

    assert app.call("sagemaker", "DescribeModelPackageGroup", group, term=1)
    app.call("sagemaker", "DeleteModelPackageGroup", group)
