"""Rewrite a parsed chat template, so that what it builds or visits without a filter or a call is counted too."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from headrace.models.chat_budget import counted_body, counted_loop, counted_value, measured, printed
from headrace.models.chat_sizes import POINTER_BYTES

COUNTERS: Final = MappingProxyType(
    {counter.__name__: counter for counter in (counted_body, counted_loop, counted_value, measured, printed)}
)
"""The filters that rewritten templates use, by name."""
_Body = TypeVar("_Body", nodes.For, nodes.Macro, nodes.CallBlock)


def count_template(template: nodes.Template) -> None:
    """Put counting filters around the parts of a template."""
    _Rewriting().visit(template)


class _Rewriting(NodeTransformer):
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node, *args, **kwargs)
        return _REWRITES.get(type(node), _unchanged)(node)


def _unchanged(node: nodes.Node) -> nodes.Node:
    return node


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
    is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
    return node if is_target or not node.items else _counted(counted_value, node)


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
