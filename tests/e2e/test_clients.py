"""The clients that people already have read our streams without change, on the real model."""

import json
from collections.abc import Iterable, Iterator

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient

from .conftest import Served

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def test_the_openai_client_gets_a_sensible_chat_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=32)

    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_openai_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    ask = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**ask)
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_the_openai_client_gets_logprobs_of_each_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )

    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for token in content:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)


def test_a_json_schema_is_obeyed(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )

    value = json.loads(answer.choices[0].message.content)
    assert set(value) == {"city", "is_capital"}
    assert isinstance(value["is_capital"], bool)


def test_a_required_tool_call_has_arguments_that_parse(client: openai.OpenAI) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=80, temperature=0
    )

    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_the_hugging_face_client_streams_text_and_details(server: Served) -> None:
    client = InferenceClient(server.url)

    tokens = list(client.text_generation("The sky is", stream=True, details=True, max_new_tokens=8))
    whole = client.text_generation("The sky is", max_new_tokens=8, return_full_text=False)

    assert "".join(token.token.text for token in tokens if not token.token.special) == whole
    assert tokens[-1].details.generated_tokens == 8
    assert tokens[-1].details.finish_reason == "length"


def test_the_hugging_face_client_chats(server: Served) -> None:
    client = InferenceClient(base_url=f"{server.url}/v1")
    answer = client.chat_completion(QUESTION, model="smollm2", max_tokens=32, temperature=0)

    assert "Paris" in answer.choices[0].message.content


class TgiLineIterator:
    """As the AWS sample for TGI does: lines of the joined parts, those that start with `data:` are JSON after it."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._buffer = bytearray()
        self._read = 0

    def __iter__(self) -> "TgiLineIterator":
        return self

    def __next__(self) -> bytes:
        while True:
            end = self._buffer.find(b"\n", self._read)
            if end >= 0:
                line = bytes(self._buffer[self._read : end])
                self._read = end + 1
                return line
            self._buffer += next(self._parts)


@pytest.mark.parametrize("piece_bytes", [1, 7, 4096])
def test_the_line_iterator_of_the_tgi_article_reads_invocations(server: Served, piece_bytes: int) -> None:
    payload = {
        "inputs": f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n",
        "parameters": {"max_new_tokens": 24, "return_full_text": False, "stop": ["</s>"]},
        "stream": True,
    }
    text = ""
    with httpx.stream("POST", f"{server.url}/invocations", json=payload, timeout=60) as response:
        for line in TgiLineIterator(response.iter_bytes(piece_bytes)):
            if line.startswith(b"data:"):
                token = json.loads(line[len(b"data:") :])["token"]
                text += "" if token["special"] else token["text"]

    assert "Paris" in text
