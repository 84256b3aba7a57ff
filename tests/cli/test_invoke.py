"""`headrace invoke` against a gateway whose workers answer what a test scripts."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.gateway.conftest import Running, running
from tests.gateway.workers import Exchange

CHAT = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}
COMPLETION = [{"generated_text": " is wide"}]


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.fixture
def gateway(shared_gateway: Running) -> Iterator[Running]:
    yield shared_gateway
    shared_gateway.clean_up()


async def answer(exchange: Exchange, *, models: object, value: object = None) -> None:
    """Answer the list of models, and a request with what its form asks for."""
    if exchange.asked.method == "GET":
        status = "404 Not Found" if models is None else "200 OK"
        exchange.whole(json.dumps(models).encode(), status=status, content_type="application/json")
        return
    default = CHAT if "messages" in json.loads(exchange.asked.body) else COMPLETION
    exchange.whole(json.dumps(default if value is None else value).encode(), content_type="application/json")


def listed(*, has_chat_template: bool) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", "has_chat_template": has_chat_template}]}


def sent(gateway: Running) -> dict:
    asked = gateway.workers[0].asked[-1]
    assert (asked.method, asked.path) == ("POST", "/invocations")
    return json.loads(asked.body)


def test_a_text_for_an_instruct_model_is_a_user_message(gateway, headrace) -> None:
    gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    result = headrace("invoke", "ep", "What is 2+2?", "-p", "max_new_tokens=9", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (0, "4\n"), result.stderr
    assert sent(gateway) == {
        "messages": [{"role": "user", "content": "What is 2+2?"}],
        "max_tokens": 9,
        "temperature": 0,
    }


def test_completion_continues_the_text_of_an_instruct_model(gateway, headrace) -> None:
    worker = gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    result = headrace("invoke", "ep", "The sea", "--completion", "--url", gateway.url)
    assert result.stdout == " is wide\n", result.stderr
    assert sent(gateway)["inputs"] == "The sea"
    assert len(worker.asked) == 1


@pytest.mark.parametrize(
    "models", [listed(has_chat_template=False), {"data": [{"id": "m"}]}, {"data": None}, ["a model"], {}, None]
)
def test_a_model_that_is_not_known_to_chat_gets_inputs(gateway, headrace, models: object) -> None:
    gateway.serve(partial(answer, models=models))
    result = headrace("invoke", "ep", "The sea", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (0, " is wide\n"), result.stderr
    assert sent(gateway)["inputs"] == "The sea"


def test_a_body_is_sent_unchanged_without_a_look_at_the_model(gateway, headrace) -> None:
    worker = gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    headrace("invoke", "ep", '{"inputs": "x"}', "--url", gateway.url)
    assert [request.body for request in worker.asked] == [b'{"inputs": "x"}']


def test_an_answer_without_text_is_explained(gateway, headrace) -> None:
    empty = {"choices": [{"message": {"content": None, "reasoning": "Hm"}, "finish_reason": "length"}]}
    gateway.serve(partial(answer, models=listed(has_chat_template=True), value=empty))
    result = headrace("invoke", "ep", "What is 2+2?", "--url", gateway.url)
    assert result.stdout == "\n"
    assert "The answer has no text" in result.stderr
    assert "-p max_tokens=N" in result.stderr
