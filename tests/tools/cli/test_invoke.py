"""`headrace invoke` against a gateway whose workers answer what a test scripts."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.platform.gateway.conftest import Running, running
from tests.platform.gateway.workers import Exchange

CHAT = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}
TEXT = {"choices": [{"text": " is wide", "finish_reason": "length"}]}
COMPLETION = [{"generated_text": " is wide"}]
RULE = {"max_pattern_size": 256, "min_pattern_size": 24, "min_count": 3}


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
    fields = json.loads(exchange.asked.body)
    default = CHAT if "messages" in fields else TEXT if "prompt" in fields else COMPLETION
    exchange.whole(json.dumps(default if value is None else value).encode(), content_type="application/json")


def listed(*, has_chat_template: bool) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", "has_chat_template": has_chat_template}]}


def sent(gateway: Running) -> dict:
    asked = gateway.workers[0].asked[-1]
    assert (asked.method, asked.path) == ("POST", "/invocations")
    return json.loads(asked.body)


def test_a_text_for_an_instruct_model_is_a_user_message(gateway, headrace) -> None:
    gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    result = headrace("invoke", "ep", "What is 2+2?", "-n", "9", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (0, "4\n"), result.stderr
    assert sent(gateway) == {
        "messages": [{"role": "user", "content": "What is 2+2?"}],
        "max_tokens": 9,
        "temperature": 0,
        "repetition_detection": RULE,
    }


@pytest.mark.parametrize(("has_chat_template", "option"), [(True, ["--completion"]), (False, [])])
def test_a_text_is_completed_with_the_option_and_by_a_base_model(
    gateway, headrace, has_chat_template: bool, option: list[str]
) -> None:
    gateway.serve(partial(answer, models=listed(has_chat_template=has_chat_template)))
    result = headrace("invoke", "ep", "The sea", *option, "--url", gateway.url)
    assert result.stdout == " is wide\n", result.stderr
    assert result.stderr.splitlines()[-1] == "The answer was cut at 1,024 tokens. Raise --max-new-tokens (-n)."
    body = {"prompt": "The sea", "max_tokens": 1024, "temperature": 0, "repetition_detection": RULE}
    assert sent(gateway) == body


@pytest.mark.parametrize("models", [{"data": [{"id": "m"}]}, {"data": None}, ["a model"], {}, None])
def test_a_server_that_does_not_list_its_model_as_headrace_does_gets_inputs(gateway, headrace, models: object) -> None:
    gateway.serve(partial(answer, models=models))
    result = headrace("invoke", "ep", "The sea", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (0, " is wide\n"), result.stderr
    assert sent(gateway)["inputs"] == "The sea"


def test_a_parameter_that_only_inputs_have_sends_inputs(gateway, headrace) -> None:
    gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    headrace("invoke", "ep", "The sea", "-P", "details=true", "--url", gateway.url)
    assert sent(gateway)["inputs"] == "The sea"


def test_a_short_context_leaves_room_for_the_prompt(gateway, headrace) -> None:
    models = {"data": [{"id": "m", "has_chat_template": True, "max_model_len": 512}]}
    gateway.serve(partial(answer, models=models))
    headrace("invoke", "ep", "What is 2+2?", "--url", gateway.url)
    assert sent(gateway)["max_tokens"] == 256


async def refuse_maximum(exchange: Exchange) -> None:
    """Refuse a maximum of tokens, as a server does whose context is too short for it."""
    if exchange.asked.method == "POST" and "max_tokens" in json.loads(exchange.asked.body):
        error = {"error": {"message": "too long", "code": "context_length_exceeded"}}
        exchange.whole(json.dumps(error).encode(), status="400 Bad Request", content_type="application/json")
        return
    await answer(exchange, models=listed(has_chat_template=True))


def test_a_prompt_that_leaves_less_than_the_default_maximum_is_answered(gateway, headrace) -> None:
    gateway.serve(refuse_maximum)
    result = headrace("invoke", "ep", "What is 2+2?", "--url", gateway.url)
    assert result.stdout == "4\n", result.stderr
    result = headrace("invoke", "ep", "What is 2+2?", "-P", "max_tokens=9", "--url", gateway.url)
    assert result.exit_code != 0


def test_an_answer_that_repeated_itself_says_so(gateway, headrace) -> None:
    choice = {"message": {"content": "la la"}, "finish_reason": "stop", "stop_reason": "repetition_detected"}
    gateway.serve(partial(answer, models=listed(has_chat_template=True), value={"choices": [choice]}))
    result = headrace("invoke", "ep", "Sing.", "--url", gateway.url)
    assert result.stdout == "la la\n"
    assert "stopped because it repeated itself. -P repetition_detection=null lets it go on." in result.stderr


def test_a_body_is_sent_unchanged_without_a_look_at_the_model(gateway, headrace) -> None:
    worker = gateway.serve(partial(answer, models=listed(has_chat_template=True)))
    headrace("invoke", "ep", '{"inputs": "x"}', "--url", gateway.url)
    assert [request.body for request in worker.asked] == [b'{"inputs": "x"}']


def test_an_answer_without_text_is_explained(gateway, headrace) -> None:
    empty = {"choices": [{"message": {"content": None, "reasoning": "Hm"}, "finish_reason": "length"}]}
    gateway.serve(partial(answer, models=listed(has_chat_template=True), value=empty))
    result = headrace("invoke", "ep", "What is 2+2?", "--url", gateway.url)
    assert result.stdout == "\n"
    assert "It has no text: it ended within its reasoning" in result.stderr
    assert "was cut at 1,024 tokens" in result.stderr
    assert "--max-new-tokens (-n)" in result.stderr
