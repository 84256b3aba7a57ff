"""Constrained answers for the clients that people already have, on the real model: valid, closed and ended."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import openai
import pytest
from huggingface_hub import InferenceClient

from .conftest import Served

pytestmark = pytest.mark.model

ROOT = Path(__file__).parent.parent.parent
QUESTION = [{"role": "user", "content": "Describe Paris: is it the capital of France?"}]
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "is_capital": {"type": "boolean"}},
    "required": ["name", "is_capital"],
}
TOOLS = [
    {"type": "function", "function": {"name": "describe", "parameters": CITY}},
    {"type": "function", "function": {"name": "travel", "parameters": CITY}},
]


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def results(server: Served) -> dict[str, dict[str, str]]:
    """The result of each call of `structured_clients.py`; creating its environment takes a minute the first time."""
    made = subprocess.run([ROOT / "scripts" / "environment", "clients"], capture_output=True, text=True)
    if made.returncode != 0:
        why = f"the clients cannot be installed: {made.stderr[-1000:]}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    script = Path(__file__).with_name("structured_clients.py")
    env = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([made.stdout.strip(), script, server.url], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {result["call"]: result for result in map(json.loads, done.stdout.splitlines())}


def check_is_city(text: str) -> None:
    """The answer has ended, and holds what the schema asks for and nothing else."""
    value = json.loads(text)
    jsonschema.validate(value, CITY)
    assert value.keys() == CITY["properties"].keys()


@pytest.mark.parametrize(
    "call",
    [
        "openai-parse",
        "instructor-json-schema",
        "instructor-tools",
        "outlines-vllm-json",
        "outlines-tgi-json",
        "langchain-json-schema",
        "langchain-function-calling",
        "text-generation-grammar",
        "hub-grammar",
        "hub-chat",
    ],
)
def test_a_client_gets_an_object_of_its_class(call: str, results: dict[str, dict[str, str]]) -> None:
    assert "error" not in results[call], results[call]
    value = json.loads(results[call]["text"])
    assert value.keys() == {"name", "is_capital", "inhabitants", "size", "tags"}
    assert 0 <= value["inhabitants"] <= 999
    assert value["size"] in {"small", "large"}
    assert set(value["tags"]) <= {"river", "tower", "museum"}
    assert len(value["tags"]) <= 1


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        ("outlines-vllm-regex", "[A-Z][a-z]{2,8}"),
        ("outlines-vllm-choice", "yes|no"),
        ("outlines-vllm-grammar", "yes|no"),
        ("outlines-tgi-regex", "[A-Z][a-z]{2,8}"),
        ("text-generation-chat", "fp_[0-9a-f]{10}"),
    ],
)
def test_a_client_gets_text_that_matches_its_constraint(
    call: str, pattern: str, results: dict[str, dict[str, str]]
) -> None:
    assert "error" not in results[call], results[call]
    assert re.fullmatch(pattern, results[call]["text"])


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
        {"type": "json_object", "value": CITY},
        {"type": "json", "value": CITY},
    ],
    ids=lambda wanted: wanted["type"],
)
def test_the_hugging_face_client_chats_in_json(response_format: dict[str, object], server: Served) -> None:
    client = InferenceClient(base_url=f"{server.url}/v1")
    answer = client.chat_completion(QUESTION, response_format=response_format, max_tokens=60, temperature=0)
    check_is_city(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


def test_the_hugging_face_client_calls_a_function_by_its_name(server: Served) -> None:
    client = InferenceClient(base_url=f"{server.url}/v1")
    answer = client.chat_completion(QUESTION, tools=TOOLS, tool_choice="travel", max_tokens=60, temperature=0)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "travel"
    check_is_city(call.function.arguments)


def test_the_hugging_face_client_generates_by_a_grammar(server: Served) -> None:
    client = InferenceClient(server.url)
    for grammar in ({"type": "json", "value": CITY}, {"type": "json_schema", "value": {"schema": CITY}}):
        check_is_city(client.text_generation("Paris: ", grammar=grammar, max_new_tokens=60, return_full_text=False))
    text = client.text_generation("In ", grammar={"type": "regex", "value": "1[0-9]{3}"}, return_full_text=False)
    assert re.fullmatch("1[0-9]{3}", text)


@pytest.mark.parametrize(
    "extra",
    [
        {"structured_outputs": {"json": CITY}},
        {"structured_outputs": {"json": json.dumps(CITY), "disable_any_whitespace": True}},
        {"guided_json": CITY},
        {"json_schema": json.dumps(CITY)},
        {"response_format": {"type": "json_object", "schema": CITY}},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_the_openai_client_gets_json_for_every_servers_spelling(
    extra: dict[str, object], client: openai.OpenAI
) -> None:
    ask = {"model": "smollm2", "messages": QUESTION, "max_tokens": 60, "temperature": 0, "extra_body": extra}
    choice = client.chat.completions.create(**ask).choices[0]
    check_is_city(choice.message.content)
    assert choice.finish_reason == "stop"


def test_a_constrained_stream_has_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    ask = {"model": "smollm2", "messages": QUESTION, "max_tokens": 60, "temperature": 0, "response_format": wanted}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    stream = client.chat.completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    travel = {"type": "function", "function": {"name": "travel"}}
    answer = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [travel]}},
        parallel_tool_calls=False,
        max_tokens=80,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "travel"
    check_is_city(call.function.arguments)


def test_a_field_that_is_not_applied_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="smollm2", prompt="Hi", extra_body={"use_beam_search": True})
    assert caught.value.param == "use_beam_search"
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=QUESTION, response_format=bad)
    assert caught.value.param == "response_format.json_schema.schema"
