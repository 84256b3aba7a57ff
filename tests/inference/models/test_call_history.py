"""
A family's template writes earlier calls as its model does, so what it writes is read as the same calls and reasoning.

The templates are short ones with the markers of the families' own.
"""

import json
import re
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat import ChatTemplate
from headrace.serving.wire.openai.answer_stream import (
    AnswerPlan,
    AnswerStream,
    ArgumentsDelta,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from headrace.serving.wire.openai.tools import ToolPlan

SCHEMAS = {
    "look_up": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "full": {"type": "boolean"},
            "units": {"type": "array"},
            "place": {"type": "object"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Look.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ARGUMENTS = {
    "city": 'Zürich\n"x" <b>\\n',
    "days": 3,
    "full": True,
    "units": ["C", None, 0.5],
    "place": {"a b": [-1]},
}
CALLS = [
    {"id": f"call{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    for index, (name, arguments) in enumerate([("look_up", ARGUMENTS), ("now", {})])
]
REASONING = "I must look."
CHAT = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "Sure.",
        "tool_calls": CALLS,
        **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), REASONING),
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "call0", "name": "look_up"},
]
_THINKING = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
_XML = (
    "<function={{ c.name }}>\n{% for k, v in c.arguments | items %}<parameter={{ k }}>\n"
    "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v }}\n</parameter>\n"
    "{% endfor %}</function>"
)
_GEMMA_VALUE = (
    '{% macro write(v, quoted) %}{% if v is string %}<|"|>{{ v }}<|"|>'
    "{% elif v is boolean %}{{ 'true' if v else 'false' }}"
    "{% elif v is mapping %}{ {%- for k, w in v | items %}{{ ',' if not loop.first }}"
    "{{ '<|\"|>' ~ k ~ '<|\"|>' if quoted else k }}:{{ write(w, true) }}{% endfor -%} }"
    "{% elif v is sequence %}[{% for w in v %}{{ ',' if not loop.first }}{{ write(w, true) }}{% endfor %}]"
    "{% else %}{{ v }}{% endif %}{% endmacro %}"
)
_NESTED = (
    "{% macro nested(v) %}{% if v is mapping %}{% for k, w in v | items %}]<]minimax[>[<{{ k }}>{{ nested(w) }}"
    "]<]minimax[>[</{{ k }}>{% endfor %}{% elif v is string %}{{ v }}{% elif v is iterable %}{% for w in v %}"
    "]<]minimax[>[<item>{{ nested(w) }}]<]minimax[>[</item>{% endfor %}{% else %}{{ v | tojson }}{% endif %}"
    "{% endmacro %}"
)
TEMPLATES = {
    # family: the assistant's turn, with `m` the message and `c` a call's function; what precedes the messages
    "qwen3.5": (
        _THINKING
        + f"{{% for t in m.tool_calls %}}{{% set c = t.function %}}\n<tool_call>\n{_XML}\n</tool_call>{{% endfor %}}",
        "",
    ),
    "glm": (
        _THINKING + "{% for t in m.tool_calls %}{% set c = t.function %}\n<tool_call>{{ c.name }}"
        "{% for k, v in c.arguments | items %}"
        "<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}"
        "</tool_call>{% endfor %}",
        "",
    ),
    "minimax": (
        _THINKING + "\n<minimax:tool_call>\n{% for t in m.tool_calls %}{% set c = t.function %}"
        '<invoke name="{{ c.name }}">{% for k, v in c.arguments | items %}<parameter name="{{ k }}">'
        "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
        "",
    ),
    "kimi": (
        _THINKING + "<|tool_calls_section_begin|>{% for t in m.tool_calls %}{% set c = t.function %}<|tool_call_begin|>"
        "functions.{{ c.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
        "",
    ),
    "gemma4": (
        (
            "{% if m.reasoning %}<|channel>thought\n{{ m.reasoning }}\n<channel|>{% endif %}{{ m.content }}"
            "{% for t in m.tool_calls %}"
            "{% set c = t.function %}<|tool_call>"
            "call:{{ c.name }}{{ write(c.arguments, false) }}<tool_call|>{% endfor %}"
        ),
        _GEMMA_VALUE,
    ),
    "apertus": (
        (
            "{% if m.reasoning %}<|inner_prefix|>{{ m.reasoning }}<|inner_suffix|>{% endif %}{{ m.content }}"
            "<|tools_prefix|>["
            "{% for t in m.tool_calls %}{{ ', ' if not loop.first }}"
            '{"{{ t.function.name }}": {{ t.function.arguments | tojson }}}{% endfor %}]<|tools_suffix|>'
        ),
        "",
    ),
    "deepseek-v3": (
        _THINKING + "<｜tool▁calls▁begin｜>{% for t in m.tool_calls %}{{ '\n' if not loop.first }}<｜tool▁call▁begin｜>"
        "{{ t.type }}<｜tool▁sep｜>{{ t.function.name }}\n```json\n{{ t.function.arguments | tojson }}\n```"
        "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
        "",
    ),
    "deepseek-v3.1": (
        _THINKING + "<｜tool▁calls▁begin｜>{% for t in m.tool_calls %}<｜tool▁call▁begin｜>{{ t.function.name }}"
        "<｜tool▁sep｜>{{ t.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
        "",
    ),
    "deepseek-v3.2": (
        _THINKING + "\n\n<｜DSML｜function_calls>\n{% for t in m.tool_calls %}{% set c = t.function %}"
        '<｜DSML｜invoke name="{{ c.name }}">\n{% for k, v in c.arguments | items %}<｜DSML｜parameter name="{{ k }}" '
        "string=\"{{ 'true' if v is string else 'false' }}\">{{ v if v is string else v | tojson }}"
        "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜function_calls>",
        "",
    ),
    "command": (
        (
            "<|START_THINKING|>{{ m.reasoning }}<|END_THINKING|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>"
            "<|START_ACTION|>[\n{% for t in m.tool_calls %}"
            '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ t.function.name }}", "parameters": '
            "{{ t.function.arguments | tojson }}}{{ ',' if not loop.last }}\n{% endfor %}]<|END_ACTION|>"
        ),
        "",
    ),
    "solar": (
        (
            "<|think|>{{ m.reasoning }}<|end|><|begin|>assistant<|content|>{{ m.content }}<|end|>"
            "<|begin|>assistant<|tool_calls|>{% for t in m.tool_calls %}<|tool_call:begin|>{{ t.id }}<|tool_call:name|>"
            "{{ t.function.name }}<|tool_call:args|>{{ t.function.arguments | tojson }}<|tool_call:end|>{% endfor %}"
            "<|calls|>"
        ),
        "",
    ),
    "gigachat": (
        _THINKING + "{% for t in m.tool_calls %}<|message_sep|>\n\nfunction call<|role_sep|>\n"
        '{"name": "{{ t.function.name }}", "arguments": {{ t.function.arguments | tojson }}}{% endfor %}',
        "",
    ),
    "minicpm5": (
        _THINKING + '{% for t in m.tool_calls %}{% set c = t.function %}\n<function name="{{ c.name }}">'
        '{% for k, v in c.arguments | items %}<param name="{{ k }}">'
        "{{ '<![CDATA[' ~ v ~ ']]>' if v is string else v }}</param>{% endfor %}</function>{% endfor %}",
        "",
    ),
    "minimax-m3": (
        (
            "<mm:think>{{ m.reasoning }}</mm:think>{{ m.content }}\n]<]minimax[>[<tool_call>\n"
            '{% for t in m.tool_calls %}]<]minimax[>[<invoke name="{{ t.function.name }}">'
            "{{ nested(t.function.arguments) }}]<]minimax[>[</invoke>\n{% endfor %}]<]minimax[>[</tool_call>"
        ),
        _NESTED,
    ),
    "lfm2": (_THINKING.replace("\n", ""), "{% if tools %}List of tools: [{{ tools | tojson }}]{% endif %}"),
}


def template_of(family):
    turn, before = TEMPLATES[family]
    return (
        f"{before}{{% for t in tools or [] %}}{{{{ t | tojson }}}}\n{{% endfor %}}{{% for m in messages %}}"
        f"{{% if m.role == 'assistant' %}}@{turn}@{{% else %}}<|{{{{ m.role }}}}|>"
        "{{ m.content }}{% endif %}{% endfor %}"
    )


def turn_of(family):
    """Return the template, and the assistant's turn that it writes."""
    template = ChatTemplate(template_of(family))
    text = template.render(ChatPrompt(messages=CHAT, tools=TOOLS, add_generation_prompt=False))
    _, turn, result = text.split("@")
    assert result == "<|tool|>sunny"
    return template, turn


def read(template, pieces):
    """Return reasoning, text and calls of an answer."""
    tools = ToolPlan(mode="auto", names=frozenset(SCHEMAS), parameters=SCHEMAS)
    stream = AnswerStream(AnswerPlan(tools=tools, format=template.answer_format), "")
    deltas = [delta for piece in pieces for delta in stream.feed(piece)] + stream.finish()
    reasoning, text = (
        "".join(delta.text for delta in deltas if isinstance(delta, kind)) for kind in (ReasoningDelta, TextDelta)
    )
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    written = [
        "".join(d.text for d in deltas if isinstance(d, ArgumentsDelta) and d.index == i) for i in range(len(names))
    ]
    return reasoning, text.strip(), [(name, json.loads(item)) for name, item in zip(names, written, strict=True)]


@pytest.mark.parametrize("family", TEMPLATES)
@given(sizes=st.lists(st.integers(1, 30), max_size=30))
def test_the_history_of_a_family_is_read_as_the_calls_that_it_shows(family, sizes):
    template, turn = turn_of(family)
    places = [0, *(place for place in accumulate(sizes) if place < len(turn)), len(turn)]
    pieces = [turn[start:stop] for start, stop in pairwise(places)]
    assert read(template, pieces) == (REASONING, "Sure.", [("look_up", ARGUMENTS), ("now", {})])


def test_lfm2_calls_are_written_into_the_text_that_its_template_shows():
    _, turn = turn_of("lfm2")
    assert "<|tool_call_start|>[now()]<|tool_call_end|>" in turn


SHOWN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_calls_that_a_template_does_not_show_are_in_the_form_of_its_marker():
    template = ChatTemplate("{{ tools | tojson if tools }}{# answer with <|tool_call|> #}" + SHOWN)
    text = template.render(ChatPrompt(messages=CHAT, tools=TOOLS))
    turn = text.split("<assistant>")[1].split("<tool>")[0]
    assert turn.startswith("Sure.\n<|tool_call|>[{")
    assert read(template, [turn]) == ("", "Sure.", [("look_up", ARGUMENTS), ("now", {})])


@pytest.mark.parametrize("write", ["{{ '' + a }}", "{{ a }}", "{{ a if a is string else a | tojson }}"])
def test_a_template_that_reads_arguments_as_text_gets_json(write):
    call = f"{{% set a = t.function.arguments %}}<{{{{ t.function.name }}}}>{write}"
    calls = f"{{% for t in m.tool_calls or [] %}}{call}{{% endfor %}}"
    template = ChatTemplate("{{ tools | tojson if tools }}" + SHOWN.replace("{% endfor %}", calls + "{% endfor %}"))
    text = template.render(ChatPrompt(messages=CHAT, tools=TOOLS))
    assert json.loads(text.split("<look_up>")[1].split("<now>")[0]) == ARGUMENTS


def test_deepseek_s_tools_are_described_as_it_has_learnt_them():
    turn = TEMPLATES["deepseek-v3.1"][0]
    template = ChatTemplate(
        SHOWN.replace("{{ m.content }}", f"{{% if m.tool_calls %}}{turn}{{% else %}}{{{{ m.content }}}}{{% endif %}}")
    )
    text = template.render(ChatPrompt(messages=CHAT, tools=TOOLS))
    assert text.startswith(
        "<system>## Tools\nYou have access to the following tools:\n\n### look_up\nDescription: Look.\n"
    )
    assert "<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:" in text
    assert "<tool>sunny" in text
    turn = text.split("<assistant>")[1].split("<tool>")[0]
    assert read(template, [turn]) == (REASONING, "Sure.", [("look_up", ARGUMENTS), ("now", {})])


@pytest.mark.parametrize(("value", "expected"), [(True, "True enabled"), (False, "False disabled")])
def test_thinking_has_the_name_that_the_template_reads(value, expected):
    prompt = ChatPrompt(messages=CHAT[:1], template_values={"enable_thinking": value})
    assert (
        ChatTemplate("{{ messages[0].content }}: {{ thinking }} {{ thinking_mode }}").render(prompt)
        == f"Hi: {expected}"
    )


GEMMA_TURNS = (
    "{{ tools | tojson if tools }}"
    "{% for m in messages %}<|turn>{{ m.role }}\n{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}"
    "{% for r in m.tool_responses or [] %}({{ r.name }}: {{ r.response }}){% endfor %}{{ m.content }}"
    "{% if m.content or not m.tool_responses %}<turn|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not messages[-1].tool_responses %}<|turn>model\n{% endif %}"
)


@pytest.mark.parametrize(
    ("content", "after", "expected"),
    [
        ("", [], "[look_up][now](look_up: sunny)"),
        ("Sure.", [], "[look_up][now](look_up: sunny)Sure.<turn|>\n<|turn>model\n"),
        ("", [{"role": "assistant", "content": "Done."}], "[look_up][now](look_up: sunny)Done.<turn|>\n<|turn>model\n"),
    ],
)
def test_gemma_s_results_are_in_the_turn_of_their_calls_and_the_model_s_turn_is_open(content, after, expected):
    asked, called, result = CHAT
    chat = [asked, {**called, "content": content}, {**result, "name": None}, *after]
    text = ChatTemplate(GEMMA_TURNS).render(ChatPrompt(messages=chat, tools=TOOLS))
    assert text[text.index("<|turn>") :] == f"<|turn>user\nHi<turn|>\n<|turn>assistant\n{expected}"


def test_mistral_s_template_gets_ids_of_nine_letters_and_digits():
    check = "{% if t.id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}[{{ t.id }}]{{ t.function.name }}"
    calls = f"{{% for t in m.tool_calls or [] %}}{check}{{% endfor %}}({{{{ m.tool_call_id }}}})"
    template = ChatTemplate("{{ tools | tojson if tools }}" + SHOWN.replace("{% endfor %}", calls + "{% endfor %}"))
    call = {"id": "call_76a1_0", "type": "function", "function": {"name": "now", "arguments": {}}}
    own = {**call, "id": "Abcdefgh9"}
    results = [{"role": "tool", "content": "12", "tool_call_id": found["id"]} for found in (call, own)]
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call, own]},
        *results,
    ]
    text = template.render(ChatPrompt(messages=chat, tools=TOOLS))
    (short,) = set(re.findall(r"[\[(]([0-9A-Za-z]{9})[\])]", text)) - {own["id"]}
    assert text.count(short) == text.count(own["id"]) == 2
