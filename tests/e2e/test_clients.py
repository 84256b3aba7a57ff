"""The clients that people already have read our streams without change, on the real model."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from huggingface_hub import InferenceClient

from tests import plain_http
from tests.serving.wire.readers import as_events, read_lmi_fragments, read_outputs, read_tgi, read_torchserve
from tests.waiting import WAIT_S

from .conftest import Served, serve

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


def test_the_openai_stream_has_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    ask = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    client.chat.completions.create(**ask)  # from here on the prompt is cached, and usage says so each time
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


def test_the_anthropic_client_continues_the_text_that_it_begins(server: Served) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="-", max_retries=0) as client:
        prefilled = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
        greedy = {"temperature": 0}
        message = client.messages.create(model="smollm2", max_tokens=16, messages=prefilled, extra_body=greedy)
        with client.messages.stream(model="smollm2", max_tokens=16, messages=prefilled, extra_body=greedy) as stream:
            text = "".join(stream.text_stream)

    assert message.content[0].text == text
    assert text.startswith(" Paris")


def test_a_request_without_sampling_gets_what_the_model_s_card_recommends(
    client: openai.OpenAI, server: Served
) -> None:
    facts = plain_http.get(f"{server.url}/info").json()["headrace"]
    answers = [
        client.chat.completions.create(model="smollm2", messages=QUESTION, seed=seed, max_tokens=48, **sampling)
        for seed in range(3)
        for sampling in ({}, {"temperature": 0.2, "top_p": 0.9, "extra_body": {"repetition_penalty": 1.1}})
    ]

    assert facts["sampling_defaults"]["temperature"] == facts["recommended_sampling"]["temperature"] == 0.2
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[::2] == texts[1::2]


def test_an_answer_matches_its_json_schema(client: openai.OpenAI) -> None:
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
        model="smollm2",
        messages=QUESTION,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
        temperature=0,
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


PROMPT = f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"


def parts(url: str, parameters: dict[str, object]) -> list[bytes]:
    """The stream of `/invocations` as the server sent it."""
    payload = {"inputs": PROMPT, "parameters": {"max_new_tokens": 24, **parameters}, "stream": True}
    with plain_http.stream("POST", f"{url}/invocations", json=payload, timeout=WAIT_S) as response:
        assert response.status_code == 200, response.read()
        return list(response.iter_raw())


def test_the_line_iterator_of_the_tgi_article_reads_invocations_cut_into_pieces_of_any_size(server: Served) -> None:
    body = b"".join(parts(server.url, {"return_full_text": False, "stop": ["</s>"]}))
    for piece_bytes in (1, 7, 4096):
        pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
        assert "Paris" in read_tgi(as_events(pieces))


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        (["--dialect", "lmi-0.25"], read_lmi_fragments),
        (["--dialect", "lmi-0.25", "--output-formatter", "jsonlines"], read_outputs),
        (["--dialect", "lmi-0.26"], read_tgi),
        (["--dialect", "lmi-17"], read_tgi),
    ],
    ids=["lmi-0.25", "lmi-0.25-jsonlines", "lmi-0.26", "lmi-17"],
)
def test_the_readers_of_the_lmi_articles_read_invocations(
    flags: list[str], read: Callable[[list[dict]], str], smollm2_path: Path, tmp_path: Path
) -> None:
    served = serve(smollm2_path, tmp_path, *flags)
    try:
        text = read(as_events(parts(served.url, {})))
    finally:
        served.stop()

    assert "Paris" in text


def test_the_parser_of_the_torchserve_article_reads_a_folder_as_it_was_packed(
    smollm2_path: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "model" / "packed"
    packed.mkdir(parents=True)
    shutil.copyfile(smollm2_path, packed / "weights.gguf")
    (packed / "model-config.yaml").write_text("minWorkers: 1\nhandler:\n  model_path: weights.gguf\n  max_length: 8\n")
    (packed / "inf2_handler.py").write_text("raise SystemExit\n")
    served = serve(tmp_path / "model", tmp_path)
    prompt = "The capital of France is"
    try:
        with plain_http.stream(
            "POST",
            f"{served.url}/invocations",
            content=prompt,
            headers={"Content-Type": "application/json"},
            timeout=WAIT_S,
        ) as response:
            assert response.status_code == 200, response.read()
            text = " ".join(read_torchserve(as_events(list(response.iter_raw()))))
    finally:
        served.stop()

    assert text.startswith(f"{prompt} ")
    assert "Paris" in text
    assert "inf2_handler.py has no effect" in served.log_path.read_text()
