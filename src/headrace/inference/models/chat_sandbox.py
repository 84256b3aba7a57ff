"""
The sandboxed Jinja environment of chat templates.

A parsed template is rewritten, so that what it builds or visits without a filter or a call is counted too. Separate
from `chat`, so that Jinja is imported only when a chat is rendered.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from headrace.inference.models.chat_budget import (
    GrowingList,
    check_format,
    counted_body,
    counted_call,
    counted_filter,
    counted_loop,
    counted_test,
    counted_value,
    growing,
    keep,
    measured,
    printed,
)
from headrace.inference.models.chat_sizes import MAX_BITS, MAX_VALUES, POINTER_BYTES, refuse_above

COUNTERS: Final = MappingProxyType(
    {counter.__name__: counter for counter in (counted_body, counted_loop, counted_value, growing, measured, printed)}
)
"""The filters that rewritten templates use, by name."""
_Body = TypeVar("_Body", nodes.For, nodes.Macro, nodes.CallBlock)


class _Rewriting(NodeTransformer):
    """Puts counting filters around the parts of a template."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node, *args, **kwargs)
        rewrite = _REWRITES.get(type(node))
        return node if rewrite is None else rewrite(node)


def _counted(counter: Callable[..., Any], value: nodes.Node | None, place: nodes.Node | None = None) -> nodes.Filter:
    """Return an expression passed through a counter; None: the text of a block."""
    place = cast("nodes.Node", place or value)
    lines: dict[str, Any] = {"lineno": place.lineno, "environment": place.environment}
    return nodes.Filter(value, counter.__name__, [], [], None, None, **lines)


def _rewrite_loop(node: nodes.For) -> nodes.Node:
    node.iter = _counted(counted_loop, node.iter)
    return _rewrite_body(node)


def _rewrite_body(node: _Body) -> _Body:
    """Count the constant texts of a body each time that it runs."""
    num_bytes = sum(POINTER_BYTES + len(text.data) for text in node.find_all(nodes.TemplateData))
    cost = _counted(counted_body, nodes.Const(num_bytes, lineno=node.lineno), node)
    node.body.insert(0, nodes.ExprStmt(cost, lineno=node.lineno))
    return node


def _rewrite_block(node: nodes.AssignBlock) -> nodes.Node:
    node.filter = _counted(counted_value, node.filter, node)
    return node


def _rewrite_output(node: nodes.Output | nodes.Concat) -> nodes.Node:
    is_text = (isinstance(part, nodes.TemplateData) for part in node.nodes)
    node.nodes = [
        part if is_constant else _counted(printed, part) for part, is_constant in zip(node.nodes, is_text, strict=True)
    ]
    return node


def _rewrite_comparison(node: nodes.Compare) -> nodes.Node:
    if len(node.ops) == 1 and (_is_constant(node.expr) or _is_constant(node.ops[0].expr)):
        return node  # visits no values inside the items of the other operand
    node.expr = _counted(measured, node.expr)
    for operand in node.ops:
        operand.expr = _counted(measured, operand.expr)
    return node


def _is_constant(node: nodes.Node | None) -> bool:
    """Return whether a node is a scalar, or a list of scalars."""
    if isinstance(node, nodes.Filter) and node.name == counted_value.__name__:
        return isinstance(node.node, nodes.List | nodes.Tuple) and all(map(_is_constant, node.node.items))
    return isinstance(node, nodes.Const)


def _rewrite_item(node: nodes.Getitem) -> nodes.Node:
    if isinstance(node.arg, nodes.Slice):
        return _counted(counted_value, node)
    if not isinstance(node.arg, nodes.Const):
        node.arg = _counted(measured, node.arg)  # it is hashed
    return node


def _rewrite_literal(node: nodes.List | nodes.Tuple) -> nodes.Node:
    if isinstance(node, nodes.Tuple) and (node.ctx != "load" or not node.items):
        return node
    return _counted(counted_value if node.items else growing, node)


def _rewrite_mapping(node: nodes.Dict) -> nodes.Node:
    for pair in node.items:
        if not isinstance(pair.key, nodes.Const):
            pair.key = _counted(measured, pair.key)  # it is hashed
    return _counted(counted_value, node) if node.items else node


_REWRITES: Final[Mapping[type[nodes.Node], Callable[[Any], nodes.Node]]] = MappingProxyType(
    {
        nodes.AssignBlock: _rewrite_block,
        nodes.CallBlock: _rewrite_body,
        nodes.Compare: _rewrite_comparison,
        nodes.Concat: _rewrite_output,
        nodes.Dict: _rewrite_mapping,
        nodes.For: _rewrite_loop,
        nodes.Getitem: _rewrite_item,
        nodes.List: _rewrite_literal,
        nodes.Macro: _rewrite_body,
        nodes.Output: _rewrite_output,
        nodes.Tuple: _rewrite_literal,
    }
)


_MAX_TEMPLATE_CHARACTERS: Final = 200_000
"""Compiling takes up to 10 us for each; the longest templates in use have 40,000."""
MAX_CHARACTERS: Final = 16_000_000
"""Longest text that a template may build with `*` or `+`."""
_COMPILED_TEMPLATES: Final = 16
_MAX_LAYOUT: Final = 1000
"""Characters of the layout of a date; each may stand for a number of any width."""
_COMPARING: Final = frozenset({
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt",
    "lower", "ne", "upper",
})  # fmt: skip
"""Tests that visit the values inside a collection."""
_BYTES_METHODS: Final = frozenset({"encode", "to_bytes"})
"""Methods that return bytes, whose own methods and operators are not counted. A prompt is text."""


@lru_cache(maxsize=_COMPILED_TEMPLATES)
def compile_template(text: str) -> jinja2.Template:
    """Compile a template; raises `jinja2.TemplateSyntaxError`, or `ValueError` if it is too long."""
    if len(text) > _MAX_TEMPLATE_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters; expected at most {_MAX_TEMPLATE_CHARACTERS}")
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
        if isinstance(obj, GrowingList) and attr in GrowingList.CHANGES:
            return True
        return attr not in _BYTES_METHODS and super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _Rewriting().visit(template)
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
