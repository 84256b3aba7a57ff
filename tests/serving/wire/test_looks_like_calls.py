"""Text that looks like a tool call is a complete call or text, in every dialect, whole and streamed."""

import json

import pytest

from headrace.core.answer_format.formats import FORMATS
from headrace.serving.wire.anthropic.dialect import AnthropicMessages
from headrace.serving.wire.ollama.dialect import OllamaChat
from headrace.serving.wire.openai.answer_stream import AnswerPlan, AnswerStream, ArgumentsDelta, CallStart, TextDelta
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.responses import OpenAIResponses
from headrace.serving.wire.openai.tools import ToolPlan
from tests.serving.wire.samples import answer, line_objects, parse, sse_objects, streamed, whole

HI = [{"role": "user", "content": "hi"}]
NAMES = ("f", "get")
AS_CALLS = [
    ('<tool_call>{"name": "f", "arguments": {"a": 1}, "note": "x"}</tool_call>', [{"a": 1}]),
    ('<tool_call>{"note": "x", "name": "f", "arguments": {"a": 1}}</tool_call>', [{"a": 1}]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', [{"a": 1}]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}', [{"a": 1}]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', [{"a": 1}]),
    ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', [{"a": "</tool_call>"}]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}{"name": "f", "arguments": {}}</tool_call>', [{"a": 1}, {}]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [{}]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [{"a": 1}]),
    ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc"}, {"name": "f", "arguments": {}}]', [{"a": 1}, {}]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}]', [{"a": 1}]),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}', [{"a": 1}]),
    ('[TOOL_CALLS]f[CALL_ID]x1[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{}', [{"a": 1}, {}]),
    ('{"name": "f", "parameters": {"a": 1}, "note": "x"}', [{"a": 1}]),
    ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}', [{"a": 1}, {}]),
    ('{"index": 0, "id": "c", "name": "f", "arguments": {"a": 1}}', [{"a": 1}]),
    ('{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}', [{"a": 1}]),
    ('[{"name": "f", "arguments": {"a": 1}}]]}', [{"a": 1}]),
    ('<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]</TOOLCALL>', [{"a": 1}, {}]),
    ('<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>', [{"a": 1}]),
    ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", [{"a": 1}]),
    ("<function=f>\n<parameter=a>\nx </parameter> y\n</parameter>\n</function>", [{"a": "x </parameter> y"}]),
    ("<tool_call>\n<function=f>\n</function>\n<function=get>\n</function>\n</tool_call>", [{}, {}]),
    ("<tool_call><function=f></function>\n<tool_call><function=f></function></tool_call>", [{}, {}]),
    (
        "<tool_call>f<arg_key>a</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call><tool_call>f</tool_call>",
        [{"a": [1]}, {}],
    ),
    (
        (
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
            '<invoke name="get">\n</invoke>\n</minimax:tool_call>'
        ),
        [{"a": 1}, {}],
    ),
    (
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": "<|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>'
        ),
        [{"a": "<|tool_call_end|>"}],
    ),
    ('<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', [{"a": 1}]),
    (
        "<|tool_call_start|>[f(a='it\\'s', b=-1.5), get(c={'d': [None, True]})]<|tool_call_end|>",
        [{"a": "it's", "b": -1.5}, {"c": {"d": [None, True]}}],
    ),
    ('<|tool_call_start|>[f(a=\'it\'s so\', b="""x"y""")]<|tool_call_end|>', [{"a": "it's so", "b": 'x"y'}]),
    ('<|tool_call_start|>[f(a="<|tool_call_end|>")]<|tool_call_end|>', [{"a": "<|tool_call_end|>"}]),
    ("<|tool_call_start|>[f(a=1)]", [{"a": 1}]),
    ('<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>', [{"a": 1}]),
    ('<function_calls>\nf(a="\\u00e9\\n")\nget()\n</function_calls>', [{"a": "é\n"}, {}]),
    (
        '<|tool_call>call:f{a:<|"|>x}<tool_call|>"<|"|>,b:{c:[true,null,1e3]}}<tool_call|><|tool_call>call:f{}<tool_call|>',
        [{"a": 'x}<tool_call|>"', "b": {"c": [True, None, 1000.0]}}, {}],
    ),
    (
        '<|tools_prefix|>[{"f": {"a": "<|tools_suffix|>"}}, {"get": {}}]<|tools_suffix|>',
        [{"a": "<|tools_suffix|>"}, {}],
    ),
    (
        (
            "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n"
            "<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
        ),
        [{"a": 1}],
    ),
    (
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"a": "```<｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        [{"a": "```<｜tool▁call▁end｜>"}, {}],
    ),
    (
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        [{"a": 1}, {}],
    ),
    (
        '<｜tool▁calls｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [{"a": 1}],
    ),
    ('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>', [{"a": 1}]),
    (
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="b" string="false">{"c": [1]}</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="d">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="get">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
        ),
        [{"a": "1", "b": {"c": [1]}, "d": "x"}, {}],
    ),
    ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', [{}]),
    (
        (
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}},\n'
            '    {"tool_call_id": "1", "tool_name": "get", "parameters": {}}\n]<|END_ACTION|>'
        ),
        [{"a": 1}, {}],
    ),
    ('Action:\n```json\n[\n    {\n"tool_name": "f", "parameters": {"a": "```"}\n}\n]```', [{"a": "```"}]),
    ('Action: ```json\n[{"tool_name": "f", "parameters": {}}]\n```', [{}]),
    ('<|function_call|>{"name": "f", "arguments": {"a": 1}}<|message_sep|>\n\n', [{"a": 1}]),
    (
        (
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"a": 1}}'
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get", "arguments": {}}'
        ),
        [{"a": 1}, {}],
    ),
    (
        (
            '<|tool_calls|><|tool_call:begin|>k2j<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|>'
            "<|tool_call:begin|>m9q<|tool_call:name|>get<|tool_call:args|>{}<|tool_call:end|><|calls|>"
        ),
        [{"a": 1}, {}],
    ),
    (
        (
            '<function name="f"><param name="a"><![CDATA[</param> <b>]]></param><param name="b">2</param></function>\n'
            '<function name="get"></function>'
        ),
        [{"a": "</param> <b>", "b": 2}, {}],
    ),
    ('<function=f>{"a": "</function>"}</function><function=get>{}</function>', [{"a": "</function>"}, {}]),
    (
        (
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>x <b>]<]minimax[>[</a>'
            "]<]minimax[>[<c>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>]<]minimax[>[<d>true"
            "]<]minimax[>[</d>]<]minimax[>[</item>]<]minimax[>[</c>]<]minimax[>[</invoke>\n"
            ']<]minimax[>[<invoke name="get">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
        ),
        [{"a": "x <b>", "c": [1, {"d": True}]}, {}],
    ),
    ("<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>", [{"a": 1}]),
]
AS_TEXT = [
    '{"name": "f", "age": 3}',
    '{"name": "Bob", "age": 3}',
    '{"name": "f", "arguments": {"a": 1}} and so on',
    '{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}',
    '{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}}',
    '{"name": "f", "arguments": {"a": 1, "a": 2}}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": "one"}',
    '{"name": "f", "arguments": {"a": NaN}}',
    '{"name": "f", "description": "d", "parameters": {"type": "object"}}',
    '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}',
    '[{"name": "f", "arguments": {"a": 1}}, {"city": "Bern"}]',
    '<tool_call>{"name": "f", "arguments": {"a": 1} so}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}} so</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1',
    '<tool_call>{"name": "f"',
    '<tool_call>{"name": "f", "arguments": {"a": 1}}\n{"name": "other", "arguments": {}}</tool_call>',
    '[TOOL_CALLS]f[ARGS]{"a": 1',
    '[TOOL_CALLS]other[ARGS]{"a": 1}',
    '[TOOL_CALLS][{"name": "f", "arguments": {}}], then',
    "[TOOL_CALLS] is a marker of Mistral's models.",
    "<tool_call>f is the marker of a call",
    "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=a>\n<tool_call><function=f></function></tool_call>",
    "<tool_call><function=f>\n</function>\nso</tool_call>",
    "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
    "<tool_call>f<arg_key>a</arg_key></tool_call>",
    '<minimax:tool_call><invoke name="f"></invoke><invoke name="other"></invoke></minimax:tool_call>',
    '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1<|tool_call_end|>',
    '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>["a"]<|tool_call_end|>',
    "<|tool_call_start|>[f(1)]<|tool_call_end|>",
    "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>",
    "<|tool_call_start|>[f(a=b)]<|tool_call_end|>",
    "<|tool_call_start|>[f(a='x)]<|tool_call_end|>",
    "<|tool_call_start|>[f(a='\\ud800')]<|tool_call_end|>",
    "<|tool_call_start|>[]<|tool_call_end|>",
    "<|tool_call_start|>[" + "[" * 5000 + "<|tool_call_end|>",
    "<|tool_call>call:f{a:x}<tool_call|>",
    "<|tool_call>call:f{a:1,a:2}<tool_call|>",
    "<|tool_call>call:f[1]<tool_call|>",
    '<|tools_prefix|>[{"f": {}, "get": {}}]<|tools_suffix|>',
    '<|tools_prefix|>[{"f": 1}]<|tools_suffix|>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>",
    '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">1</｜DSML｜invoke>',
    '<|START_ACTION|>[{"tool_name": "f", "name": "f", "parameters": {}}]<|END_ACTION|>',
    '<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1',
    'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```',
    "Action is what an Agent needs",
    '<|function_call|>{"name": "f", "arguments": {"a": 1}} so',
    '<|tool_calls|><|tool_call:begin|>k2j<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>',
    '<function name="f"><param name="a">1</function>',
    "<function=f>{</function>",
    ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</b>]<]minimax[>[</tool_call>',
    ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1',
    "]<]minimax[>[<tool_call>]<]minimax[>[<f>1]<]minimax[>[</f>]<]minimax[>[</tool_call>",
    "a]<]minimax[>[b",
]


def read_chat(parsed, pieces, *, stream):
    if not stream:
        (choice,) = json.loads(whole(parsed, answer(*pieces)))["choices"]
        calls = choice["message"].get("tool_calls") or []
        return choice["message"]["content"] or "", [json.loads(call["function"]["arguments"]) for call in calls]
    deltas = [item["choices"][0]["delta"] for item in sse_objects(streamed(parsed, answer(*pieces)))]
    arguments: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    return "".join(delta.get("content") or "" for delta in deltas), [json.loads(text) for text in arguments.values()]


def events_of(parsed, pieces):
    parts = streamed(parsed, answer(*pieces))
    return [json.loads(part.decode().partition("data: ")[2]) for part in parts]


def read_response(parsed, pieces, *, stream):
    response = events_of(parsed, pieces)[-1]["response"] if stream else json.loads(whole(parsed, answer(*pieces)))
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    calls = [json.loads(item["arguments"]) for item in response["output"] if item["type"] == "function_call"]
    return "".join(texts), calls


def read_message(parsed, pieces, *, stream):
    if not stream:
        blocks = json.loads(whole(parsed, answer(*pieces)))["content"]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return "".join(texts), [block["input"] for block in blocks if block["type"] == "tool_use"]
    events = events_of(parsed, pieces)
    calls = {
        event["index"]: ""
        for event in events
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"
    }
    text = ""
    for event in events:
        delta = event.get("delta", {})
        text += delta.get("text", "")
        if event.get("index") in calls:
            calls[event["index"]] += delta.get("partial_json", "")
    return text, [json.loads(arguments) for arguments in calls.values()]


def read_ollama(parsed, pieces, *, stream):
    written = streamed(parsed, answer(*pieces)) if stream else [whole(parsed, answer(*pieces))]
    messages = [item["message"] for item in line_objects(written)]
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    return "".join(message["content"] for message in messages), calls


FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in NAMES]
DIALECTS = {
    "chat": (OpenAIChat(), {"messages": HI, "tools": FUNCTIONS}, read_chat),
    "responses": (
        OpenAIResponses(),
        {"input": "hi", "tools": [{"type": "function", "name": name} for name in NAMES]},
        read_response,
    ),
    "anthropic": (
        AnthropicMessages(),
        {"model": "m", "max_tokens": 9, "messages": HI, "tools": [{"name": name} for name in NAMES]},
        read_message,
    ),
    "ollama": (OllamaChat(), {"model": "m", "messages": HI, "tools": FUNCTIONS}, read_ollama),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("size", [None, 1, 7])
def test_what_looks_like_a_call_is_a_complete_call_or_text_in_every_dialect(dialect, size):
    rendered, fields, read = DIALECTS[dialect]
    cases = [*((written, "", calls) for written, calls in AS_CALLS), *((written, written, []) for written in AS_TEXT)]
    for written, text, calls in cases:
        pieces = [written] if size is None else [written[at : at + size] for at in range(0, len(written), size)]
        for stream in (False, True):
            parsed = parse(rendered, **fields, stream=stream)
            assert read(parsed, pieces, stream=stream) == (text, calls), written


HARMONY = next(known for known in FORMATS if known.has_channels)


@pytest.mark.parametrize("size", [1, 400])
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"a": 1}', [CallStart(0, "f"), ArgumentsDelta(0, '{"a": 1}')]),
        ("", [CallStart(0, "f"), ArgumentsDelta(0, "{}")]),
        ('{"a": 1', [TextDelta('{"a": 1')]),
        ("[1]", [TextDelta("[1]")]),
    ],
)
def test_a_call_with_a_header_is_complete_or_text(written, expected, size):
    plan = AnswerPlan(tools=ToolPlan(mode="auto", names=frozenset(NAMES)), format=HARMONY)
    text = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{written}<|call|>"
    stream = AnswerStream(plan, "")
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert [delta for piece in pieces for delta in stream.feed(piece)] + stream.finish() == expected


def test_a_forced_call_that_is_cut_off_is_no_call_without_arguments():
    fields = {"model": "m", "max_tokens": 9, "messages": HI, "tools": [{"name": "f"}]}
    parsed = parse(AnthropicMessages(), **fields, tool_choice={"type": "tool", "name": "f"})
    assert read_message(parsed, ['{"a": 1, "b'], stream=False) == ('{"a": 1, "b', [])
