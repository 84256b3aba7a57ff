"""Tools of the Responses API that are no functions: namespaces, custom tools, and those of OpenAI's servers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.openai.responses_items import (
    MAX_NAME_CHARACTERS,
    custom_arguments,
    custom_input,
    function_name,
)
from tests.serving.wire.samples import whole
from tests.serving.wire.test_openai_responses import CLOCK, WEATHER, chunks, events_of, messages_of, parse

AGENTS = {
    "type": "namespace",
    "name": "agents_v1",
    "description": "Other agents.",
    "tools": [{**CLOCK, "name": "close"}, {"type": "custom", "name": "tell"}],
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.+/'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": GRAMMAR}
SEARCH = {"type": "web_search", "external_web_access": True}
PATCH_TEXT = '*** Begin Patch\n"quoted" \\ é\n*** End Patch'


def call_of(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_namespaces_and_custom_tools_become_functions_and_tools_of_openais_servers_are_left_out():
    parsed = parse(tools=[WEATHER, AGENTS, PATCH, SEARCH], context_management=[{"type": "compaction"}])
    functions = {tool["function"]["name"]: tool["function"] for tool in parsed.requests[0].prompt.tools}
    assert list(functions) == ["weather", "agents_v1__close", "agents_v1__tell", "apply_patch"]
    patch = functions["apply_patch"]["parameters"]
    assert (patch["required"], patch["properties"]["input"]["type"]) == (["input"], "string")
    assert GRAMMAR["definition"] in patch["properties"]["input"]["description"]
    assert set(parsed.ignored) == {"tools[2].format", "tools[3].web_search", "context_management"}
    echoed = json.loads(whole(parsed, chunks("Hi")))["tools"]
    assert echoed == [WEATHER, AGENTS, PATCH, SEARCH], "as they were sent"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            call_of("agents_v1__close", target="a"),
            {"type": "function_call", "namespace": "agents_v1", "name": "close", "arguments": '{"target": "a"}'},
        ),
        (
            call_of("agents_v1__tell", input="Go!"),
            {"type": "custom_tool_call", "namespace": "agents_v1", "name": "tell", "input": "Go!"},
        ),
        (
            call_of("apply_patch", input=PATCH_TEXT),
            {"type": "custom_tool_call", "namespace": None, "name": "apply_patch", "input": PATCH_TEXT},
        ),
        (
            call_of("weather", city="Bonn"),
            {"type": "function_call", "namespace": None, "name": "weather", "arguments": '{"city": "Bonn"}'},
        ),
    ],
)
def test_a_call_comes_back_as_one_of_the_tool_that_the_client_sent_and_can_be_sent_again(written, expected):
    from openai.types.responses import Response

    tools = [WEATHER, AGENTS, PATCH]
    parsed = parse(tools=tools, stream=True)
    events = events_of(parsed, written)
    (item,) = Response.model_validate(events[-1].response).output
    assert {name: getattr(item, name, None) for name in expected} == expected
    deltas = "".join(event.delta for event in events if event.type.endswith((".delta",)))
    assert deltas == (item.input if item.type == "custom_tool_call" else item.arguments)
    output = {"type": f"{item.type}_output", "call_id": item.call_id, "output": "done"}
    sent = item.model_dump(exclude_none=True)
    *_, call, result = messages_of(parse(tools=tools, input=[{"role": "user", "content": "Hi"}, sent, output]))
    (called,) = call["tool_calls"]
    assert called["function"]["name"] == json.loads(written[11:-12])["name"]
    assert called["function"]["arguments"] == json.loads(written[11:-12])["arguments"]
    assert (result["role"], result["content"]) == ("tool", "done")


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "close", "namespace": "agents_v1"}, "agents_v1__close"),
        ({"type": "function", "name": "weather"}, "weather"),
    ],
)
def test_a_tool_can_be_forced_whatever_its_type(choice, name):
    plan = parse(tools=[WEATHER, AGENTS, PATCH], tool_choice=choice).reply.options.plan.tools
    assert (plan.mode, plan.named) == ("named", name)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    assert parse(tools=[WEATHER, AGENTS, PATCH], tool_choice=allowed).reply.options.plan.tools.names == {name}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [SEARCH]}, "'web_search' runs on OpenAI's servers"),
        ({"tools": [SEARCH, {"type": "file_search"}]}, "'web_search' runs on OpenAI's servers"),
        ({"tools": [WEATHER, {"type": "computer"}]}, "'computer' is not supported"),
        ({"tools": [{**AGENTS, "tools": [SEARCH]}]}, r"tools\[0\].tools\[0\].type"),
        ({"tools": [{"type": "custom"}]}, r"Missing required parameter: 'tools\[0\].name'"),
        ({"tools": [AGENTS, {**CLOCK, "name": "agents_v1__close"}]}, "defined twice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "'web_search' is not supported"),
    ],
)
def test_what_no_client_can_run_is_refused_by_name(fields, said):
    with pytest.raises(InvalidRequest, match=said):
        parse(**fields)


@given(st.text(max_size=80), st.text(max_size=80))
def test_names_are_short_and_inputs_survive_the_way_through_a_function(first, second):
    assert len(function_name(second, first)) <= MAX_NAME_CHARACTERS
    assert custom_input(custom_arguments(first)) == first


def test_arguments_that_are_not_those_of_the_function_are_the_input_as_they_are():
    for text in ("*** Begin", "[1]", '{"other": 1}', '{"input": 3}', ""):
        assert custom_input(text) == text
