"""The forms in which chat templates read content, tools and turns."""

import json

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.chat_builtins import CHATML, LLAMA2

SYSTEM, ASKED, SAID = ({"role": role, "content": f"{role} text"} for role in ("system", "user", "assistant"))
MORE = {"role": "user", "content": "more text"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": {"type": "object"}}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}],
}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "c1"}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
NATIVE = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + CHATML
STRICT_CALLS = (
    "{% set ns = namespace(i=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tools | tojson if tools }}"
)
PARTS_ONLY = [
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}",
    "{% for p in m['content'] %}{{ p['text'] }}{% endfor %}",
    "{{ m.content[0].text }}",
    "{{ m['content'][0]['text'] }}",
    "{{ (m.content | first).text }}",
    "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}",
    "{{ m.content | map(attribute='text') | join('') }}",
    "{{ shown(m.content) }}",
    "{% if m.content is string %}{{ raise_exception('expected parts') }}{% endif %}{{ m.content[0].text | upper }}",
]
MACRO = "{% macro shown(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"


def loop(body):
    return f"{MACRO}{{% for m in messages %}}<{{{{ m.role }}}}>{body}{{% endfor %}}"


def rendered(template, *messages, **options):
    return ChatTemplate(template).render(ChatPrompt(messages=messages, **options))


@pytest.mark.parametrize("body", PARTS_ONLY)
def test_a_template_that_reads_parts_only_gets_parts(body):
    text = rendered(loop(body), SYSTEM, ASKED, SAID, MORE)
    assert text.lower() == "<system>system text<user>user text<assistant>assistant text<user>more text"


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content }}",
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
        "{{ m.content if m.role != 'assistant' else (m.content | map(attribute='text') | join) }}",
    ],
)
def test_each_role_has_the_form_that_the_template_reads(body):
    assert rendered(loop(body), ASKED, SAID, MORE) == "<user>user text<assistant>assistant text<user>more text"


def test_a_chat_in_parts_can_be_continued_and_keeps_the_order_of_its_parts():
    begun = ChatPrompt(messages=[ASKED, SAID], add_generation_prompt=False, continues_final_message=True)
    assert ChatTemplate(loop(PARTS_ONLY[0]) + "<end>").render(begun).endswith("<assistant>assistant text")
    two = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    assert rendered(loop(PARTS_ONLY[1]), two) == "<user>one\ntwo"


@pytest.mark.parametrize("body", ["{{ m.content[0].value }}", "{{ m.text }}", ""])
def test_a_prompt_without_the_text_of_any_message_is_refused(body):
    with pytest.raises(InvalidRequest, match="shows the text of no message"):
        rendered(loop(body), ASKED)


@pytest.mark.parametrize(
    "expression",
    [
        "tools + [1]",
        "tools",
        "tools is iterable and tools is sequence",
        "tools[0].function | tojson",
        "tools | tojson(indent=2)",
        "(tools + tools) | length",
        "messages[1:]",
        "(messages + [messages[0]]) | length",
        "messages[0] is mapping",
        "messages | tojson",
        "documents is none",
    ],
)
def test_a_template_gets_the_collections_that_transformers_gives_it(expression):
    from transformers.utils.chat_template_utils import render_jinja_template

    template = "{{ messages[0].content }}{{ tools[0].function.name }}{{ " + expression + " }}"
    messages = [ASKED, CALLED, RESULT]
    expected, _ = render_jinja_template(conversations=[messages], tools=[TOOL], chat_template=template)
    assert rendered(template, *messages, tools=(TOOL,)) == expected[0]


def test_documents_of_the_request_reach_the_template():
    values = {"documents": [{"text": "d"}]}
    assert rendered("{{ messages[0].content }}{{ documents + [1] }}", ASKED, template_values=values).endswith("1]")


@pytest.mark.parametrize("template", [CHATML, LLAMA2, NO_SYSTEM, loop(PARTS_ONLY[0])])
@pytest.mark.parametrize("before", [[], [SYSTEM]])
def test_a_template_without_tools_shows_them_as_text(template, before):
    model = ChatTemplate(template, special_names={"bos_token": "", "eos_token": ""})
    assert model.tool_support == "generic"
    text = model.render(ChatPrompt(messages=[*before, ASKED, CALLED, RESULT, MORE], tools=[TOOL]))
    assert json.dumps(TOOL["function"]) in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>' in text
    assert "<tool_response>\nsunny\n</tool_response>\nmore text" in text
    assert text.count("system text") == len(before)


def test_results_of_several_calls_are_one_turn_of_the_user():
    text = rendered(NO_SYSTEM, ASKED, CALLED, RESULT, {**RESULT, "content": "cold"})
    assert text.endswith("<user><tool_response>\nsunny\n</tool_response>\n<tool_response>\ncold\n</tool_response>")


@pytest.mark.parametrize("templates", [NATIVE, {"default": CHATML, "tool_use": NATIVE}])
def test_a_template_that_shows_tools_gets_them_as_they_are(templates):
    from transformers.utils.chat_template_utils import render_jinja_template

    model = ChatTemplate(templates)
    assert model.tool_support == "native"
    chat = [ASKED, CALLED, RESULT]
    expected, _ = render_jinja_template(conversations=[chat], tools=[TOOL], chat_template=NATIVE)
    assert model.render(ChatPrompt(messages=chat, tools=[TOOL], add_generation_prompt=False)) == expected[0]


def test_a_chat_without_tools_is_the_same_for_every_template():
    assert "function" not in rendered(CHATML, ASKED, SAID, MORE)


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([ASKED, MORE], "<user>user text\nmore text"),
        ([ASKED, SAID, SAID, MORE], "<user>user text<assistant>assistant text\nassistant text<user>more text"),
        ([ASKED, CALLED, RESULT, MORE], "<user>user text<assistant><tool>sunny\nmore text"),
    ],
)
def test_turns_are_joined_for_a_template_that_refuses_them_apart(chat, expected):
    assert rendered(STRICT_CALLS, *chat) == expected
    if "tool" not in expected:
        assert rendered(NATIVE, *chat).count("<|im_start|>") == len(chat) + 1


ONLY_FIRST = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
ONLY_LAST = (
    "{% set ns = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.text = m.content %}"
    "{% endif %}{% endfor %}<system>{{ ns.text }}" + ONLY_FIRST.partition("{% endif %}")[2]
)
REFUSES_LATER = loop("{{ raise_exception('not here') if m.role == 'system' and not loop.first }}{{ m.content }}")


@pytest.mark.parametrize("template", [ONLY_FIRST, ONLY_LAST, REFUSES_LATER, loop("{{ m.content }}")])
def test_every_system_message_of_an_agent_is_shown(template):
    """SmolLM3, DeepSeek-R1 and Qwen3.5 in this order; the last template shows them where they are."""
    codex, claude = {"role": "system", "content": "codex's"}, {"role": "system", "content": "claude's"}
    text = rendered(template, SYSTEM, codex, ASKED, claude, SAID, MORE)
    moved = "<system>system text\ncodex's<user>user text<user>claude's<assistant>assistant text<user>more text"
    kept = "<system>system text<system>codex's<user>user text<system>claude's<assistant>assistant text<user>more text"
    assert text == (kept if template == loop("{{ m.content }}") else moved)
    assert "claude's" in rendered(template, ASKED, claude, SAID)


def test_several_system_messages_do_not_hide_tools_from_a_template_without_them():
    template = ChatTemplate(ONLY_LAST)
    text = template.render(ChatPrompt(messages=[SYSTEM, SYSTEM, ASKED], tools=[TOOL]))
    assert text.startswith("<system>system text\nsystem text\n\nYou can call functions")
