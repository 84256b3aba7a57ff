"""The Responses API of OpenAI's SDK against the server without a model."""

from pathlib import Path

import pytest

from headrace.core.errors import Busy
from headrace.testing.echo import EchoScript

from .conftest import serving

WORDS = "one two three four"


@pytest.fixture
def client(echo):
    import openai

    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def test_a_response_is_answered(client):
    response = client.responses.create(model="echo", input=WORDS)
    assert (response.output_text, response.status) == (WORDS, "completed")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (6, 5)


def test_a_response_is_streamed(client):
    with client.responses.stream(model="echo", input=WORDS, max_output_tokens=9) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert "".join(texts) == response.output_text == WORDS
    assert len(texts) == 4


def test_a_response_that_is_cut_ends_the_stream_as_incomplete(client):
    *_, last = client.responses.create(model="echo", input=WORDS, max_output_tokens=2, stream=True)
    assert (last.type, last.response.output_text) == ("response.incomplete", "one two")


def test_logprobs_come_with_the_text(client):
    response = client.responses.create(model="echo", input=WORDS, top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert [item.token for item in logprobs] == ["one", " two", " three", " four"]
    assert len(logprobs[0].top_logprobs) == 2


def test_the_sdk_raises_its_own_errors(client, echo):
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(model="echo", input="w " * 600)
    with pytest.raises(openai.BadRequestError, match="--stored-responses-age-s") as raised:
        client.responses.create(model="echo", input="Hi", previous_response_id="resp_1")
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
    echo.backend.script = EchoScript(refusal=Busy("Full."))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="echo", input="Hi", stream=True)


def test_the_sdk_sees_an_error_inside_a_stream(client, echo):
    import openai

    echo.backend.script = EchoScript(fail_after_tokens=2)
    events = []
    with pytest.raises(openai.APIError, match="The echo broke"):
        events.extend(client.responses.create(model="echo", input=WORDS, stream=True))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["one", " two"]
    failed = client.responses.retrieve(events[0].response.id)
    assert (failed.status, failed.error.code, failed.output_text) == ("failed", "server_error", "one two")
    with pytest.raises(openai.BadRequestError, match="Continue the one before"):
        client.responses.create(model="echo", input="on", previous_response_id=failed.id)


def test_a_response_is_stored_continued_and_deleted(client, echo):
    import openai

    first = client.responses.create(model="echo", input="one", instructions="Be brief.")
    assert client.responses.retrieve(first.id) == first
    *_, end = client.responses.create(model="echo", input="two", previous_response_id=first.id, stream=True)
    second = client.responses.retrieve(end.response.id)
    assert (second.previous_response_id, second.output_text) == (first.id, end.response.output_text)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=f"'{first.id}' not found"):
        client.responses.retrieve(first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "one"),
        ("assistant", first.output_text),
        ("user", "two"),
    ]
    third = client.responses.create(model="echo", input="three", previous_response_id=second.id)
    assert [item.id for item in client.responses.input_items.list(third.id, order="asc")][:3] == [
        item.id for item in items
    ]
    assert third.usage.input_tokens > second.usage.input_tokens


def test_input_tokens_are_counted_as_the_response_counts_them(client):
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    asked = {"model": "echo", "input": "one two", "instructions": "Be brief.", "tools": tools}
    response = client.responses.create(**asked)
    count = client.responses.input_tokens.count(**asked)
    assert (count.object, count.input_tokens) == ("response.input_tokens", response.usage.input_tokens)
    continued = {"model": "echo", "input": "three", "previous_response_id": response.id}
    count = client.responses.input_tokens.count(**continued)
    assert count.input_tokens == client.responses.create(**continued).usage.input_tokens


def test_a_count_of_input_tokens_refuses_what_a_response_refuses(client):
    import openai

    with pytest.raises(openai.BadRequestError, match="style presets") as raised:
        client.responses.input_tokens.count(model="echo", input="one", personality="friendly")
    assert raised.value.param == "personality"
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.input_tokens.count(model="echo", input="one", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="input"):
        client.responses.input_tokens.count(model="echo")


def test_a_response_is_not_stored_if_its_request_says_so(client):
    import openai

    response = client.responses.create(model="echo", input="one", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_what_stored_responses_lack_is_refused(client):
    import openai

    stored = client.responses.create(model="echo", input="one")
    with pytest.raises(openai.BadRequestError, match="'stream' is not supported here"):
        client.responses.retrieve(stored.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="Only responses with 'background'"):
        client.responses.cancel(stored.id)
    with pytest.raises(openai.BadRequestError, match="'background' is not supported"):
        client.responses.create(model="echo", input="one", background=True)


@pytest.mark.parametrize("options", [{"stored_responses_bytes": 0}, {"fetch_adapter": Path}])
def test_a_server_without_a_store_says_so(options):
    import openai

    with serving(**options) as echo, openai.OpenAI(base_url=f"{echo.url}/v1", api_key="-", max_retries=0) as client:
        response = client.responses.create(model="echo", input="one", store=True)
        assert response.model_extra["store"] is False
        with pytest.raises(openai.BadRequestError, match="does not store responses"):
            client.responses.create(model="echo", input="two", previous_response_id=response.id)
        with pytest.raises(openai.NotFoundError, match="responses are not stored here"):
            client.responses.retrieve(response.id)
