"""Ollama's Python package against the server without a model."""

import httpx
import pytest

from headrace.core.errors import Busy
from headrace.testing.echo import EchoScript
from headrace.testing.server import echo_server

WORDS = "one two three four"
MESSAGES = [{"role": "user", "content": WORDS}]


@pytest.fixture
def client(echo):
    import ollama

    with ollama.Client(echo.url) as made:
        yield made


def weather(city: str) -> str:
    """Look at the sky.

    Args:
        city: where to look.
    """
    return city


def test_a_chat_is_answered(client):
    answer = client.chat("echo", MESSAGES)
    assert answer.message.content == WORDS
    assert (answer.done_reason, answer.prompt_eval_count, answer.eval_count) == ("stop", 6, 5)
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0
    assert min(answer.prompt_eval_duration, answer.eval_duration) >= 0


def test_a_chat_is_streamed(client):
    lines = list(client.chat("echo:latest", MESSAGES, stream=True, options={"num_predict": 3}))
    assert "".join(line.message.content for line in lines) == "one two three"
    assert (lines[-1].done, lines[-1].done_reason, lines[-1].eval_count) == (True, "length", 3)
    assert lines[-1].total_duration > 0


def test_a_function_of_python_is_a_tool(client):
    said = 'Use <tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
    (call,) = client.chat("echo", [{"role": "user", "content": said}], tools=[weather]).message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Bonn"})


def test_a_format_reaches_the_engine(client, echo):
    client.chat("echo", MESSAGES, format={"type": "object"})
    client.generate("echo", WORDS, format="json")
    assert [request.sampling.grammar.kind for request in echo.backend.requests] == ["json_schema", "json_object"]


def test_a_prompt_is_answered_with_and_without_the_chat_template(client, echo):
    assert client.generate("echo", WORDS, system="Be brief.").response.endswith(WORDS)
    assert "".join(line.response for line in client.generate("echo", WORDS, raw=True, stream=True)) == WORDS
    assert echo.backend.requests[1].prompt == WORDS


def test_a_model_is_loaded_without_a_prompt(client, echo):
    assert client.generate("echo").done_reason == "load"
    assert [line.done_reason for line in client.chat("echo", [], stream=True)] == ["load"]
    assert [record["status"] for record in echo.records(2)] == [200, 200]


def test_the_model_is_listed_shown_and_running(client):
    assert [model.model for model in client.list().models] == ["echo:latest"]
    assert client.show("echo").modelinfo["echo.context_length"] == 512
    assert [model.context_length for model in client.ps().models] == [512]
    assert client._client.get("/api/version").json()["version"]


def test_texts_become_vectors(client):
    answer = client.embed("echo", ["one two", "three"])
    assert [len(vector) for vector in answer.embeddings] == [8, 8]
    assert answer.prompt_eval_count == 3
    assert client.embeddings("echo", "three").embedding == pytest.approx(answer.embeddings[1])


def test_errors_have_their_status_and_text(client, echo):
    import ollama

    with pytest.raises(ollama.ResponseError, match=r"options\.temperature") as caught:
        client.chat("echo", MESSAGES, options={"temperature": -1})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="headrace serve MODEL") as caught:
        client.pull("llama3.2")
    assert caught.value.status_code == 404
    assert echo.client.get("/api/chat").json() == {"error": "GET /api/chat is not served; use POST."}
    echo.backend.script = EchoScript(refusal=Busy("Full."))
    with pytest.raises(ollama.ResponseError, match="Full") as caught:
        client.chat("echo", MESSAGES)
    assert caught.value.status_code == 429


def test_a_failure_in_a_stream_is_an_error_of_the_package(client, echo):
    import ollama

    echo.backend.script = EchoScript(fail_after_tokens=2)
    with pytest.raises(ollama.ResponseError):
        list(client.chat("echo", MESSAGES, stream=True))


def test_the_key_is_sent_as_bearer_token():
    import ollama

    with echo_server(api_key="secret") as server:
        with ollama.Client(server.url, headers={"Authorization": "Bearer secret"}) as client:
            assert client.chat("echo", MESSAGES).message.content == WORDS
        with httpx.Client(base_url=server.url) as plain:
            reply = plain.post("/api/chat", json={"model": "echo", "messages": MESSAGES})
    assert (reply.status_code, set(reply.json())) == (401, {"error"})
