"""Files and batches on the gateway, as OpenAI's client sees them: `model` is an endpoint, and its worker answers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.core.errors import Unauthorized
from headrace.core.files import Files
from headrace.core.metrics import BatchMetrics
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.batches import BatchConfig, BatchGateway
from headrace.platform.gateway.errors import GatewayConfig
from headrace.serving.http.asgi import Receive, Scope, Send, caller_of, limits_of, send_response, set_caller
from headrace.serving.http.background import PRIORITY_HEADER
from headrace.serving.wire.key_limits import KeyLimits
from tests.waiting import WAIT_S, pauses

from .conftest import running
from .openai_worker import MESSAGES, chat, client_of_openai
from .routes import ACCOUNT, REGION, RouteStore
from .workers import Exchange

CONFIG = GatewayConfig(account=ACCOUNT, region=REGION)


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    config = BatchConfig(files=Files(tmp_path_factory.mktemp("batches") / "new"))
    wrapped: list[BatchGateway] = []

    def wrap(gateway: Gateway) -> BatchGateway:
        wrapped.append(BatchGateway(gateway, config, CONFIG, gateway.metrics.batches))
        return wrapped[0]

    with running(wrap=wrap) as made:
        batches = asyncio.run_coroutine_threadsafe(wrapped[0].run(), made.loop)
        yield made
        batches.cancel()


def lines_of(model: str, count: int) -> bytes:
    body = {"model": model, "messages": MESSAGES}
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(count)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def run(client: openai.OpenAI, content: bytes) -> openai.types.Batch:
    """Run a batch to its end."""
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline_s = time.monotonic() + WAIT_S
    for pause_s in pauses():
        if batch.status in {"completed", "failed", "expired", "cancelled"}:
            return batch
        assert time.monotonic() < deadline_s, batch
        time.sleep(pause_s)
        batch = client.batches.retrieve(batch.id)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("base", ["/v1", "/endpoints/ep/openai/v1"])
def test_a_batch_is_answered_by_the_worker_of_its_endpoint_in_the_background(platform, base):
    priorities = set()

    async def answer(exchange: Exchange) -> None:
        priorities.add(exchange.asked.headers.get(PRIORITY_HEADER))
        await chat(exchange)

    platform.serve(answer)
    with client_of_openai(platform, base) as client:
        batch = run(client, lines_of("ep", 20))
        results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        client.chat.completions.create(model="ep", messages=MESSAGES)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 20, None)
    assert sorted(result["custom_id"] for result in results) == sorted(f"r{number}" for number in range(20))
    assert {result["response"]["body"]["choices"][0]["message"]["content"] for result in results} == {"ep"}
    assert priorities == {"background", None}
    assert platform.gateway.metrics.batches.lines["completed"] >= 20


def test_requests_for_an_unknown_endpoint_fail_one_by_one(platform):
    with client_of_openai(platform, "/v1") as client:
        batch = run(client, lines_of("nothing", 2))
        errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert (batch.status, batch.request_counts.failed, batch.output_file_id) == ("completed", 2, None)
    assert [error["response"]["status_code"] for error in errors] == [404, 404]


def test_wrong_methods_and_unknown_files_are_answered_as_openai_does(platform):
    wrong, missing = platform.client.put("/v1/batches"), platform.client.get("/v1/files/file-1")
    of_messages = platform.client.get("/v1/messages/batches/msgbatch_1")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST, GET")
    assert missing.json()["error"]["type"] == "invalid_request_error"
    assert (of_messages.status_code, of_messages.json()["type"]) == (404, "error")


async def test_batches_that_are_off_are_refused_by_name():
    gateway = Gateway(RouteStore(), CONFIG)
    off = BatchGateway(gateway, BatchConfig(files=Files(Path()), max_bytes=0), CONFIG, gateway.metrics.batches)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(off), base_url="http://127.0.0.1") as client:
        refused = await client.post("/v1/batches", json={})
    assert (refused.status_code, "batch_bytes" in refused.json()["error"]["message"]) == (404, True)


async def test_a_batch_that_another_process_accepted_is_run_by_the_one_that_leads(tmp_path):
    gateways = [Gateway(RouteStore(), CONFIG) for _ in range(2)]
    first, leader = (
        BatchGateway(gateway, BatchConfig(files=Files(tmp_path)), CONFIG, gateway.metrics.batches)
        for gateway in gateways
    )
    told: list[str] = []
    first.on_change(lambda: (told.append("told"), leader.look()))
    leading = asyncio.create_task(leader.run())
    await asyncio.gather(*(gateway.start() for gateway in gateways))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(first), base_url="http://127.0.0.1") as client:
        batch = await ended(client)
    leading.cancel()
    await asyncio.gather(leading, *(gateway.close() for gateway in gateways), return_exceptions=True)
    assert (batch["request_counts"], told) == ({"total": 2, "completed": 0, "failed": 2}, ["told"])


async def ended(client: httpx.AsyncClient) -> dict[str, Any]:
    """A batch of two requests to an endpoint that does not exist."""
    files = {"file": ("in.jsonl", lines_of("nothing", 2))}
    file = (await client.post("/v1/files", data={"purpose": "batch"}, files=files)).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch: dict[str, Any] = (await client.post("/v1/batches", json=body)).json()
    while batch["status"] != "completed":
        batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    return batch


async def test_a_batch_has_the_limits_of_its_key_until_the_key_is_deleted(tmp_path):
    seen: list[tuple[str, KeyLimits | None]] = []
    allowed = KeyLimits(models=("chat-*",))
    keys: dict[str, KeyLimits | None] = {"alice": allowed}

    async def gateway(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append((caller_of(scope), limits_of(scope)))
        keys.clear()
        await send_response(scope, send, 200, (), b"{}")

    async def look_up(key: str) -> KeyLimits | None:
        if key not in keys:
            raise Unauthorized("The key was deleted.")
        return keys[key]

    batches = BatchGateway(
        gateway, BatchConfig(files=Files(tmp_path), concurrency=1), CONFIG, BatchMetrics(), look_up_limits=look_up
    )
    limits = [allowed, KeyLimits(actions=("read",))]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        set_caller(scope, "alice", limits=limits[0])
        await batches(scope, receive, send)

    running_batches = asyncio.create_task(batches.run())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        batch = await ended(client)
        errors = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
        limits.reverse()
        refused = await client.get("/v1/files")
    running_batches.cancel()
    await asyncio.gather(running_batches, return_exceptions=True)
    assert seen == [("alice", allowed)]
    assert json.loads(errors)["response"]["status_code"] == 401
    assert (refused.status_code, "not authorized" in refused.json()["error"]["message"]) == (403, True)
