"""OpenAI's API on endpoints, as its own client sees it."""

import asyncio
import codecs
import json
import re
from collections.abc import Iterator

import openai
import pytest

from headrace.platform.gateway.openai import match
from tests import plain_http
from tests.serving.wire.test_unknown_routes import FOREIGN, message_of
from tests.waiting import WAIT_S

from .conftest import running
from .openai_worker import MESSAGES, chat, client_of_openai, event, response_event
from .workers import Exchange


@pytest.fixture(params=["/v1", "/endpoints/ep/openai/v1"])
def client(gateway, request) -> Iterator[openai.OpenAI]:
    with client_of_openai(gateway, request.param) as made:
        yield made


def test_streams_are_passed_on_unchanged(gateway, client):
    worker = gateway.serve(chat)
    with client.chat.completions.create(model="ep", messages=MESSAGES, stream=True) as stream:
        assert [chunk.choices[0].delta.content for chunk in stream] == ["one", "two", "three"]
        assert stream.response.headers["x-amzn-invoked-production-variant"] == "AllTraffic"
        assert stream.response.headers["cache-control"] == "no-cache"
        assert "server" not in stream.response.headers or stream.response.headers["server"] != "secret"
    (asked,) = worker.asked
    assert asked.path == "/v1/chat/completions"
    assert "authorization" not in asked.headers
    assert not any("stainless" in name for name in asked.headers)


def test_responses_that_are_not_streamed_are_passed_on(gateway, client):
    gateway.serve(chat)
    answer = client.chat.completions.create(model="ep", messages=MESSAGES)
    assert answer.choices[0].message.content == "ep"


def test_the_error_of_a_worker_is_passed_on(gateway, client):
    async def refuse(exchange: Exchange) -> None:
        body = b'{"error": {"message": "too long", "type": "invalid_request_error", "param": null, "code": "x"}}'
        exchange.whole(body, status="400 Bad Request", content_type="application/json")

    gateway.serve(refuse)
    with pytest.raises(openai.BadRequestError, match="too long"):
        client.chat.completions.create(model="ep", messages=MESSAGES)


def test_a_body_may_begin_with_a_byte_order_mark(gateway):
    gateway.serve()
    answer = gateway.client.post("/v1/completions", content=codecs.BOM_UTF8 + b'{"model": "ep"}')
    assert answer.status_code == 200
    assert answer.json() == {"model": "ep"}, "what the worker got"


def test_an_unknown_model_is_not_found(gateway):
    with client_of_openai(gateway, "/v1") as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nowhere", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    answer = gateway.client.post("/endpoints/nowhere/openai/v1/completions", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": 1}', b"\xff", b'{"prompt": "x"}', b'{"model": ""}', b'{"a":' * 5000]
)
def test_a_body_that_names_no_endpoint_is_refused(gateway, body):
    answer = gateway.client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert re.search("model|nested", answer.json()["error"]["message"])


def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(gateway):
    answer = gateway.client.post("/v1/completions", content=b'{"model": "ep", "x": [' + b"[]," * 60_000 + b"[]]}")
    assert answer.status_code == 413
    assert "objects and lists" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/nothing", 404),
        ("/endpoints/ep/openai/v2/completions", 404),
        ("/endpoints/ep/inference-components/ic/openai/v1/completions", 404),
    ],
)
def test_an_unknown_route_is_an_error_in_openais_format(gateway, path, status):
    gateway.serve(chat)
    answer = gateway.client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("method", "path", "form", "said"), [case for case in FOREIGN if case[1].startswith("/v1/")])
@pytest.mark.parametrize("model", ["gpt-4o", None])
def test_clients_of_other_servers_learn_which_route_to_use(gateway, method, path, form, said, model):
    body = {"model": model, "input": "x"} if method == "POST" else None
    answer = gateway.client.request(method, path, json=body)
    assert answer.status_code == 404
    assert said.replace("/invocations", "/endpoints/NAME/invocations") in message_of(form, answer.content)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow", "said"),
    [
        ("GET", "/v1/chat/completions", 405, "POST", "use POST."),
        ("POST", "/v1/models", 405, "GET, HEAD", "use GET or HEAD."),
        ("DELETE", "/v1/models/ep", 405, "GET, HEAD", "use GET or HEAD."),
        ("POST", "/v1/chat/completions/", 404, None, "Did you mean POST /v1/chat/completions?"),
        ("GET", "/v1/models/", 404, None, "Did you mean GET /v1/models?"),
    ],
)
def test_misspelt_routes_name_the_right_one(gateway, method, path, status, allow, said):
    gateway.serve(chat)
    answer = gateway.client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert said in answer.json()["error"]["message"]


def test_a_websocket_is_refused_by_426(gateway):
    answer = gateway.client.get("/v1/responses", headers={"connection": "Upgrade", "upgrade": "websocket"})
    assert (answer.status_code, answer.headers["allow"]) == (426, "POST")


def test_a_route_that_only_the_models_own_image_serves_is_passed_on(gateway):
    worker = gateway.serve()
    answer = gateway.client.post("/v1/embeddings", json={"model": "ep", "input": "x"})
    assert (answer.status_code, worker.asked[0].path) == (200, "/v1/embeddings")


def test_head_is_answered_like_get(gateway):
    gateway.serve(chat)
    answer = gateway.client.head("/v1/models")
    assert (answer.status_code, answer.content) == (200, b"")


def test_paths_do_not_lead_out_of_the_api():
    assert match("/endpoints/ep/openai/v1/../../metrics") is None
    assert match("/v1/./models") is None
    assert match("/endpoints/ep/openai/v1/") is None
    found = match("/endpoints/ep/openai/v1/chat/completions")
    assert found is not None
    assert (found.endpoint, found.path) == ("ep", "/v1/chat/completions")


def test_a_stream_that_breaks_ends_with_an_error_event(gateway, client):
    async def break_off(exchange: Exchange) -> None:
        exchange.start(content_type="text/event-stream")
        exchange.chunk(event("one"))
        await exchange.flush()
        exchange.die()

    gateway.serve(break_off)
    got = []
    with (
        client.chat.completions.create(model="ep", messages=MESSAGES, stream=True) as stream,
        pytest.raises(openai.APIError, match="broke in the middle"),
    ):
        got.extend(chunk.choices[0].delta.content for chunk in stream)
    assert got == ["one"]


def test_responses_are_passed_on_and_a_broken_one_ends_with_an_error_that_the_sdk_raises(gateway, client):
    async def break_off(exchange: Exchange) -> None:
        exchange.start(content_type="text/event-stream")
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
        exchange.chunk(response_event(0, "response.output_text.delta", delta="one", **place))
        await exchange.flush()
        exchange.die()

    worker = gateway.serve(break_off)
    got = []
    with (
        client.responses.create(model="ep", input="hi", stream=True) as stream,
        pytest.raises(openai.APIError, match="broke in the middle"),
    ):
        got.extend(event.delta for event in stream)
    assert got == ["one"]
    (asked,) = worker.asked
    assert (asked.path, json.loads(asked.body)["input"]) == ("/v1/responses", "hi")


def test_the_client_does_not_retry_a_failed_model(gateway, client):
    async def die(exchange: Exchange) -> None:
        exchange.die()

    worker = gateway.serve(die)
    with pytest.raises(openai.InternalServerError, match="could not get a response"):
        client.chat.completions.create(model="ep", messages=MESSAGES)
    assert len(worker.asked) == 1


def test_a_model_that_is_too_slow_is_an_engine_failure():
    async def never(exchange: Exchange) -> None:
        await exchange.until_gone()

    with running(stream_timeout_s=1.0) as gateway:  # the worker has got the request before it
        worker = gateway.serve(never)
        answer = gateway.client.post("/v1/completions", json={"model": "ep"})
        assert answer.status_code == 500
        assert "in time" in answer.json()["error"]["message"]
        gateway.until(lambda: worker.num_gone == 1, "the worker saw that its client has gone")


def test_bodies_are_limited():
    with running(max_body_bytes=100) as gateway:
        answer = gateway.client.post("/v1/completions", content=b"x" * 101)
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_many_concurrent_clients_get_their_own_responses(gateway):
    gateway.serve(chat)

    async def ask_all() -> list[str]:
        async with plain_http.AsyncClient(base_url=gateway.url, timeout=WAIT_S) as client:
            bodies = [{"model": "ep", "stream": True, "n": number} for number in range(50)]
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
        return [answer.text for answer in answers]

    texts = asyncio.run(ask_all())
    assert len(texts) == 50
    assert len(set(texts)) == 1
