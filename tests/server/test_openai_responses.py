"""The Responses API of OpenAI's SDK against the server without a model."""

import openai
import pytest

from headrace.core.errors import Busy
from headrace.testing.echo import EchoScript

WORDS = "one two three four"


@pytest.fixture
def client(echo):
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
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(model="echo", input="w " * 600)
    with pytest.raises(openai.BadRequestError, match="'previous_response_id' is not supported"):
        client.responses.create(model="echo", input="Hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="responses are not stored"):
        client.responses.retrieve("resp_1")
    echo.backend.script = EchoScript(refusal=Busy("Full."))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="echo", input="Hi", stream=True)


def test_the_sdk_sees_an_error_inside_a_stream(client, echo):
    echo.backend.script = EchoScript(fail_after_tokens=2)
    texts = []
    with pytest.raises(openai.APIError, match="The echo broke"):
        texts.extend(
            event.delta
            for event in client.responses.create(model="echo", input=WORDS, stream=True)
            if event.type == "response.output_text.delta"
        )
    assert texts == ["one", " two"]
