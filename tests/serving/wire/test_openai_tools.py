import json

import llguidance
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, FinishReason
from headrace.serving.wire.openai.answer_stream import ArgumentsDelta, CallStart, TextDelta, ToolStream
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.tools import Function, NamedFunction, Tool, ToolChoice, ToolPlan, plan_tools
from tests.serving.wire.samples import answer, cut, finish, parse, sse_objects, streamed, token, whole

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "d", "parameters": {"properties": {"city": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "tree.walk", "parameters": TREE}},
    {"type": "function", "function": {"name": "now"}},
]
HELLO = [{"role": "user", "content": "hi"}]
AUTO = ToolPlan(mode="auto", names=frozenset({"f", "get"}))
FORCED = ToolPlan(mode="required", names=frozenset({"f", "get"}))


def chat(**fields):
    return parse(OpenAIChat(), **{"messages": HELLO, "tools": TOOLS, **fields})


def read(plan, pieces):
    """Text, and the calls with their arguments."""
    stream = ToolStream(plan)
    deltas = [delta for piece in pieces for delta in stream.feed(piece)] + stream.finish()
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    calls = [(delta.name, "") for delta in deltas if isinstance(delta, CallStart)]
    for delta in deltas:
        if isinstance(delta, ArgumentsDelta):
            name, arguments = calls[delta.index]
            calls[delta.index] = (name, arguments + delta.text)
    return text, calls


CASES = [
    ("Hello <b>you</b>", "Hello <b>you</b>", []),
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"], "b": "\\"x"}}\n</tool_call>',
        "",
        [("f", '{"a": [1, "}"], "b": "\\"x"}')],
    ),
    (
        (
            'Sure. \n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
            '<tool_call>{"arguments":{"q":1},"name":"get"}</tool_call>\n'
        ),
        "Sure.",
        [("f", "{}"), ("get", '{"q":1}')],
    ),
    ('{"name": "f", "parameters": {"x": 1}}', "", [("f", '{"x": 1}')]),
    ('{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    ('[{"name":"f","arguments":{"a":1}}, {"name":"get"}]', "", [("f", '{"a":1}'), ("get", "{}")]),
    ('[TOOL_CALLS] [{"name":"f","arguments":"{\\"a\\": 1}"}]', "", [("f", '{"a": 1}')]),
    ('<tool_call>[{"name":"f","arguments":{}}]</tool_call> bye', "bye", [("f", "{}")]),
    ('<tool_call>{"name":"f","arguments":{}}<tool_call>{"name":"get"}', "", [("f", "{}"), ("get", "{}")]),
    ('<tool_call>{"name":"f","arguments":{"a":1', '<tool_call>{"name":"f","arguments":{"a":1', []),
    ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ('{"city": 1}', '{"city": 1}', []),
    ('<tool_call>{"name": "unknown"}</tool_call>', '<tool_call>{"name": "unknown"}</tool_call>', []),
    ("<tool_call>nope", "<tool_call>nope", []),
    ("a < b <tool_", "a < b <tool_", []),
    ("[1, 2]", "[1, 2]", []),
    ("[", "[", []),
    ("  ", "  ", []),
    ("Sure. \n", "Sure. \n", []),
    ('<tool_call><tool_call>{"name":"f"}</tool_call>', "<tool_call>", [("f", "{}")]),
]


@pytest.mark.parametrize(("written", "text", "calls"), CASES)
def test_calls_are_detected_in_the_text_of_models(written, text, calls):
    assert read(AUTO, [written]) == (text, calls)


@given(st.sampled_from(CASES), st.lists(st.integers(0, 100), max_size=20))
def test_calls_do_not_depend_on_how_the_text_is_split(case, places):
    written, text, calls = case
    pieces = [piece.decode() for piece in cut(written.encode(), places)]
    assert read(AUTO, pieces) == (text, calls)


fragments = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "f[ARGS]{", "[T"),
        *("{", "}", '"', "name", ":", "f", "[", "]", ",", " ", "\n", "\\", "x", "<", "null", "}}"),
        *('"name":"f"', '"arguments":{', '"arguments":{"a":1}', '"note":"x"', '"parameters":{"x":"</tool_call>"}'),
        *("<function=f>", "<parameter=a>", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *("</arg_value>", '<invoke name="f">', "</invoke>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        *(
            "<|tool_call_end|>",
            "<|tool_call_start|>",
            "f(a=",
            "'",
            ")",
            "<|tool_call>",
            "call:f{",
            '<|"|>',
            "<tool_call|>",
        ),
        *(
            '<|tool_call_start|>[f(a="x")]<|tool_call_end|>',
            "<tool_call>f</tool_call>",
            "<|tool_call>call:f{}<tool_call|>",
        ),
        *('"type":"function"', '"function":{', '{"name":"f","arguments":{"a":1}}', '{"name":"get"}', '"index":0'),
    ]
)


@given(st.lists(fragments, max_size=14), st.lists(st.integers(0, 150), max_size=20), st.sampled_from([AUTO, FORCED]))
def test_malformed_calls_do_not_depend_on_how_the_text_is_split(items, places, plan):
    written = "".join(items)
    text, calls = read(plan, [written])
    assert read(plan, [piece.decode() for piece in cut(written.encode(), places)]) == (text, calls)
    if plan is AUTO:
        assert calls or text == written
        assert all(name in plan.names and isinstance(json.loads(arguments), dict) for name, arguments in calls)


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.lists(st.integers(0, 60), max_size=6))
def test_plain_text_is_never_changed(text, places):
    pieces = ["".join(text[a:b]) for a, b in zip([0, *sorted(places)], [*sorted(places), len(text)], strict=True)]
    if not text.lstrip().startswith(("{", "[")):
        assert read(AUTO, pieces) == (text, [])


def test_a_second_call_is_dropped_if_only_one_is_allowed():
    plan = ToolPlan(mode="auto", names=AUTO.names, max_calls=1)
    written = '<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{"name":"get","arguments":{}}</tool_call>'
    assert read(plan, [written]) == ("", [("f", "{}")])
    in_one_block = '[{"name":"f","arguments":{}},{"name":"get","arguments":{"x":1}}]'
    assert read(plan, [in_one_block]) == ("", [("f", "{}")])


def grammar_of(plan):
    assert plan.grammar is not None
    return json.loads(plan.grammar.text)


def decoded():
    return msgspec.convert(TOOLS, list[Tool])


def accepts(schema, text):
    """Return whether llguidance's matcher accepts the text (bytes as tokens)."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(("parallel", "most"), [(True, 16), (False, 1)])
def test_required_calls_are_bounded_in_number(parallel, most):
    schema = grammar_of(plan_tools(decoded(), "required", parallel=parallel))
    call = {"name": "now", "arguments": {}}
    assert accepts(schema, json.dumps([call] * most))
    assert not accepts(schema, json.dumps([call] * (most + 1)))


def test_required_calls_are_an_array_of_known_functions():
    schema = grammar_of(plan_tools(decoded(), "required", parallel=True))
    assert accepts(schema, '[{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "now", "arguments": {}}]')
    assert accepts(schema, '[{"name": "tree.walk", "arguments": {"root": {"next": {"next": {}}}}}]')
    assert not accepts(schema, '[{"name": "tree.walk", "arguments": {"root": {"next": 1}}}]')
    assert not accepts(schema, "[]")
    assert not accepts(schema, '[{"name": "other", "arguments": {}}]')


def test_one_call_at_most_where_they_are_not_parallel():
    schema = grammar_of(plan_tools(decoded(), "required", parallel=False))
    assert accepts(schema, '[{"name": "now", "arguments": {}}]')
    assert not accepts(schema, '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]')


def test_a_named_call_is_its_arguments():
    plan = plan_tools(decoded(), ToolChoice(function=NamedFunction(name="weather")), parallel=True)
    assert accepts(grammar_of(plan), '{"city": "Bern"}')
    assert not accepts(grammar_of(plan), '{"city": 3}')
    assert read(plan, ['{"city"', ': "Bern"}']) == ("", [("weather", '{"city": "Bern"}')])


def test_a_function_named_by_a_string_is_the_same_as_by_an_object():
    named = plan_tools(decoded(), ToolChoice(function=NamedFunction(name="tree.walk")), parallel=True)
    assert plan_tools(decoded(), "tree.walk", parallel=True) == named
    assert named.grammar.param == "tools[1].function.parameters"


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_are_the_only_ones_that_are_called():
    plan = plan_tools(decoded(), msgspec.convert(allowed("required", "now"), ToolChoice), parallel=True)
    assert accepts(grammar_of(plan), '[{"name": "now", "arguments": {}}]')
    assert not accepts(grammar_of(plan), '[{"name": "weather", "arguments": {}}]')
    plan = plan_tools(decoded(), msgspec.convert(allowed("auto", "now"), ToolChoice), parallel=True)
    assert plan.grammar is None
    written = '{"name": "weather", "arguments": {}}'
    assert read(plan, [written]) == (written, [])
    assert len(chat(tool_choice=allowed("auto", "now")).requests[0].prompt.tools) == 3


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("other", "'other' is not among the tools"),
        (allowed("auto", "now", "other"), "'other' is not among the tools"),
        (allowed("auto"), "expected a mode and at least one tool"),
        ({"type": "allowed_tools"}, "expected a mode and at least one tool"),
        ({"type": "function"}, "Missing required parameter: 'tool_choice.function.name'"),
        ({"type": "custom", "custom": {"name": "f"}}, "invalid enum value 'custom'"),
    ],
)
def test_an_invalid_tool_choice_is_refused(choice, text):
    with pytest.raises(InvalidRequest, match=text) as caught:
        chat(tool_choice=choice)
    assert caught.value.param.startswith("tool_choice")


def test_references_of_a_function_lead_into_its_own_schema():
    tree = {
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/properties/left"}},
        "additionalProperties": False,
    }
    tools = [Tool(function=Function(name="walk", parameters=tree))]
    schema = grammar_of(plan_tools(tools, "required", parallel=True))
    assert accepts(schema, '[{"name": "walk", "arguments": {"left": {"right": {}}}}]')
    assert not accepts(schema, '[{"name": "walk", "arguments": {"left": []}}]')
    assert not accepts(schema, '[{"name": "walk", "arguments": {"left": [{"name": "walk", "arguments": {}}]}}]')


INTEGER = {"type": "integer"}


def with_a(value, **others):
    return {"type": "object", "properties": {"a": value}, "required": ["a"], "additionalProperties": False, **others}


REFERENCES = {
    "pointer": with_a({"$ref": "#/$defs/q"}, **{"$defs": {"q": INTEGER}}),
    "escaped pointer": {
        "type": "object",
        "properties": {"x/y~z 1": INTEGER, "a": {"$ref": "#/properties/x~1y~0z%201"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "anchor": with_a({"$ref": "#x"}, **{"$defs": {"q": {"$anchor": "x", **INTEGER}}}),
    "anchor of draft 7": with_a(
        {"$ref": "#x"},
        definitions={"q": {"$id": "#x", **INTEGER}},
        **{"$schema": "http://json-schema.org/draft-07/schema#"},
    ),
    "own id": with_a({"$ref": "https://e.com/t#/$defs/q"}, **{"$id": "https://e.com/t", "$defs": {"q": INTEGER}}),
    "pointer beside an id": with_a({"$ref": "#/$defs/q"}, **{"$id": "https://e.com/t", "$defs": {"q": INTEGER}}),
    "urn": with_a({"$ref": "urn:t#x"}, **{"$id": "urn:t", "$defs": {"q": {"$anchor": "x", **INTEGER}}}),
    "relative id": with_a({"$ref": "q"}, **{"$id": "https://e.com/t", "$defs": {"q": {"$id": "q", **INTEGER}}}),
    "relative id without a root": with_a({"$ref": "q"}, **{"$defs": {"q": {"$id": "q", **INTEGER}}}),
    "inner id": with_a(
        {"$id": "https://n.com/", "$ref": "#/$defs/z", "$defs": {"z": INTEGER}}, **{"$defs": {"z": {"type": "string"}}}
    ),
    "id of draft 4": with_a(
        {"$ref": "http://e.com/t#/definitions/q"},
        definitions={"q": INTEGER},
        id="http://e.com/t",
        **{"$schema": "http://json-schema.org/draft-04/schema#"},
    ),
    "unknown keyword": with_a({"$ref": "#/components/x"}, components={"x": {"$ref": "#/components/y"}, "y": INTEGER}),
    "const with a reference": with_a({"const": {"$ref": "#/x"}}),
    "enum with a reference": with_a({"enum": [{"$ref": "#/x"}, 1]}),
    "property named as a keyword": {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "const": {"$ref": "#/$defs/q"}, "$id": INTEGER},
        "additionalProperties": False,
        "$defs": {"q": INTEGER},
    },
}
ARGUMENTS = [
    *('{"a": 1}', '{"a": "s"}', '{"a": {"$ref": "#/x"}}', '{"a": {"$ref": "#/$defs/f/x"}}'),
    *('{"$ref": "s", "const": 1, "$id": 1}', '{"const": "s"}'),
]


@pytest.mark.parametrize("parameters", REFERENCES.values(), ids=REFERENCES)
def test_the_schema_of_a_function_means_the_same_alone_and_beside_others(parameters):
    tools = [Tool(function=Function(name=name, parameters=parameters)) for name in ("f", "g")]
    alone = grammar_of(plan_tools(tools, "f", parallel=True))
    together = grammar_of(plan_tools(tools, "required", parallel=True))
    found = {text: accepts(alone, text) for text in ARGUMENTS}
    assert True in found.values()
    for name in ("f", "g"):
        assert {text: accepts(together, f'[{{"name": "{name}", "arguments": {text}}}]') for text in ARGUMENTS} == found


def test_a_reference_to_nothing_is_refused_alone_and_beside_others():
    tools = [Tool(function=Function(name=name, parameters=with_a({"$ref": "#missing"}))) for name in ("f", "g")]
    for choice in ("f", "required"):
        schema = json.dumps(grammar_of(plan_tools(tools, choice, parallel=True)))
        tokenizer = llguidance.LLTokenizer("byte")
        assert llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema)).is_error()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("tools", [None, []])
def test_a_call_cannot_be_forced_without_tools(choice, tools):
    with pytest.raises(InvalidRequest, match="only allowed when 'tools' are given"):
        chat(tools=tools, tool_choice=choice)


def test_the_template_sees_the_tools_unless_none_may_be_called():
    assert chat().requests[0].prompt.tools[0] == {
        "type": "function",
        "function": {"name": "weather", "description": "d", "parameters": {"properties": {"city": {"type": "string"}}}},
    }
    assert chat(tool_choice="none").requests[0].prompt.tools is None
    assert chat(tool_choice="auto").requests[0].sampling.grammar is None


REQUIRED_TEXT = '[{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "now", "arguments": {}}]'


def test_golden_calls_of_an_answer():
    parsed = chat(tool_choice="required")
    (choice,) = json.loads(whole(parsed, answer(REQUIRED_TEXT)))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert {name: value for name, value in choice["message"].items() if value is not None} == {
        "role": "assistant",
        "tool_calls": [
            {"id": "call_r1_0_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
            {"id": "call_r1_0_1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


def test_golden_calls_of_a_stream():
    from openai.types.chat import ChatCompletionChunk

    parsed = chat(tool_choice="required", stream=True)
    pieces = [REQUIRED_TEXT[start : start + 5] for start in range(0, len(REQUIRED_TEXT), 5)]
    objects = sse_objects(streamed(parsed, answer(*pieces)))
    calls: dict[int, dict] = {}
    for item in objects:
        ChatCompletionChunk.model_validate(item, strict=True)
        for call in item["choices"][0]["delta"].get("tool_calls", []):
            known = calls.setdefault(
                call["index"], {"id": call.get("id"), "name": call["function"].get("name"), "arguments": ""}
            )
            known["arguments"] += call["function"]["arguments"]
    assert calls == {
        0: {"id": "call_r1_0_0", "name": "weather", "arguments": '{"city": "Bern"}'},
        1: {"id": "call_r1_0_1", "name": "now", "arguments": "{}"},
    }
    assert objects[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any(item["choices"][0]["delta"].get("content") for item in objects)


def test_a_call_that_was_forced_by_name_ends_with_stop():
    from openai.types.chat import ChatCompletion

    parsed = chat(tool_choice={"type": "function", "function": {"name": "weather"}})
    written = whole(parsed, answer('{"city":"Bern"}'))
    ChatCompletion.model_validate_json(written, strict=True)
    assert json.loads(written)["choices"][0]["finish_reason"] == "stop"


def test_a_call_that_was_cut_off_ends_with_length():
    chunks = [
        Chunk(text='[{"name": "weather", "arguments": {"ci', tokens=(token("x"),), finish=finish(FinishReason.LENGTH))
    ]
    (choice,) = json.loads(whole(chat(tool_choice="required"), chunks))["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"ci'


def test_text_without_a_call_stays_text():
    (choice,) = json.loads(whole(chat(), answer("It is ", "cold.")))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is cold.", "stop")
    assert "tool_calls" not in choice["message"]
