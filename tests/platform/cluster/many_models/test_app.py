"""The server in front of many models: names, states, loads, and errors in each dialect."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headrace.serving.http.asgi import Message, Receive, Scope, Send
from tests.platform.cluster.model_host.hosts import HostScene
from tests.platform.gateway.workers import Exchange, Worker

from .router import Router, router

LISTED = {"max_model_len": 64, "has_chat_template": True, "tool_support": "none", "id": "x"}
PAGES = {
    "/v1/models": {"data": [LISTED]},
    "/api/tags": {"models": [{"name": "x", "size": 7, "digest": "d"}]},
    "/info": {"model_id": "x"},
    "/api/show": {"template": "shown"},
}


async def model_server(exchange: Exchange) -> None:
    """Echo the body; a body with `break` breaks the answer, and `stream` makes a stream of it."""
    path, body = exchange.asked.path, exchange.asked.body
    if path in PAGES and b"loads" not in body:
        exchange.whole(json.dumps(PAGES[path]).encode())
    elif b"break" in body:
        exchange.start(**{"content-type": "text/event-stream"})
        exchange.chunk(b"data: 1\n\n")
        await exchange.flush()
        exchange.die()
    else:
        exchange.whole(body, status="201 Created", **{"x-model": "yes", "x-request-id": "of-the-model"})


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker(model_server)
    await worker.start()
    yield worker
    await worker.stop()


@pytest.fixture
async def made(worker: Worker, tmp_path: Path) -> AsyncIterator[Router]:
    scene = HostScene()
    scene.machine.url = worker.url
    file = tmp_path / "models.yaml"
    file.write_text("""
models:
  a: {model: smollm2, aliases: [gpt-4o]}
  b: {model: smollm2}
  pinned: {model: smollm2, pin: true}
""")
    async with router(scene, file, model="b") as made:
        yield made


async def until(made: Router, name: str, state: str) -> None:
    while made.state(name) != state:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"model": "a"}, "a"),
        ("/v1/completions", {"model": "gpt-4o"}, "a"),
        ("/v1/responses", {"model": "a"}, "a"),
        ("/v1/embeddings", {"model": "a"}, "a"),
        ("/v1/messages", {"model": "a"}, "a"),
        ("/v1/messages/count_tokens", {"model": "a"}, "a"),
        ("/api/chat", {"model": "a:latest"}, "a"),
        ("/api/generate", {"name": "a"}, "a"),
        ("/api/embed", {"model": "a"}, "a"),
        ("/api/show", {"model": "a", "loads": 1}, "a"),
        ("/infill", {"model": "a"}, "a"),
        ("/generate", {"inputs": "x"}, "b"),
        ("/generate", {"inputs": "x", "model": "a"}, "a"),
        ("/tokenize?model=a", {"inputs": "x"}, "a"),
        ("/", {"inputs": "x"}, "b"),
        ("/invocations", {"inputs": "x"}, "b"),
        ("/rerank", {"query": "x"}, "b"),
    ],
)
async def test_a_request_reaches_the_model_that_it_names(
    made: Router, worker: Worker, path: str, body: dict[str, object], name: str
) -> None:
    headers = {"authorization": "Bearer client", "x-api-key": "client", "origin": "http://127.0.0.1", "x-other": "1"}
    answer = await made.client.post(path, json=body, headers=headers)
    assert (answer.status_code, answer.json(), answer.headers["x-model"]) == (201, body, "yes")
    assert answer.headers["x-request-id"] != "of-the-model", "it is that of the request"
    assert [found.name for found, _ in made.service.host.loaded] == [name]
    asked = worker.asked[-1]
    assert (asked.path, asked.headers["x-request-id"]) == (path, answer.headers["x-request-id"])
    assert not {"authorization", "x-api-key", "origin"} & asked.headers.keys()
    assert asked.headers["x-other"] == "1"


async def test_invocations_choose_a_model_by_the_header_of_multi_model_endpoints(made: Router) -> None:
    headers = {"X-Amzn-SageMaker-Target-Model": "a"}
    assert (await made.client.post("/invocations", content=b"\xff not JSON", headers=headers)).status_code == 201
    assert made.scene.running() == ["a"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["code"] == "model_not_found"),
        ("/v1/responses", lambda body: body["error"]["code"] == "model_not_found"),
        ("/v1/messages", lambda body: body["error"]["type"] == "not_found_error"),
        ("/api/chat", lambda body: "does not exist" in body["error"]),
        ("/api/pull", lambda body: "does not exist" in body["error"]),
        ("/generate", lambda body: body["error_type"]),
        ("/models/load", lambda body: "does not exist" in json.dumps(body)),
    ],
)
async def test_an_unknown_model_is_404_in_the_dialect_of_the_path(made: Router, path: str, error: object) -> None:
    for name in ("unknown", "../a", "/etc/passwd", "a/../b"):
        answer = await made.client.post(path, json={"model": name})
        assert answer.status_code == 404
        assert callable(error)
        assert error(answer.json())
    asked = await made.client.get("/v1/models/unknown", headers={"anthropic-version": "2023-06-01"})
    assert (asked.status_code, asked.json()["error"]["type"]) == (404, "not_found_error")
    assert made.scene.machine.started == []


async def test_what_is_wrong_is_refused_without_a_load(made: Router) -> None:
    made.service.settings = made.service.settings.__class__(models="x")
    missing = await made.client.post("/v1/chat/completions", json={})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    assert (await made.client.post("/v1/chat/completions", content=b"{")).status_code == 400
    assert (await made.client.post("/api/chat", json={"model": "a", "keep_alive": "soon"})).status_code == 400
    assert (await made.client.get("/v1/chat/completions")).status_code == 405
    for path in ("/favicon.ico", "/v1/files", "/v1/batches", "/v1/responses/resp_1", "/adapters"):
        assert (await made.client.get(path)).status_code == 404
    assert "is not served" in (await made.client.post("/v1/files", content=b"form")).json()["error"]["message"]
    assert (await made.client.get("/version")).status_code == 200
    assert (await made.client.get("/info?model=a")).status_code == 503, "a GET loads nothing"
    assert (await made.client.post("/models/unload", json={"model": "a"})).status_code == 400
    assert made.scene.machine.started == []


async def test_lists_have_the_states_and_what_was_learned_of_models(made: Router) -> None:
    async def listed() -> dict[str, dict[str, object]]:
        return {model["id"]: model for model in (await made.client.get("/v1/models")).json()["data"]}

    assert {name: model["status"] for name, model in (await listed()).items()} == {
        name: {"value": "unloaded", "requests": 0} for name in ("a", "b", "pinned")
    }
    assert (await made.client.post("/models/load", json={"model": "a"})).json() == {"success": True}
    await until(made, "a", "loaded")
    await made.service.learn()
    found = (await listed())["a"]
    assert isinstance(found["status"], dict)
    assert (found["status"]["value"], found["aliases"], found["max_model_len"]) == ("loaded", ["gpt-4o"], 64)
    running = (await made.client.get("/api/ps")).json()["models"]
    assert [(entry["name"], entry["expires_at"], entry["context_length"]) for entry in running] == [
        ("a:latest", "2300-01-01T00:00:00Z", 64)
    ]
    assert (await made.client.post("/models/unload", json={"model": "gpt-4o"})).json() == {"success": True}
    await until(made, "a", "unloaded")
    assert (await made.client.get("/api/ps")).json() == {"models": []}
    tags = {entry["name"]: entry["size"] for entry in (await made.client.get("/api/tags")).json()["models"]}
    assert tags == {"a:latest": 7, "b:latest": 0, "pinned:latest": 0}, "it stays known"
    assert (await made.client.get("/info?model=a")).json() == PAGES["/info"]
    assert (await made.client.post("/api/show", json={"model": "a"})).json() == PAGES["/api/show"]
    assert len(made.scene.machine.started) == 1, "what is known needs no load"
    page = (await made.client.get("/metrics")).text
    assert 'headrace_model_loads_total{model="a"} 1.0' in page


async def test_keep_alive_sets_the_time_to_live_and_zero_unloads(made: Router) -> None:
    body = {"model": "a", "prompt": "hi"}
    await made.client.post("/api/generate", json={**body, "keep_alive": "10m"})
    assert 0 < (made.service.host.status("a").expires_in_s or 0) <= 600
    await made.client.post("/api/generate", json={**body, "keep_alive": -1})
    assert made.service.host.status("a").expires_in_s is None
    unloaded = (await made.client.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": 0})).json()
    assert (unloaded["done"], unloaded["done_reason"], unloaded["message"]["content"]) == (True, "unload", "")
    await until(made, "a", "unloaded")
    await made.client.post("/api/generate", json={**body, "keep_alive": 0})
    await until(made, "a", "unloaded")
    assert made.scene.running() == []


async def test_pinned_models_are_loaded_at_the_start(made: Router) -> None:
    made.service.start()
    await until(made, "pinned", "loaded")
    assert made.scene.running() == ["pinned"]


async def test_pull_answers_for_models_that_are_there(made: Router) -> None:
    streamed = await made.client.post("/api/pull", json={"model": "a"})
    assert [json.loads(line)["status"] for line in streamed.text.splitlines()] == ["pulling manifest", "success"]
    whole = await made.client.post("/api/pull", json={"name": "a", "stream": False})
    assert whole.json() == {"status": "success"}


async def test_an_answer_that_breaks_ends_with_an_error_and_the_next_request_starts_the_model(made: Router) -> None:
    body = {"model": "a", "prompt": "break"}
    sse = (await made.client.post("/v1/completions", json=body)).text
    assert sse.startswith("data: 1\n\n")
    assert "ended in the middle" in sse
    lines = (await made.client.post("/api/generate", json=body)).text
    assert "ended in the middle" in json.loads(lines.splitlines()[-1])["error"]
    made.scene.machine.crash(made.scene.machine.started[0])
    await made.client.post("/v1/completions", json=body)
    await until(made, "a", "unloaded")
    assert (await made.client.post("/v1/completions", json={"model": "a"})).status_code == 201
    assert len(made.scene.machine.started) == 2


async def test_comments_keep_a_stream_open_while_its_model_is_loaded(made: Router) -> None:
    made.service.keep_alive_s = 0.01
    made.scene.machine.waits_for = "a GPU"
    is_silent, sent = asyncio.Event(), b""

    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        async def take(message: Message) -> None:
            nonlocal sent
            sent += message.get("body", b"")
            if sent:
                is_silent.set()
            await send(message)

        await made.app(scope, receive, take)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=observed), base_url="http://127.0.0.1") as client:
        body = {"model": "a", "stream": True}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await is_silent.wait()
        made.scene.machine.waits_for = ""
        answer = await asking
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    events = [line for line in answer.text.splitlines() if line not in ("", ":")]
    assert [json.loads(line.removeprefix("data: ")) for line in events] == [body], "a whole answer is one event"


async def test_a_model_that_cannot_be_loaded_says_why(made: Router) -> None:
    made.scene.machine.refusal = "No room."
    answer = await made.client.post("/v1/chat/completions", json={"model": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert "The model `a` cannot answer: No room." in answer.text
    status = (await made.client.get("/v1/models/a")).json()["status"]
    assert (status["value"], status["failed"], status["error"]) == ("unloaded", True, "No room.")
