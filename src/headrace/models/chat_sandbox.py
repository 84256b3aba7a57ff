"""
The sandboxed Jinja environment of chat templates.

Separate from `chat`, so that Jinja is imported only when a chat is rendered.
"""

import json
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.models.chat_budget import check_format, counted_call, counted_filter, counted_test, keep, measured
from headrace.models.chat_counters import COUNTERS, count_template
from headrace.models.chat_sizes import MAX_BITS, MAX_VALUES, refuse_above

MAX_CHARACTERS: Final = 16_000_000
"""Longest text that a template may build with `*` or `+`."""
_COMPILED_TEMPLATES: Final = 16
_MAX_LAYOUT: Final = 1000
"""Characters of the layout of a date; each may stand for a number of any width."""
_COMPARING: Final = frozenset(
    {
        *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt"),
        *("lower", "ne", "upper"),
    }
)
"""Tests that visit the values inside a collection."""
_BYTES_METHODS: Final = frozenset({"encode", "to_bytes"})
"""Methods that return bytes, whose own methods and operators are not counted. A prompt is text."""


@lru_cache(maxsize=_COMPILED_TEMPLATES)
def compile_template(text: str) -> jinja2.Template:
    """Compile a template; raises `jinja2.TemplateSyntaxError`."""
    return _ENVIRONMENT.from_string(text)


class _GenerationTag(Extension):
    """The `{% generation %}` tag, which marks assistant text for training; here it only has to parse."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which limits `range`, with limits on the results of arithmetic and a budget of work."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        return counted_call(partial(super().call, context, function), function, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BYTES_METHODS and super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        count_template(template)
        return template

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        self._check_binop(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        keep(result)
        return result

    @staticmethod
    def _check_binop(operator: str, left: object, right: object) -> None:
        if operator == "%":
            if isinstance(left, str):
                check_format(left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            refuse_above(bits, MAX_BITS)
        elif operator == "-":  # of sets, which hash the items of the other operand
            measured(left)
            measured(right)
        elif operator == "+":
            refuse_above(_num_items(left) + _num_items(right), _most_items(left))
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    refuse_above(_num_items(sequence) * times, _most_items(sequence))


def _num_items(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _most_items(value: object) -> int:
    return MAX_CHARACTERS if isinstance(value, str) else MAX_VALUES


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    if len(layout) > _MAX_LAYOUT:
        raise SecurityError(
            f"The layout of a date in the chat template has {len(layout)} characters; expected at most {_MAX_LAYOUT}."
        )
    return datetime.now().astimezone().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise to JSON without the HTML escapes of Jinja's own filter, which models have not been trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> _Sandbox:
    # A prompt is not HTML: autoescape would change it.
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    counted = {name: counted_filter(name, function) for name, function in environment.filters.items()}
    environment.filters = {**counted, **COUNTERS}
    tests: dict[str, Any] = {**environment.tests}
    environment.tests |= {name: counted_test(tests[name]) for name in _COMPARING}
    del environment.globals["lipsum"]  # builds text of any length
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


_ENVIRONMENT: Final = _environment()
