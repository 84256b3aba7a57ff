"""The list of models over OpenAI's API: endpoints, components, and what their workers tell."""

import json

import pytest

from headrace.platform.state.routes import ComponentRoute

from .conftest import Running, running
from .openai_worker import MESSAGES, chat, client_of_openai
from .routes import asleep, component, route, variant
from .workers import Exchange, Script


def test_endpoints_are_the_models(gateway):
    import openai

    worker = gateway.worker()
    serving = variant("AllTraffic", [worker.url])
    gateway.put(
        route(serving, endpoint="b"), route(serving, endpoint="a"), route(endpoint="creating", status="Creating")
    )
    with client_of_openai(gateway, "/v1") as client:
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

    monkeypatch.setattr("headrace.platform.gateway.openai_models.WAIT_S", 0.02)
    monkeypatch.setattr("headrace.platform.gateway.openai_models.FETCH_TIMEOUT_S", 0.1)
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
        with client_of_openai(gateway, "/v1") as client:
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


@pytest.mark.parametrize("path", ["/v1/models/nowhere", "/endpoints/nowhere/openai/v1/messages"])
def test_anthropics_clients_get_errors_in_their_form(gateway, path):
    headers = {"anthropic-version": "2023-06-01"}
    answer = gateway.client.request("GET" if path.startswith("/v1/") else "POST", path, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_the_model_list_of_one_endpoint_comes_from_its_worker(gateway):
    async def models(exchange: Exchange) -> None:
        assert exchange.asked.method == "GET"
        exchange.whole(
            b'{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1, "owned_by": "x"}]}'
        )

    gateway.serve(models)
    with client_of_openai(gateway, "/endpoints/ep/openai/v1") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
