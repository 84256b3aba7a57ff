"""Earlier calls without arguments, in every way in which clients write them."""

import pytest

from headrace.serving.wire.anthropic.dialect import AnthropicMessages
from headrace.serving.wire.ollama.dialect import OllamaChat
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.responses import OpenAIResponses
from tests.serving.wire.samples import parse

HI = {"role": "user", "content": "hi"}
NOTHING = [{"arguments": text} for text in ("null", " null ", "\n", "", "{}", None)]


def chat(function):
    return OpenAIChat(), {"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}]}


def legacy(function):
    return OpenAIChat(), {"messages": [HI, {"role": "assistant", "content": None, "function_call": function}]}


def responses(function):
    return OpenAIResponses(), {"input": [HI, {"type": "function_call", "call_id": "c", **function}]}


def anthropic(function):
    content = [{"type": "tool_use", "id": "c", **function}]
    result = [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]
    messages = [HI, {"role": "assistant", "content": content}, {"role": "user", "content": result}]
    return AnthropicMessages(), {"model": "m", "max_tokens": 9, "messages": messages}


def ollama(function):
    messages = [HI, {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}, HI]
    return OllamaChat(), {"model": "m", "messages": messages}


@pytest.mark.parametrize(
    ("form", "ways"),
    [
        (chat, [{}, *NOTHING, {"arguments": {}}]),
        (legacy, [{}, *NOTHING, {"arguments": {}}]),
        (responses, [{}, *NOTHING]),
        (anthropic, [{}, {"input": {}}, {"input": None}]),
        (ollama, [{}, {"arguments": {}}, {"arguments": None}]),
    ],
)
def test_an_earlier_call_without_arguments_has_an_empty_object(form, ways):
    for way in ways:
        dialect, fields = form({"name": "f", **way})
        (request,) = parse(dialect, **fields).requests
        (call,) = request.prompt.messages[1]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": {}}, way


CALLS = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
IN_CHAT = [HI, {"role": "assistant", "tool_calls": CALLS}] + [
    {"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("b", "unknown", "a")
]
IN_RESPONSES = [
    HI,
    *({"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in "ab"),
    *({"type": "function_call_output", "call_id": name, "output": f"of {name}"} for name in ("b", "unknown", "a")),
]
IN_MESSAGES = [
    HI,
    {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "ab"]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": name, "content": f"of {name}"} for name in ("b", "unknown", "a")
        ],
    },
]


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (OpenAIChat(), {"messages": IN_CHAT}),
        (OpenAIResponses(), {"input": IN_RESPONSES}),
        (AnthropicMessages(), {"model": "m", "max_tokens": 9, "messages": IN_MESSAGES}),
    ],
)
def test_results_of_parallel_calls_are_in_the_order_of_the_calls(dialect, fields):
    """Templates without ids tell the results apart by their order only; agents send them as their tools end."""
    (request,) = parse(dialect, **fields).requests
    results = [message for message in request.prompt.messages if message["role"] == "tool"]
    assert [result["content"] for result in results] == ["of a", "of b", "of unknown"]
