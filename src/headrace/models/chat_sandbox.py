"""
The sandboxed Jinja environment of chat templates.

Separate from `chat`, so that Jinja is imported only when a chat is rendered.
"""

import json
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.models.chat_budget import (
    check_format,
    counted_call,
    counted_filter,
    counted_loop,
    counted_part,
    keep,
)

MAX_ITEMS: Final = 16_000_000
"""Longest text or list that a template may build with `*` or `+`."""
MAX_BITS: Final = 4096
"""Largest integer, in bits, that a template may build with `*` or `**`."""
_COMPILED_TEMPLATES: Final = 16
_LOOP: Final = "counted_loop"
_PART: Final = "counted_part"
"""Names of the filters that wrap the items of loops and the operands of `~`."""


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

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        run = partial(super().call, context, function, *args, **kwargs)
        return counted_call(run, function, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered(_LOOP, cast("nodes.Expr", loop.iter))
        for text in template.find_all(nodes.Concat):
            text.nodes = [_filtered(_PART, part) for part in text.nodes]
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
            return
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            _refuse_above(bits, MAX_BITS)
        elif operator == "+":
            _refuse_above(_num_items(left) + _num_items(right), MAX_ITEMS)
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    _refuse_above(_num_items(sequence) * times, MAX_ITEMS)


def _filtered(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno, environment=value.environment)


def _num_items(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _refuse_above(size: int, limit: int) -> None:
    if size > limit:
        raise SecurityError(
            f"The chat template builds a value of {size} characters, items or bits; expected at most {limit}."
        )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
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
    environment.filters = {**counted, _LOOP: counted_loop, _PART: counted_part}
    del environment.globals["lipsum"]  # builds text of any length
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


_ENVIRONMENT: Final = _environment()
