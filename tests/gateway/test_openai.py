"""OpenAI's API on endpoints, as its own client sees it."""

import asyncio
import codecs
import json
import re
from collections.abc import Iterator

import openai
import pytest

from headrace.gateway.openai import match
from headrace.state.routes import ComponentRoute
from tests import plain_http
from tests.waiting import WAIT_S
from tests.wire.test_unknown_routes import FOREIGN, message_of

from .conftest import Running, running
from .routes import asleep, component, route, variant
from .workers import Exchange, Script

MESSAGES = [{"role": "user", "content": "hi"}]


def event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: %b\n\n" % json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": [choice]}).encode()


async def chat(exchange: Exchange) -> None:
    """Stream three words, or answer with the request."""
    asked = json.loads(exchange.asked.body)
    if asked.get("stream"):
        exchange.start(content_type="text/event-stream; charset=utf-8", cache_control="no-cache", server="secret")
        for word in ("one", "two", "three"):
            exchange.chunk(event(word))
        exchange.chunk(b"data: [DONE]\n\n")
        exchange.end()
        return
    choice = {"index": 0, "message": {"role": "assistant", "content": asked["model"]}, "finish_reason": "stop"}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    exchange.whole(json.dumps(body).encode(), content_type="application/json")


def client_of(gateway: Running, base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}{base}", api_key="secret-key", timeout=WAIT_S)


@pytest.fixture(params=["/v1", "/endpoints/ep/openai/v1"])
def client(gateway, request) -> Iterator[openai.OpenAI]:
    with client_of(gateway, request.param) as made:
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


def test_endpoints_are_the_models(gateway):
    worker = gateway.worker()
    serving = variant("AllTraffic", [worker.url])
    gateway.put(
        route(serving, endpoint="b"), route(serving, endpoint="a"), route(endpoint="creating", status="Creating")
    )
    with client_of(gateway, "/v1") as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]
        assert client.models.retrieve("b").created == 1_700_000_000
        with pytest.raises(openai.NotFoundError, match="`c` does not exist"):
            client.models.retrieve("c")
    (asked,) = worker.asked
    assert (asked.method, asked.path) == ("GET", "/v1/models")


def listing(*, status: str = "200 OK", **facts: object) -> Script:
    """A worker that lists one model with these facts."""

    async def answer(exchange: Exchange) -> None:
        body = {"object": "list", "data": [{"id": "inner", **facts}]}
        exchange.whole(json.dumps(body).encode(), status=status, content_type="application/json")

    return answer


def facts_listed(gateway: Running) -> dict[str, tuple[object, object]]:
    page = gateway.client.get("/v1/models").json()["data"]
    return {model["id"]: (model.get("max_model_len"), model.get("has_chat_template")) for model in page}


def test_the_list_has_the_context_length_and_chat_template_that_workers_tell(gateway):
    chats, base, old, loading, foreign, huge = (
        gateway.worker(script)
        for script in (
            listing(max_model_len=512, has_chat_template=True),
            listing(max_model_len=128, has_chat_template=False),
            listing(status="404 Not Found"),
            listing(status="503 Service Unavailable"),
            listing(max_model_len="many"),
            listing(max_model_len=8, padding="x" * 300_000),
        )
    )
    both = [variant("a", [chats.url], weight=0.5), variant("b", [base.url], weight=0.5)]
    update = variant("AllTraffic", [chats.url], [base.url], [old.url], shares=[0.5, 0.5, 0.0])
    half_asleep = [variant("a", [chats.url], weight=0.5), asleep("b", weight=0.5)]
    gateway.put(
        route(variant("AllTraffic", [chats.url, old.url], token="s3cret"), endpoint="chats"),
        route(variant("AllTraffic", [old.url]), endpoint="old"),
        route(variant("AllTraffic", [loading.url]), endpoint="loading"),
        route(variant("AllTraffic", [foreign.url]), endpoint="foreign"),
        route(variant("AllTraffic", [huge.url]), endpoint="huge"),
        route(*both, endpoint="two-models"),
        route(update, endpoint="updating"),
        route(*half_asleep, endpoint="half-asleep"),
        route(variant(), components=[component("part", [base.url])], endpoint="host"),
    )
    expected = {
        "chats": (512, True),
        "half-asleep": (512, True),  # this gateway wakes nothing
        "part": (128, False),
        "two-models": (128, None),
        "updating": (128, None),
        **dict.fromkeys(("old", "loading", "foreign", "huge"), (None, None)),
    }
    assert facts_listed(gateway).items() >= expected.items()
    assert facts_listed(gateway).items() >= expected.items()
    assert [len(worker.asked) for worker in gateway.workers] == [1] * 6
    assert chats.asked[0].headers["authorization"] == "Bearer s3cret"
    assert gateway.client.get("/v1/models/part").json()["has_chat_template"] is False


def test_nothing_is_told_of_a_model_that_a_request_may_wake():
    with running(wake=lambda _: None) as gateway:
        worker = gateway.worker(listing(max_model_len=512, has_chat_template=True))
        gateway.put(route(variant("a", [worker.url], weight=0.5), asleep("b", weight=0.5)))
        assert facts_listed(gateway) == {"ep": (None, None)}
        assert not worker.asked


def test_a_worker_that_does_not_answer_delays_the_list_only_once(gateway, monkeypatch):
    async def hang(exchange: Exchange) -> None:
        await exchange.until_gone()

    monkeypatch.setattr("headrace.gateway.model_facts.WAIT_S", 0.02)
    monkeypatch.setattr("headrace.gateway.model_facts.FETCH_TIMEOUT_S", 0.1)
    worker = gateway.serve(hang)
    assert facts_listed(gateway) == {"ep": (None, None)}
    gateway.until(lambda: worker.num_gone == 1, "the request was given up")
    assert facts_listed(gateway) == {"ep": (None, None)}
    assert len(worker.asked) == 1


def test_a_worker_that_has_gone_is_forgotten(gateway):
    worker = gateway.serve(listing(max_model_len=512, has_chat_template=True))
    assert facts_listed(gateway) == {"ep": (512, True)}
    gateway.put(route(variant("AllTraffic", [])))
    gateway.put(route(variant("AllTraffic", [worker.url])))
    assert facts_listed(gateway) == {"ep": (512, True)}
    assert len(worker.asked) == 2


DEAD = variant("AllTraffic", [])
"""A variant without replicas that will get none."""


def put_all_states(gateway: Running) -> None:
    """Endpoints and components in all relevant states; `up` and `here` have a replica."""
    worker = gateway.serve(chat)
    serving = variant("AllTraffic", [worker.url])
    copies = [component("here", [worker.url]), component("away", [])]
    copies.append(ComponentRoute(name="broken", variant="AllTraffic", route=variant("broken", [])))
    gateway.store.drop("ep")
    gateway.put(
        route(serving, endpoint="up"),
        route(asleep(), endpoint="zero"),
        route(DEAD, endpoint="failed", status="Failed"),
        route(DEAD, endpoint="creating", status="Creating"),
        route(DEAD, endpoint="crashed"),
        route(variant("AllTraffic", [worker.url], weight=0.0), asleep("b"), endpoint="other-half"),
        route(variant(), components=copies, endpoint="host"),
    )


@pytest.mark.parametrize("can_wake", [True, False])
def test_the_list_has_the_models_that_can_answer_or_be_woken(can_wake):
    with running(wake=(lambda _: None) if can_wake else None) as gateway:
        put_all_states(gateway)
        with client_of(gateway, "/v1") as client:
            listed = {model.id for model in client.models.list()}
            assert listed == {"up", "here"} | ({"zero", "other-half", "away"} if can_wake else set())
            assert all(client.models.retrieve(name).id == name for name in listed)


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("failed", "model_failed", "FailureReason"),
        ("creating", "model_not_ready", "is Creating"),
        ("crashed", "model_not_ready", "no instance"),
        ("broken", "model_not_ready", "no capacity"),
        ("nowhere", "model_not_found", "does not exist"),
    ],
)
@pytest.mark.parametrize("way", ["list", "body", "path"])
def test_a_model_that_cannot_answer_is_a_503_with_a_code_and_an_unknown_one_a_404(way, model, code, said):
    with running(wake=lambda _: None) as gateway:
        put_all_states(gateway)
        place = f"host/inference-components/{model}" if model == "broken" else model
        body = {"model": model, "messages": MESSAGES}
        if way == "list":
            answer = gateway.client.get(f"/v1/models/{model}")
        elif way == "body":
            answer = gateway.client.post("/v1/chat/completions", json=body)
        else:
            answer = gateway.client.post(f"/endpoints/{place}/openai/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 503)
    assert error["code"] == code
    assert said in error["message"] or way == "list"
    assert ("retry-after" in answer.headers) == (code == "model_not_ready")
    assert (answer.headers.get("x-should-retry") == "false") == (code == "model_failed")


def test_the_model_list_of_one_endpoint_comes_from_its_worker(gateway):
    async def models(exchange: Exchange) -> None:
        assert exchange.asked.method == "GET"
        exchange.whole(
            b'{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1, "owned_by": "x"}]}'
        )

    gateway.serve(models)
    with client_of(gateway, "/endpoints/ep/openai/v1") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]


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
    with client_of(gateway, "/v1") as client, pytest.raises(openai.NotFoundError) as caught:
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


def response_event(number: int, kind: str, **fields: object) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}).encode()
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


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
