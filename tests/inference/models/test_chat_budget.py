"""Hostile chat templates end with an error, before they fill the memory or hold the interpreter."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.render_limits import FULL_LIMITS
from tests.waiting import WAIT_S

MAX_BYTES = 64 << 20
SHARED = "{% set a = [0] * 3000 %}{% set b = [a] * 3000 %}{% set c = [b] * 3000 %}"
PAIRS = "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
DEEP = "{% set ns = namespace(l=[0] * 99999) %}{% for i in range(240) %}{% set ns.l = [ns.l] %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}"
)
TEXT = "{% set s = 'x' * 9999999 %}"


def keeping(value, before=""):
    """Return a template that builds a value again and again, and keeps all of them."""
    return (
        before + "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l, " + value + "] %}"
        "{% endfor %}"
    )


HOSTILE = [
    "{{ ('x' * 9999999).encode() * 1000 }}",
    "{{ (1).to_bytes(2 * 10 ** 9, 'big') | length }}",
    SHARED + "{{ c | tojson }}",
    SHARED + "{{ c }}",
    SHARED + "{{ 'x' ~ c }}",
    SHARED + "{{ c | join | length }}",
    SHARED + "{{ c | string | length }}",
    SHARED + "{{ '%s' % c }}",
    SHARED + "{{ '{}'.format(c) }}",
    SHARED + "{{ ','.join(c) }}",
    SHARED + "{{ [c] | map('string') | list | length }}",
    SHARED + SHARED.replace("set ", "set other_") + "{{ c == other_c }}",
    SHARED + SHARED.replace("set ", "set other_") + "{{ c is eq(other_c) }}",
    SHARED + SHARED.replace("set ", "set other_") + "{{ [c].index(other_c) }}",
    PAIRS + "{{ {}[ns.t] }}",
    PAIRS + "{{ {}.get(ns.t) }}",
    PAIRS + "{{ {ns.t: 1} }}",
    PAIRS + "{{ {}.keys() - [ns.t] }}",
    PAIRS + "{{ [ns.t] | unique | list | length }}",
    "{% set ns = namespace(t=()) %}{% for i in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {}[ns.t] }}",
    DOUBLED,
    keeping("s[1:]", TEXT),
    keeping("s.partition('z')", TEXT),
    keeping("s.split('y', 1)", TEXT + "{% set s = s ~ 'y' %}"),
    keeping("b | slice(1) | list", "{% set b = [0] * 999999 %}"),
    keeping("d.keys() - []", "{% set d = {}.fromkeys(range(99999)) %}"),
    keeping("[" + "1," * 9999 + "]"),
    "{% macro f(x) %}" + "y" * 50000 + "{{ x }}{% endmacro %}" + keeping("f(1)"),
    "{% macro f() %}{% for i in range(99999) %}" + "y" * 50000 + "{% endfor %}{% endmacro %}{{ f() | length }}",
    "{{ ('%9999d' * 99999) % ((1,) * 99999) }}",
    "{{ ('%(a)s' * 999999) % {'a': 'x' * 999999} }}",
    "{{ ('1 ' * 4999999) % 1 }}",
    "{{ '{:{}}'.format('x', 10 ** 10) }}",
    "{{ ('a\r' * 999999) | indent('x' * 99999) | length }}",
    "{{ [1, 2] | tojson(indent='x' * 9999999) | length }}",
    "{{ ([0] * 99999) | tojson(separators=('y' * 99999, 'z')) | length }}",
    DEEP + "{{ ns.l | tojson(indent=32) | length }}",
    "{{ 1 | round(999999999, 'ceil') }}",
    "{{ 1 | round(-999999999) }}",
    "{{ ('f' * 9999999) | int(0, 16) // (('f' * 4999999) | int(0, 16)) }}",
    "{{ range(99999) | map('string') | join('x' * 999999) | length }}",
    "{{ ('x' * 999999).join(range(99999) | map('string')) | length }}",
    "{{ ('a' * 9999999) | wordwrap(1) | length }}",
    "{{ ('a@' * 24999) | urlize | length }}",
    "{{ ('a' * 999999).translate(['x' * 999999] * 128) | length }}",
    "{{ strftime_now('%9999d' * 99999) | length }}",
    "{{ ('🦊' * 9999999) | replace('🦊', '🦊' * 20) | length }}",
    "{{ ('中' * 9999999) | slice(1) | list | length }}",
    "{{ ('中' * 9999999) | join | length }}",
    "{{ ([[0] * 999999] * 999) | sum(start=[]) | length }}",
]
CHILD = f"""
import json, resource, sys
from dataclasses import replace
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.render_limits import FULL_LIMITS

def render(template):
    limits = replace(FULL_LIMITS, max_bytes={MAX_BYTES}, max_seconds={WAIT_S})
    try:
        return "rendered " + ChatTemplate(template).render(ChatPrompt(messages=[{{}}]), limits=limits)[:50]
    except InvalidRequest as exc:
        return exc.message

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

render("")
before = peak_bytes()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, [pages * resource.getpagesize() + {8 * MAX_BYTES}] * 2)
answers = [render(template) for template in json.load(sys.stdin)]
print(json.dumps({{"answers": answers, "peak_bytes": peak_bytes() - before}}))
"""


@pytest.mark.timeout(WAIT_S)
def test_hostile_templates_are_refused_before_they_fill_the_memory():
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHILD], input=json.dumps(HOSTILE), capture_output=True, text=True, check=True
    )

    found = json.loads(child.stdout)
    refused = ("The chat template ", "access to attribute", "The layout of a date")
    wrong = {
        template: answer
        for template, answer in zip(HOSTILE, found["answers"], strict=True)
        if not answer.startswith(refused) or "MemoryError" in answer
    }
    assert not wrong
    assert found["peak_bytes"] < 3 * MAX_BYTES


def test_what_is_counted_does_not_change_the_text():
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (
        "{% set pair %}<{{ messages[0].content }}>{% endset %}{{ pair }}{% set loud | upper %}a{% endset %}{{ loud }}"
        "{{ (1, [2], {'k': none}) }}{{ [] }}{{ {} }}{{ messages[0]['content'][1:] }}{{ {1 + 1: 'two'}[2] }}"
        "{% macro twice(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ twice(1, 2, k=3) }}"
        "{% macro around() %}({{ caller() }}){% endmacro %}{% call around() %}x{% endcall %}"
        "{% for key, value in {'a': 1}.items() %}{{ key }}{{ value }}{% endfor %}"
        "{{ 'i' in messages[0].content and 1 < 2 <= 2 }}{{ missing }}{{ [3, 1] | sort }}{{ (1, 2) == (1, 2) }}"
        "{{ ','.join(messages | map(attribute='content')) }}{{ '{{{0}}} {1:>4}'.format('a', 2) }}{{ 2.456 | round(1) }}"
    )
    messages = [{"role": "user", "content": "Hi"}]
    expected, _ = render_jinja_template(conversations=[messages], chat_template=template)
    assert ChatTemplate(template).render(ChatPrompt(messages=messages)) == expected[0]


def test_the_memory_of_long_chats_suffices():
    messages = [{"role": "user", "content": "🦊" * 1000}] * 2000
    template = "{% for message in messages %}{{ message | tojson(indent=2) }}{{ message.content | trim }}{% endfor %}"
    text = ChatTemplate(template).render(ChatPrompt(messages=messages), limits=replace(FULL_LIMITS, max_seconds=WAIT_S))
    assert len(text) > 4_000_000


def test_a_hostile_template_names_its_limit():
    with pytest.raises(InvalidRequest, match="more than 1000000 values in one operation"):
        ChatTemplate(SHARED + "{{ c }}").render(ChatPrompt(messages=[{}]))
