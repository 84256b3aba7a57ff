"""The clients that people already have, against the server without a model."""

import json

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.errors import ValidationError as HubValidationError

from headrace.core.errors import Busy
from headrace.testing.echo import EchoScript

WORDS = "one two three four"
MESSAGES = [{"role": "user", "content": WORDS}]


@pytest.fixture
def client(echo):
    import openai

    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def test_openai_chats(client):
    answer = client.chat.completions.create(model="echo", messages=MESSAGES)
    assert answer.choices[0].message.content == WORDS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 5


def test_openai_streams_with_usage(client):
    stream = client.chat.completions.create(
        model="echo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == WORDS
    assert chunks[-1].usage.completion_tokens == 5


def test_openai_completes_with_several_choices_and_logprobs(client):
    answer = client.completions.create(model="echo", prompt=WORDS, n=2, logprobs=2, max_tokens=3)
    assert [choice.text for choice in answer.choices] == ["one two three", " two three four"]
    assert len(answer.choices[0].logprobs.token_logprobs) == 3
    assert len(answer.choices[0].logprobs.top_logprobs[0]) == 2


def test_openai_stops_at_a_stop_string(client):
    answer = client.completions.create(model="echo", prompt=WORDS, stop=" three")
    assert answer.choices[0].text == "one two"
    assert answer.choices[0].finish_reason == "stop"


def test_openai_raises_its_own_errors(client, echo):
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="echo", prompt="w " * 600)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="echo", messages=MESSAGES, temperature=-1)
    echo.backend.script = EchoScript(refusal=Busy("Full."))
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="echo", messages=MESSAGES)


def test_openai_sees_an_error_inside_a_stream(client, echo):
    import openai

    echo.backend.script = EchoScript(fail_after_tokens=2)
    stream = client.chat.completions.create(model="echo", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="The echo broke"):
        list(stream)


def test_openai_lists_models(client):
    assert [model.id for model in client.models.list()] == ["echo"]


async def test_an_openai_stream_that_is_closed_ends_the_request(echo):
    import openai

    echo.backend.script = EchoScript(delay_s=0.01)
    async with openai.AsyncOpenAI(base_url=f"{echo.url}/v1", api_key="-", max_retries=0) as client:
        stream = await client.completions.create(
            model="echo", prompt="a", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
    echo.until(lambda: echo.backend.aborted, "the abort")


def test_hugging_face_generates_whole_and_streamed_with_details(echo):
    client = InferenceClient(echo.url)
    whole = client.text_generation(WORDS, details=True, max_new_tokens=3)
    tokens = list(client.text_generation(WORDS, stream=True, details=True, max_new_tokens=3))
    assert whole.generated_text.endswith("one two three")
    assert whole.details.finish_reason == "length"
    assert [token.token.text for token in tokens] == ["one", " two", " three"]
    assert tokens[-1].details.generated_tokens == 3


def test_hugging_face_chats(echo):
    client = InferenceClient(base_url=f"{echo.url}/v1")
    answer = client.chat_completion(MESSAGES, model="echo")
    pieces = [
        chunk.choices[0].delta.content or "" for chunk in client.chat_completion(MESSAGES, model="echo", stream=True)
    ]
    assert answer.choices[0].message.content == WORDS
    assert "".join(pieces) == WORDS


def test_hugging_face_raises_tgis_validation_error(echo):
    client = InferenceClient(echo.url)
    with pytest.raises((HubValidationError, HfHubHTTPError, httpx.HTTPStatusError)):
        client.text_generation(WORDS, temperature=-1.0)


class LineIterator:
    """As the SageMaker articles have it: lines from parts that are cut anywhere."""

    def __init__(self, parts):
        self.parts = iter(parts)
        self.buffer = bytearray()
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            end = self.buffer.find(b"\n", self.position)
            if end >= 0:
                line = bytes(self.buffer[self.position : end])
                self.position = end + 1
                return line
            self.buffer += next(self.parts)


@pytest.mark.parametrize("piece_bytes", [1, 7, 4096])
def test_the_line_iterator_of_the_articles_reads_invocations(echo, piece_bytes):
    body = {"inputs": WORDS, "parameters": {"max_new_tokens": 8, "return_full_text": False}, "stream": True}
    text = ""
    with echo.client.stream("POST", "/invocations", json=body) as response:
        for line in LineIterator(response.iter_bytes(piece_bytes)):
            if line.startswith(b"data:"):
                token = json.loads(line[5:])["token"]
                text += "" if token["special"] else token["text"]
    assert text == WORDS
