import json
import tracemalloc
from dataclasses import replace

import pytest

from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat import ChatTemplate, override_template
from headrace.inference.models.chat_builtins import CHATML, LLAMA2
from headrace.inference.models.render_limits import FULL_LIMITS, RenderingTooLong, RenderLimits
from tests.waiting import WAIT_S

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  What is <b>1 + 1</b>? ü 🦊"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2 + 2?"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = """{{ bos_token }}
{% if tools %}
    {% for tool in tools %}
{{ tool | tojson(indent=2) }}
    {% endfor %}
{% endif %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% generation %}<{{ message['role'] }}>{{ message.content | trim }}{% endgeneration %}
{% endfor %}
{% set ns = namespace(found=false) %}{% set ns.found = true %}
{% if ns.found and add_generation_prompt %}<assistant>{% endif %}"""


def render(template, messages, **values):
    options = {key: values.pop(key) for key in ("tools", "add_generation_prompt") if key in values}
    prompt = ChatPrompt(messages=messages, template_values=values, **options)
    return ChatTemplate(template, special_names=NAMES).render(prompt)


def test_a_template_may_add_to_a_list_of_its_own():
    text = (
        "{% set q = namespace(ids=[]) %}{% macro add(id) %}{% set _ = q.ids.append(id) %}{% endmacro %}"
        "{{ add('a') }}{{ add(2) }}{{ q.ids.pop(0) }}{{ q.ids }}{{ [] == [] }}"
    )
    assert render(text, CHAT) == "a[2]True"


@pytest.mark.parametrize(
    "text",
    [
        "{% set _ = messages.append('a') %}",
        "{% set _ = [1].append(2) %}",
        "{% set l = [] %}{% set _ = l.append(l) %}",
        "{% set l = [] %}{% set _ = l.append('x' * 2000) %}",
        "{% set l = [] %}{% set _ = l.extend('x') %}",
        "{% set l = [] %}{% set _ = l.append(1) %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}",
    ],
)
def test_a_template_changes_no_other_list_and_adds_no_other_value(text):
    with pytest.raises(InvalidRequest):
        render(text, CHAT)


@pytest.mark.parametrize(
    ("template", "tools"), [(CHATML, None), (LLAMA2, None), (WITH_TOOLS, None), (WITH_TOOLS, TOOLS)]
)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_template_renders_as_in_transformers(template, tools, add_generation_prompt):
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        conversations=[CHAT], tools=tools, chat_template=template, add_generation_prompt=add_generation_prompt, **NAMES
    )

    assert render(template, CHAT, tools=tools, add_generation_prompt=add_generation_prompt) == expected[0]


@pytest.mark.parametrize("template", [CHATML, WITH_TOOLS, LLAMA2], ids=["chatml", "with tools", "llama2"])
@pytest.mark.parametrize("begun", ["It is", " It is ", "It is\n\n- "])
def test_a_chat_whose_last_message_is_continued_ends_in_it_as_in_transformers(template, begun):
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [*CHAT, {"role": "assistant", "content": begun}]
    expected, _ = render_jinja_template(
        conversations=[chat], chat_template=template, continue_final_message=True, **NAMES
    )

    prompt = ChatPrompt(messages=chat, add_generation_prompt=False, continues_final_message=True)
    rendered = ChatTemplate(template, special_names=NAMES).render(prompt)

    assert rendered.rstrip() == expected[0].rstrip()
    assert rendered.rstrip().endswith(begun.strip())


def test_a_last_message_that_the_template_changes_cannot_be_continued():
    prompt = ChatPrompt(messages=[{"role": "assistant", "content": "Hi"}], continues_final_message=True)
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        ChatTemplate("{{ messages[0].content | upper }}").render(prompt)


def test_llama_2_chats_have_the_form_of_its_authors():
    expected = (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n  What is <b>1 + 1</b>? ü 🦊 [/INST] 2 </s>"
        "<s>[INST] And 2 + 2? [/INST]"
    )

    assert render(LLAMA2, CHAT) == expected
    assert render(LLAMA2, [{"role": "user", "content": "Hi "}]) == "<s>[INST] Hi [/INST]"


def test_the_real_template_has_a_default_system_prompt(smollm2_path):
    from headrace.inference.models.gguf_file import open_gguf

    template = open_gguf(smollm2_path).metadata["tokenizer.chat_template"]
    text = render(template, [{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_refusal_carries_the_message_of_the_template():
    with pytest.raises(InvalidRequest, match=r"^Conversation roles must alternate") as caught:
        render(LLAMA2, [CHAT[2]])

    assert caught.value.param == "messages"


def test_extra_values_reach_the_template():
    assert render("{{ enable_thinking }}", CHAT, enable_thinking=False) == "False"


def test_the_template_for_tools_is_used_when_there_are_tools():
    template = ChatTemplate({"default": "plain", "tool_use": "with {{ tools | length }}"})

    assert template.render(ChatPrompt(messages=CHAT)) == "plain"
    assert template.render(ChatPrompt(messages=CHAT, tools=TOOLS)) == "with 1"
    with pytest.raises(InvalidRequest, match=r"\(rag\)"):
        ChatTemplate({"rag": "x"}).render(ChatPrompt(messages=CHAT))


def test_content_in_parts_becomes_one_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"
    with pytest.raises(InvalidRequest, match="'image_url'"):
        render("x", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_json_is_neither_escaped_for_html_nor_for_ascii():
    assert render("{{ messages[0] | tojson }}", [{"role": "ü<>&'"}]) == json.dumps(
        {"role": "ü<>&'"}, ensure_ascii=False
    )


def test_templates_can_read_the_date():
    assert len(render("{{ strftime_now('%d %b %Y') }}", CHAT)) == 11


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{{ [1] * 100000000 }}",
        "{{ 9 ** 100000000 }}",
        "{% set ns = namespace(x=9) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.strip() }}",
        "{{ 1 / 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% set line = 'x' * 1000000 %}{% for i in range(200) %}{{ line }}{% endfor %}",
    ],
)
def test_a_template_cannot_break_out_or_run_away(template):
    with pytest.raises(InvalidRequest):
        render(template, CHAT)


NESTED_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        NESTED_LOOPS,
        NESTED_LOOPS.replace(")", ") | map('string')"),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{{ 'y' in s }}{% endfor %}",
        "{{ 'a' | center(10 ** 12) }}",
        "{{ 'a'.center(10 ** 12) }}",
        "{{ ['a'] | map('center', 10 ** 12) | list }}",
        "{{ ('\n' * 999999) | indent(99999) }}",
        "{{ ('a' * 9999999) | replace('a', 'b' * 9999999) }}",
        "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
        "{{ range(99999) | list | join('x' * 9999999) }}",
        "{{ ('x' * 9999999).join(['a'] * 99999) }}",
        "{{ ([[1]] * 999999) | sum(start=[]) }}",
        "{{ ('a' * 999999).translate({97: 'x' * 999999}) }}",
        "{{ ('{0}' * 999999).format('x' * 999999) }}",
        "{{ messages | tojson(indent=10 ** 12) }}",
        "{{ ('a' * 99999) | wordwrap(1, wrapstring='x' * 999999) }}",
    ],
)
def test_a_template_that_takes_too_much_work_is_stopped(template):
    prompt = ChatPrompt(messages=CHAT)
    limits = RenderLimits(max_steps=100_000, max_seconds=WAIT_S, max_characters=1_000_000)
    with pytest.raises(RenderingTooLong, match="The chat template needs more than"):
        ChatTemplate(template).render(prompt, limits=limits)


def test_a_template_is_stopped_at_its_time_limit():
    limits = RenderLimits(max_steps=1 << 60, max_seconds=0.001, max_characters=1)
    with pytest.raises(RenderingTooLong, match=r"more than 0\.001 s"):
        ChatTemplate(NESTED_LOOPS).render(ChatPrompt(messages=CHAT), limits=limits)


@pytest.mark.parametrize(
    "width", ["'%99999d' % 1", "'%*d' % (99999, 1)", "'{:99999}'.format(1)", "'%99999d' | format(1)"]
)
def test_a_template_cannot_format_with_a_huge_width(width):
    with pytest.raises(InvalidRequest, match="width"):
        render("{{ " + width + " }}", CHAT)


def test_counted_loops_keep_what_templates_ask_of_loops():
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (
        "{% for key, value in {'a': 1, 'b': 2}.items() %}{{ loop.index }}/{{ loop.length }}:{{ key ~ '=' ~ value }}"
        "{{ '.' if loop.last else loop.nextitem[0] }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}"
        "{% for x in [[1, [2]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
        "{% for x in range(9) if x is odd %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{{ loop.previtem }}{% endfor %}"
        "{% for x in missing %}{% endfor %}{{ '%s-%05.1f' % ('a', 1.5) }}{{ 7 % 4 }}"
    )
    expected, _ = render_jinja_template(conversations=[CHAT], chat_template=template)
    assert render(template, CHAT) == expected[0]


def test_a_template_that_does_not_parse_names_the_line():
    with pytest.raises(InvalidRequest, match="line 2 is not valid Jinja"):
        render("fine\n{% if %}", CHAT)


def test_a_template_can_be_given_by_name_by_path_or_as_text(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("from a file, {{ bos_token }}")

    def text(wanted):
        return override_template(wanted, NAMES).render(ChatPrompt(messages=[{"role": "user", "content": "Hi"}]))

    assert text("llama2") == "<s>[INST] Hi [/INST]"
    assert text(str(path)) == "from a file, <s>"
    assert text("as text, {{ eos_token }}") == "as text, </s>"


@pytest.mark.parametrize(
    ("wanted", "named"), [("/no/such/file.jinja", "chatml, llama2"), ("{% if %}", "line 1 is not valid")]
)
def test_a_wrong_template_stops_the_start(wanted, named):
    with pytest.raises(SettingsError, match=named):
        override_template(wanted, NAMES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**9 }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + ['x' * 1000000] %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ range(10**9) | list }}",
        "{{ ('\u4e2d' * 1000000) | list | length }}",
        "{{ ('\u4e2d ' * 500000).split() | length }}",
        "{{ ('x' * 1000000) | map('upper') | list | length }}",
        "{{ ('x' * 1000000) | sort | length }}",
        "{{ [1, 2, 3] | tojson(indent=100000000) }}",
        "{{ (['x' * 1000] * 100000) | join | length }}",
    ],
)
def test_a_template_that_takes_too_much_memory_is_stopped(template):
    limits = replace(FULL_LIMITS, max_bytes=4 * 1024 * 1024, max_seconds=WAIT_S)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"bytes of memory|builds a value|to indent|too big|steps"):
            ChatTemplate(template).render(ChatPrompt(messages=CHAT), limits=limits)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24 * 1024 * 1024
