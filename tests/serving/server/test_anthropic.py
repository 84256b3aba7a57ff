"""Anthropic's SDK against the server without a model."""

import pytest

from headrace.core.errors import Busy
from headrace.testing.echo import EchoScript
from headrace.testing.server import echo_server

WORDS = "one two three four"
MESSAGES = [{"role": "user", "content": WORDS}]


@pytest.fixture
def client(echo):
    import anthropic

    with anthropic.Anthropic(base_url=echo.url, api_key="-", max_retries=0) as made:
        yield made


def test_a_message_is_answered(client):
    message = client.messages.create(model="echo", max_tokens=9, messages=MESSAGES)
    assert message.content[0].text == WORDS
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 6, 5)
    assert message.id == f"msg_{message._request_id}"


def test_a_message_is_streamed(client):
    with client.messages.stream(model="echo", max_tokens=3, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "one two three"
        message = stream.get_final_message()
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("max_tokens", 6, 3)


def test_a_prefilled_message_is_continued(client):
    import anthropic

    prefilled = [*MESSAGES, {"role": "assistant", "content": "five six"}]
    message = client.messages.create(model="echo", max_tokens=9, messages=prefilled)
    assert message.content[0].text == "five six"
    with pytest.raises(anthropic.BadRequestError, match="trailing whitespace"):
        client.messages.create(model="echo", max_tokens=9, messages=[*MESSAGES, {"role": "assistant", "content": "a "}])


def test_tokens_are_counted(client):
    assert client.messages.count_tokens(model="echo", messages=MESSAGES).input_tokens == 6


def test_models_are_listed(client, echo):
    (model,) = client.models.list(limit=1000)
    assert client.models.retrieve("echo") == model
    assert (model.id, model.type, model.display_name, model.lifecycle) == ("echo", "model", "echo", "active")
    assert model.created_at.timestamp() == echo.backend.info.created_s


def test_the_sdk_raises_its_own_errors(client, echo):
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match=r"temperature: 2\.0 is greater than 1"):
        client.messages.create(model="echo", max_tokens=1, messages=MESSAGES, extra_body={"temperature": 2.0})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 602 tokens > 511 maximum"):
        client.messages.create(model="echo", max_tokens=1, messages=[{"role": "user", "content": "w " * 600}])
    echo.backend.script = EchoScript(refusal=Busy("Full."))
    with pytest.raises(anthropic.RateLimitError):
        client.messages.create(model="echo", max_tokens=1, messages=MESSAGES)


def test_an_answer_ends_where_the_context_is_full(client, echo):
    """Claude Code asks any model for 32,000 tokens, in streams."""
    echo.backend.script = EchoScript(answer=lambda _: "word " * 600)
    message = client.messages.create(model="echo", max_tokens=20_000, messages=MESSAGES)
    used = message.usage.input_tokens + message.usage.output_tokens
    assert (message.stop_reason, used) == ("model_context_window_exceeded", echo.backend.info.max_model_len)


def test_a_failure_in_a_stream_is_an_error_of_the_sdk(client, echo):
    import anthropic

    echo.backend.script = EchoScript(fail_after_tokens=2)
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="echo", max_tokens=9, messages=MESSAGES) as stream,
    ):
        stream.until_done()
    assert caught.value.body["error"]["type"] == "api_error"


def test_the_key_is_sent_in_either_header():
    import anthropic

    with echo_server(api_key="secret") as server:
        for options in ({"api_key": "secret"}, {"auth_token": "secret"}):
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **options) as client:
                assert client.messages.create(model="echo", max_tokens=1, messages=MESSAGES).content[0].text == "one"
        with (
            anthropic.Anthropic(base_url=server.url, max_retries=0, api_key="wrong") as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.messages.create(model="echo", max_tokens=1, messages=MESSAGES)
