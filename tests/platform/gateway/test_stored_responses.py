"""Stored responses (Responses API) on the gateway, as OpenAI's client sees them; the worker stores none."""

import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest

from headrace.core.errors import NotFound, PayloadTooLarge
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.stored_responses import StoredResponses
from headrace.serving.http.asgi import set_caller
from headrace.serving.http.body import BodyBudget, BudgetSpent
from headrace.serving.wire.json_size import INLINE_BYTES
from headrace.serving.wire.openai.stored_responses import (
    PreviousResponseNotFound,
    ResponseKey,
    ResponseMemory,
    StoredResponse,
)

from .conftest import Running, running
from .openai_worker import client_of_openai, response_event
from .routes import component, route, variant
from .workers import Exchange


def response(exchange: Exchange, status: str = "completed") -> dict[str, Any]:
    """A worker's response, whose text is the model and the number of items."""
    asked, request_id = json.loads(exchange.asked.body), exchange.asked.headers["x-request-id"]
    number = 1 if isinstance(asked["input"], str) else len(asked["input"])
    part = {"type": "output_text", "text": f"{asked['model']} {number}", "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"msg_{request_id}", "role": "assistant", "status": status, "content": [part]}
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": asked["model"],
        "output": [] if status == "in_progress" else [message],
        "previous_response_id": asked.get("previous_response_id"),
        "store": asked["store"],
    }


async def respond(exchange: Exchange) -> None:
    asked = json.loads(exchange.asked.body)
    if not asked.get("stream"):
        exchange.whole(json.dumps(response(exchange)).encode(), content_type="application/json")
        return
    kind = asked.get("metadata", {}).get("ends", "completed")
    exchange.start(content_type="text/event-stream")
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    data = b"".join(
        (
            response_event(0, "response.created", response=response(exchange, "in_progress")),
            response_event(1, "response.output_text.delta", delta="one", **place),
            response_event(2, f"response.{kind}", response=response(exchange, kind))
            if kind != "broken"
            else b"event: r",
        )
    )
    for start in range(0, len(data), 50):
        exchange.chunk(data[start : start + 50])
    exchange.end()


@pytest.fixture(params=["/v1", "/endpoints/ep/openai/v1"])
def client(gateway: Running, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    gateway.serve(respond)
    with client_of_openai(gateway, request.param) as made:
        yield made


def test_a_response_is_stored_continued_listed_and_deleted(gateway: Running, client: openai.OpenAI) -> None:
    first = client.responses.create(model="ep", input="one")
    assert (first.output_text, first.model_extra["store"]) == ("ep 1", True)
    assert client.responses.retrieve(first.id) == first
    *_, end = client.responses.create(model="ep", input="two", previous_response_id=first.id, stream=True)
    second = client.responses.retrieve(end.response.id)
    assert (second, second.output_text, second.previous_response_id) == (end.response, "ep 3", first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=f"'{first.id}' not found"):
        client.responses.retrieve(first.id)
    third = client.responses.create(
        model="ep", input=[{"role": "user", "content": "x"}], previous_response_id=second.id
    )
    assert third.output_text == "ep 5"
    items = list(client.responses.input_items.list(third.id, order="asc", limit=2))
    assert [item.content[0].text for item in items] == ["one", "ep 1", "two", "ep 3", "x"]
    assert all(json.loads(asked.body)["store"] is False for asked in gateway.workers[0].asked)
    page = gateway.client.get(f"/v1/responses/{third.id}/input_items?limit=0")
    assert (page.status_code, page.json()["error"]["param"]) == (400, "limit")
    assert gateway.client.head(f"/v1/responses/{third.id}").status_code == 200
    assert gateway.gateway.metrics.stored_responses()[0] >= 2


def test_what_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    unstored = client.responses.create(model="ep", input="one", store=False)
    assert unstored.model_extra["store"] is False
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="--stored-responses-age-s"):
            call(unstored.id)
    with pytest.raises(openai.BadRequestError, match="not found") as raised:
        client.responses.create(model="ep", input="two", previous_response_id=unstored.id)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError, match="Only responses with 'background'"):
        client.responses.cancel(client.responses.create(model="ep", input="one").id)


@pytest.mark.parametrize(("ends", "is_stored"), [("incomplete", True), ("failed", True), ("broken", False)])
def test_a_stream_is_stored_if_it_ends(client: openai.OpenAI, ends: str, is_stored: bool) -> None:
    begun, *_ = client.responses.create(model="ep", input="one", stream=True, metadata={"ends": ends})
    if not is_stored:
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(begun.response.id)
        return
    assert client.responses.retrieve(begun.response.id).status == ends
    if ends == "failed":
        with pytest.raises(openai.BadRequestError, match="has failed"):
            client.responses.create(model="ep", input="two", previous_response_id=begun.response.id)


def test_a_client_that_leaves_stores_nothing(gateway: Running) -> None:
    async def begin(exchange: Exchange) -> None:
        exchange.start(content_type="text/event-stream")
        exchange.chunk(response_event(0, "response.created", response=response(exchange, "in_progress")))
        await exchange.flush()
        await exchange.until_gone()

    worker = gateway.serve(begin)
    with client_of_openai(gateway, "/v1") as client:
        with client.responses.create(model="ep", input="one", stream=True) as stream:
            begun = next(iter(stream))
        gateway.until(lambda: worker.num_gone == 1, "the worker saw that its client has gone")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(begun.response.id)


def test_a_conversation_goes_on_with_the_model_that_the_request_names(gateway: Running) -> None:
    worker = gateway.worker(respond)
    gateway.put(
        route(variant("AllTraffic", [worker.url]), endpoint="ep"),
        route(variant(), endpoint="host", components=[component("part", [worker.url])]),
    )
    with client_of_openai(gateway, "/v1") as client:
        first = client.responses.create(model="ep", input="one")
        second = client.responses.create(model="part", input="two", previous_response_id=first.id)
    assert second.output_text == "part 3"


def test_input_tokens_are_counted_with_the_conversation_that_is_continued(gateway: Running) -> None:
    async def count(exchange: Exchange) -> None:
        if exchange.asked.path == "/v1/responses":
            await respond(exchange)
            return
        number = len(json.loads(exchange.asked.body)["input"])
        body = json.dumps({"object": "response.input_tokens", "input_tokens": number}).encode()
        exchange.whole(body, content_type="application/json")

    worker = gateway.serve(count)
    with client_of_openai(gateway, "/v1") as client:
        first = client.responses.create(model="ep", input="one")
        num_stored = gateway.gateway.metrics.stored_responses()[0]
        counted = client.responses.input_tokens.count(model="ep", input="two", previous_response_id=first.id)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 3)
    assert worker.asked[-1].path == "/v1/responses/input_tokens"
    assert gateway.gateway.metrics.stored_responses()[0] == num_stored


def test_an_error_of_the_worker_counts_the_items_of_the_request(gateway: Running) -> None:
    async def refuse_continued(exchange: Exchange) -> None:
        if isinstance(json.loads(exchange.asked.body)["input"], str):
            await respond(exchange)
            return
        body = b'{"error": {"message": "Missing \'input[3].role\'.", "param": "input[3].role", "code": null}}'
        exchange.whole(body, status="400 Bad Request", content_type="application/json")

    gateway.serve(refuse_continued)
    with client_of_openai(gateway, "/v1") as client:
        first = client.responses.create(model="ep", input="one")
        with pytest.raises(openai.BadRequestError, match=r"'input\[1\].role'"):
            client.responses.create(model="ep", input=[{}, {}], previous_response_id=first.id)


def test_a_gateway_without_a_store_forwards_requests_as_they_are() -> None:
    with running(stored_responses_bytes=0) as gateway:
        worker = gateway.serve()
        body = {"model": "ep", "previous_response_id": "resp_1"}
        assert gateway.client.post("/v1/responses", json=body).json() == body
        assert json.loads(worker.asked[0].body) == body
        assert gateway.client.get("/v1/responses/resp_1").status_code == 404


def scope_of(caller: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "method": "GET", "query_string": b""}
    set_caller(scope, caller)
    return scope


def stored_by(owner: str, num_bytes: int = 0, **limits: Any) -> StoredResponses:
    """A store with the response `resp_1`."""
    memory = ResponseMemory(max_bytes=1 << 24, max_age_s=1e9)
    response = json.dumps({"id": "resp_1", "status": "completed", "output": [{"text": "x" * num_bytes}]}).encode()
    memory.add(ResponseKey(owner, "resp_1"), StoredResponse(response=response, items=b"[]", created_s=2e9))
    budget = BodyBudget(limits.pop("budget", 1 << 24))
    return StoredResponses(memory, budget, **{"max_body_bytes": 1 << 24, "max_event_bytes": 1 << 24, **limits})


CONTINUED = b'{"model": "ep", "input": "x", "previous_response_id": "resp_1"}'


async def test_callers_do_not_see_each_others_responses() -> None:
    responses = stored_by("ann")
    record = InvocationRecord(request_id="r", api="OpenAI", endpoint="", started_s=0)
    assert await responses.read(scope_of("ann"), CONTINUED, "r") is not None
    for caller in ("bob", ""):
        with pytest.raises(PreviousResponseNotFound):
            await responses.read(scope_of(caller), CONTINUED, "r")
        with pytest.raises(NotFound):
            await responses.answer(scope_of(caller), "/v1/responses/resp_1", None, record)


async def test_a_long_conversation_is_bounded_and_counted() -> None:
    with pytest.raises(PayloadTooLarge, match="expected at most 1000"):
        await stored_by("", 2000, max_body_bytes=1000).read(scope_of(""), CONTINUED, "r")
    responses = stored_by("", 200_000, budget=100_000)
    pending = await responses.read(scope_of(""), CONTINUED, "r")
    assert pending is not None
    with pytest.raises(BudgetSpent), responses.counted(pending.request):
        pass


@pytest.mark.parametrize(("num_bytes", "is_here"), [(10, True), (INLINE_BYTES, False)])
async def test_large_requests_are_read_away_from_the_event_loop(num_bytes: int, is_here: bool) -> None:
    threads: list[int] = []

    class Memory(ResponseMemory):
        def get(self, key: ResponseKey, *, now_s: float) -> StoredResponse | None:
            threads.append(threading.get_ident())
            return super().get(key, now_s=now_s)

    memory = Memory(max_bytes=1, max_age_s=1)
    responses = StoredResponses(memory, BodyBudget(1), max_body_bytes=1 << 24, max_event_bytes=1)
    body = json.dumps({"input": "x" * num_bytes, "previous_response_id": "resp_1"}).encode()
    with pytest.raises(PreviousResponseNotFound):
        await responses.read(scope_of(""), body, "r")
    assert [thread == threading.get_ident() for thread in threads] == [is_here]


async def test_a_response_of_another_process_is_found_there() -> None:
    """The process that has it is asked with the caller, and deletes it for a DELETE."""
    asked: list[tuple[ResponseKey, bool]] = []
    entry = stored_by("ann").store.get(ResponseKey("ann", "resp_1"), now_s=0)
    responses = StoredResponses(
        ResponseMemory(max_bytes=1 << 24, max_age_s=1e9), BodyBudget(1 << 24), max_body_bytes=1 << 24, max_event_bytes=1
    )

    async def find(key: ResponseKey, *, is_deleted: bool) -> StoredResponse | None:
        asked.append((key, is_deleted))
        return entry if key == ("ann", "resp_1") else None

    responses.find_elsewhere = find
    for body in (CONTINUED, CONTINUED.replace(b'"x"', b'"%b"' % (b"x" * INLINE_BYTES))):
        pending = await responses.read(scope_of("ann"), body, "r")
        assert pending is not None
        assert json.loads(pending.request.before) == [{"text": ""}]
    with pytest.raises(PreviousResponseNotFound):
        await responses.read(scope_of("bob"), CONTINUED, "r")
    assert asked == [*[(ResponseKey("ann", "resp_1"), False)] * 2, (ResponseKey("bob", "resp_1"), False)]
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        answers: list[bytes] = []
        record = InvocationRecord(request_id="r", api="OpenAI", endpoint="", started_s=0)
        scope = {**scope_of("ann"), "method": method}
        await responses.answer(scope, f"/v1/responses/resp_1{path}", cast("Any", Answers(answers)), record)
        assert json.loads(answers[0])
        assert asked[-1] == (ResponseKey("ann", "resp_1"), method == "DELETE")


class Answers:
    """The part of an exchange to which a response is written."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers

    async def respond(self, status: int, _headers: object, body: bytes) -> None:
        assert status == 200
        self._answers.append(body)
