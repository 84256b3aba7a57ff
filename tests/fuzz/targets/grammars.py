"""Constraints of structured output, and chat templates."""

import json
from functools import cache, partial

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import ChatPrompt, Grammar
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.chat_builtins import BUILT_IN_TEMPLATES
from tests.fuzz.target import Malformed, Target
from tests.inference.engine.support import VOCAB_SIZE, byte_tokenizer


class Refused(Exception):
    """The compiler returned the reason why a grammar cannot be used."""


@cache
def _compiler():
    return GrammarCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE)


def _text(data):
    """A grammar is text: JSON bodies cannot carry lone surrogates here, which the dialects refuse."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Malformed from error


def _grammar(kind, data):
    """A compiled grammar allows a token at its beginning, and tokens that it allows can follow."""
    state = _compiler()._build(Grammar(kind, _text(data)))
    if isinstance(state, str):
        raise Refused(state)
    for _ in range(4):
        words = state.mask()
        allowed = [bit for bit in range(256) if words[bit // 32] >> (bit % 32) & 1]
        if not allowed or state.error is not None:
            break
        state.accept(allowed[len(allowed) // 2])


_NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
_PROMPT = ChatPrompt(
    messages=(
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    ),
    tools=({"type": "function", "function": {"name": "f", "parameters": {}}},),
)


def _template(data):
    """A checkpoint's template renders a chat, or fails with an error of the request."""
    ChatTemplate(data.decode("utf-8", "replace"), special_names=_NAMES).render(_PROMPT)


def _messages(data):
    """Messages of a client in the templates that we ship."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed from error
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise Malformed
    for template in BUILT_IN_TEMPLATES.values():
        ChatTemplate(template, special_names=_NAMES).render(
            ChatPrompt(messages=tuple(messages), continues_final_message=len(data) % 2 == 0)
        )


_SCHEMA_WORDS = (
    *(
        b"type",
        b"properties",
        b"required",
        b"additionalProperties",
        b"items",
        b"prefixItems",
        b"anyOf",
        b"allOf",
        b"$ref",
    ),
    *(
        b"oneOf",
        b"enum",
        b"const",
        b"pattern",
        b"format",
        b"minLength",
        b"maxLength",
        b"minimum",
        b"multipleOf",
        b"$defs",
    ),
    *(b"minItems", b"maxItems", b"uniqueItems", b"patternProperties", b"if", b"not", b"exclusiveMaximum", b"#/$defs/a"),
)
_REGEX_WORDS = (
    b"{1,1000}",
    b"(?=a)",
    b"\\p{L}",
    b"[^\\x00-\\xff]",
    b"(a|b)*",
    b"\\1",
    b"(?P<n>x)",
    b"\\u{1F98A}",
    b"+?",
)
_LARK_WORDS = (
    b"start: ",
    b"%ignore /x/",
    b"%json {}",
    b"\nA: ",
    b"/a+/i",
    b'"x"..."z"',
    b"~3..5",
    b"%import common.INT",
)
_EBNF_WORDS = (b"root ::= ", b"root ::= root", b"[a-z]", b"{2,}", b"\n| ", b"(", b")*", b'"\\x41"')
_TAG_WORDS = (
    b"begin",
    b"content",
    b"end",
    b"triggers",
    b"tags",
    b"type",
    b"json_schema",
    b"any_text",
    b"sequence",
    b"or",
)
_JINJA_WORDS = (
    *(
        b"{% for m in messages %}",
        b"{% endfor %}",
        b"{{ m.content }}",
        b"{{ m['role'] | upper }}",
        b"{% if loop.last %}",
    ),
    *(b"{{ ''.__class__.__mro__ }}", b"{{ 9 ** 9 ** 9 }}", b"{{ 'a' * 99999999 }}", b"{{ raise_exception('x') }}"),
    *(
        b"{% set x = range(99999) | list %}",
        b"{{ '%0999999999d' % 1 }}",
        b"{{ '{:>999999999}'.format(1) }}",
        b"{% else %}",
    ),
    *(b"{{ 'a'.center(999999999) }}", b"{{ 1 / 0 }}", b"{{ messages | tojson(indent=999999999) }}", b"{% macro f() %}"),
    *(
        b"{{ strftime_now('%Y') }}",
        b"{% generation %}",
        b"{% break %}",
        b"{% include 'x' %}",
        b"{{ cycler('a', 'b') }}",
    ),
)


def _of(name, kind, words, *, is_json=False, limit_s=4.0):
    return Target(
        f"grammar-{name}",
        partial(_grammar, kind),
        (Refused,),
        words=words,
        is_json=is_json,
        suite_cases=100,
        limit_s=limit_s,
    )


TARGETS = (
    _of("json-schema", "json_schema", _SCHEMA_WORDS, is_json=True),
    _of("regex", "regex", _REGEX_WORDS),
    _of("choice", "choice", (), is_json=True),
    _of("lark", "lark", _LARK_WORDS),
    _of("ebnf", "ebnf", _EBNF_WORDS),
    _of("structural-tag", "structural_tag", _TAG_WORDS, is_json=True),
    Target(
        "chat-template",
        _template,
        (InvalidRequest,),
        lambda: {name: text.encode() for name, text in BUILT_IN_TEMPLATES.items()},
        words=_JINJA_WORDS,
        suite_cases=150,
        limit_s=4,
    ),
    Target(
        "chat-messages",
        _messages,
        (HeadraceError,),
        lambda: {"usual": json.dumps(_PROMPT.messages).encode()},
        words=(b"role", b"content", b"tool_calls", b"tool_call_id", b"reasoning_content"),
        is_json=True,
        suite_cases=150,
    ),
)
