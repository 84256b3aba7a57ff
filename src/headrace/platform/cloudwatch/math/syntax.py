"""
Parser of metric math: an expression becomes a syntax tree. Pure.

Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics", operators and syntax.
"""

import math
import re
import sys
from dataclasses import dataclass

MAX_CHARACTERS = 2048
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign>==|!=|<=|>=|&&|\|\||[-+*/^<>(),\[\]]))"
)
_WORDS = {"AND": "&&", "OR": "||"}
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", ">", "<=", ">="), ("+", "-"), ("*", "/"))
"""Binary operators by precedence, weakest first."""


class BadExpression(ValueError):
    """An expression that cannot be evaluated; the message is safe to show to the client."""


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric constant in an expression."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted string in an expression."""

    value: str


@dataclass(frozen=True, slots=True)
class Name:
    """The id of another query, or a keyword such as REPEAT."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A binary operation: `left sign right`."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function, such as `SUM(m1)`."""

    function: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """A list of series, such as `[m1, m2]`."""

    items: "tuple[Node, ...]"


Node = Number | Text | Name | Operation | FunctionCall | ListLiteral


def parse(expression: str) -> Node:
    """Parse an expression. Raises `BadExpression`: it is not valid metric math."""
    if len(expression) > MAX_CHARACTERS:
        raise BadExpression(f"The expression has {len(expression)} characters; expected at most {MAX_CHARACTERS}.")
    if re.match(r"\s*select\s+\w", expression, re.IGNORECASE):
        raise BadExpression("Metrics Insights queries (SELECT …) are not supported. Name the metrics with MetricStat.")
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._position = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._level(0)
        if self._position < len(self._tokens):
            raise self._unexpected()
        return node

    def _level(self, number: int) -> Node:
        if number == len(_LEVELS):
            return self._power()
        node = self._level(number + 1)
        depth = self._depth
        while (sign := self._take(*_LEVELS[number])) is not None:
            self._deeper()  # a long chain is a deep tree
            node = Operation(sign, node, self._level(number + 1))
        self._depth = depth
        return node

    def _power(self) -> Node:
        if self._take("-") is not None:
            self._deeper()
            node: Node = Operation("-", Number(0.0), self._power())
            self._depth -= 1
            return node
        node = self._atom()
        if self._take("^") is not None:
            self._deeper()
            node = Operation("^", node, self._power())
            self._depth -= 1
        return node

    def _atom(self) -> Node:
        kind, text = self._tokens[self._position] if self._position < len(self._tokens) else ("", "")
        self._position += 1
        if kind == "number":
            value = float(text)
            if not math.isfinite(value):
                most = sys.float_info.max
                raise BadExpression(f"The number {text[:20]} is too large; expected less than {most:.2g}.")
            return Number(value)
        if kind == "text":
            return Text(text[1:-1])
        if kind == "name":
            return FunctionCall(text.upper(), self._items(")")) if self._take("(") is not None else Name(text)
        if text == "[":
            return ListLiteral(self._items("]"))
        if text == "(":
            self._deeper()
            node = self._level(0)
            self._depth -= 1
            if self._take(")") is None:
                raise self._unexpected()
            return node
        self._position -= 1
        raise self._unexpected()

    def _items(self, end: str) -> tuple[Node, ...]:
        """Parse comma-separated items up to the closing bracket; the opening one was consumed."""
        if self._take(end) is not None:
            return ()
        self._deeper()
        items = [self._level(0)]
        while self._take(",") is not None:
            items.append(self._level(0))
        self._depth -= 1
        if self._take(end) is None:
            raise self._unexpected()
        return tuple(items)

    def _take(self, *signs: str) -> str | None:
        if self._position < len(self._tokens):
            kind, text = self._tokens[self._position]
            if kind == "sign" and text in signs:
                self._position += 1
                return text
        return None

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadExpression(f"The expression is nested deeper than {MAX_DEPTH} levels. Split it into several.")

    def _unexpected(self) -> BadExpression:
        seen = repr(self._tokens[self._position][1]) if self._position < len(self._tokens) else "end"
        return BadExpression(f"The expression {self._expression[:200]!r} cannot be parsed: unexpected {seen}.")


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            at = text[position:].strip()[:20]
            raise BadExpression(f"The expression {expression[:200]!r} cannot be parsed from {at!r} on.")
        kind, found = str(match.lastgroup), str(match[str(match.lastgroup)])
        position = match.end()
        is_word = kind == "name" and found.upper() in _WORDS
        tokens.append(("sign", _WORDS[found.upper()]) if is_word else (kind, found))
    return tokens
