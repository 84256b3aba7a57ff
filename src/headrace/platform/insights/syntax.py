"""
The language of CloudWatch Logs Insights: the commands and functions that its console uses most. Pure.

`read_query` returns the commands of a query; what is not supported is refused by its name.
Source: CloudWatch Logs user guide, "CloudWatch Logs Insights language query syntax".
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.platform.insights.functions import AGGREGATES, FUNCTIONS, PERIOD_S

MAX_COMMANDS: Final = 20
MAX_DEPTH: Final = 50
MAX_OPERATORS: Final = 300
"""In a query: the evaluation recurses into a chain of operators, such as `1 - 1 - 1`."""
MAX_ROWS: Final = 10_000
"""Source: CloudWatch Logs quotas, results of a query."""
_OTHER_COMMANDS: Final = frozenset(
    ("pattern", "diff", "unmask", "unnest", "filterindex", "source", "lookup", "anomaly", "subqueries", "join")
)
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<regex>(?<=[\s(])/(?:[^/\\\n]|\\.)+/i?)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<period>\d+[a-z]+\b)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<quoted>`[^`]+`)
    |(?P<name>[@A-Za-z_][\w.@-]*)
    |(?P<sign>!=|<=|>=|=~|[-=<>()\[\],|+*/%^])
    )""",
    re.VERBOSE,
)
_COMMENT: Final = re.compile(r"(?m)^\s*#.*$")


class BadQuery(ValueError):
    """The query is malformed, or uses what is not supported; the message says what."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression: `operator` is `value`, `field`, a sign, a function or an aggregate."""

    operator: str
    operands: tuple["Expression", ...] = ()
    value: object = None
    """Of a literal its value, of a field its name, of `like` a compiled pattern."""
    text: str = ""
    """The expression as it was written: the name of its column."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    expression: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: `fields`, `display`, `filter`, `stats`, `sort`, `limit`, `parse` or `dedup`."""

    name: str
    columns: tuple[Column, ...] = ()
    """Of `stats`, the aggregates."""
    groups: tuple[Column, ...] = ()
    """Of `stats`, what follows `by`."""
    directions: tuple[bool, ...] = ()
    """Of `sort`, whether each column descends."""
    count: int = 0
    pattern: "re.Pattern[str] | None" = None
    """Of `parse`; its groups are the new fields."""
    names: tuple[str, ...] = ()
    """Of `parse`, the new fields of groups without a name."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    def is_(self, *texts: str) -> bool:
        return self.kind in ("name", "sign") and self.text.lower() in texts


def read_query(text: str) -> tuple[Command, ...]:
    """Parse a query. Raises `BadQuery`."""
    tokens = _Tokens(_COMMENT.sub("", text))
    if tokens.next.kind == "end":
        raise BadQuery("The query is empty.")
    commands = [_command(tokens)]
    while tokens.next.is_("|"):
        tokens.take()
        commands.append(_command(tokens))
    if tokens.next.kind != "end":
        raise tokens.unexpected()
    if len(commands) > MAX_COMMANDS:
        raise BadQuery(f"The query has {len(commands)} commands; expected at most {MAX_COMMANDS}.")
    if sum(command.name == "stats" for command in commands) > 1:
        raise BadQuery("The query has two stats commands; Headrace supports one.")
    return tuple(commands)


class _Tokens:
    """The tokens of a query, with one of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self.num_operators = 0
        self.last_end = 0
        self.next = self._read(0)

    def _read(self, position: int) -> _Token:
        found = _TOKEN.match(self.text, position)
        if found is None:
            rest = self.text[position:].strip()
            if rest:
                raise BadQuery(f"unexpected symbol found {rest[0]} at position {position}")
            return _Token("end", "", len(self.text), len(self.text))
        kind = str(found.lastgroup)
        return _Token(kind, found[kind], found.start(kind), found.end(kind))

    def take(self) -> _Token:
        token = self.next
        self.last_end = token.end
        self.next = self._read(token.end)
        return token

    def take_if(self, *texts: str) -> bool:
        if self.next.is_(*texts):
            self.take()
            return True
        return False

    def take_operator(self) -> str:
        self.num_operators += 1
        if self.num_operators > MAX_OPERATORS:
            raise BadQuery(f"The query has more than {MAX_OPERATORS} operators.")
        return self.take().text.lower()

    def expect(self, text: str) -> None:
        if not self.take_if(text):
            raise self.unexpected(f"; expected {text}")

    def unexpected(self, hint: str = "") -> BadQuery:
        shown = self.next.text or "the end of the query"
        return BadQuery(f"unexpected symbol found {shown} at position {self.next.start}{hint}")


def _command(tokens: _Tokens) -> Command:
    token = tokens.take()
    name = token.text.lower()
    reader = _COMMANDS.get(name)
    if token.kind != "name" or (reader is None and name not in _OTHER_COMMANDS):
        raise BadQuery(f"unexpected symbol found {token.text or 'the end of the query'} at position {token.start}")
    if reader is None:
        raise BadQuery(f"The command {name} is not supported by Headrace. Use {', '.join(sorted(_COMMANDS))}.")
    return reader(tokens)


def _listed(tokens: _Tokens, *, aggregates: bool = False) -> tuple[Column, ...]:
    columns = [_column(tokens, aggregates=aggregates)]
    while tokens.take_if(","):
        columns.append(_column(tokens, aggregates=aggregates))
    return tuple(columns)


def _column(tokens: _Tokens, *, aggregates: bool) -> Column:
    expression = _expression(tokens, aggregates=aggregates)
    if tokens.take_if("as"):
        return Column(_name(tokens), expression)
    return Column(expression.text, expression)


def _name(tokens: _Tokens) -> str:
    if tokens.next.kind not in ("name", "quoted"):
        raise tokens.unexpected("; expected the name of a field")
    return tokens.take().text.strip("`")


def _read_fields(tokens: _Tokens) -> Command:
    return Command(name="fields", columns=_listed(tokens))


def _read_display(tokens: _Tokens) -> Command:
    return Command(name="display", columns=_listed(tokens))


def _read_filter(tokens: _Tokens) -> Command:
    return Command(name="filter", columns=(Column("", _expression(tokens)),))


def _read_stats(tokens: _Tokens) -> Command:
    aggregates = _listed(tokens, aggregates=True)
    groups = _listed(tokens) if tokens.take_if("by") else ()
    return Command(name="stats", columns=aggregates, groups=groups)


def _read_sort(tokens: _Tokens) -> Command:
    columns: list[Column] = []
    directions: list[bool] = []
    while not columns or tokens.take_if(","):
        columns.append(_column(tokens, aggregates=True))
        is_descending = tokens.take_if("desc")
        if not is_descending:
            tokens.take_if("asc")
        directions.append(is_descending)
    return Command(name="sort", columns=tuple(columns), directions=tuple(directions))


def _read_limit(tokens: _Tokens) -> Command:
    token = tokens.take()
    if not token.text.isdecimal() or not 1 <= int(token.text[:9]) <= MAX_ROWS:
        raise BadQuery(f"limit is {token.text}; expected a number from 1 to {MAX_ROWS}.")
    return Command(name="limit", count=int(token.text))


def _read_dedup(tokens: _Tokens) -> Command:
    return Command(name="dedup", columns=_listed(tokens))


def _read_parse(tokens: _Tokens) -> Command:
    source = Column("@message", Expression("field", value="@message"))
    if tokens.next.kind in ("name", "quoted"):
        source = _column(tokens, aggregates=False)
    token = tokens.take()
    if token.kind == "regex":
        pattern = _compiled(token)
    elif token.kind == "string":
        parts = _unquoted(token.text).split("*")
        pattern = re.compile("(.*?)".join(map(re.escape, parts)) + ("$" if parts[-1] == "" else ""), re.DOTALL)
    else:
        raise BadQuery(f"parse has {token.text or 'no pattern'}; expected a text with * or a /regular expression/.")
    names: tuple[str, ...] = ()
    if tokens.take_if("as"):
        found = [_name(tokens)]
        while tokens.take_if(","):
            found.append(_name(tokens))
        names = tuple(found)
    num_unnamed = pattern.groups - len(pattern.groupindex)
    if len(names) != num_unnamed or not pattern.groups:
        raise BadQuery(f"parse finds {num_unnamed} values and names {len(names)} fields after as; expected as many.")
    return Command(name="parse", columns=(source,), pattern=pattern, names=names)


_COMMANDS: Final[dict[str, Callable[[_Tokens], Command]]] = {
    "dedup": _read_dedup,
    "display": _read_display,
    "fields": _read_fields,
    "filter": _read_filter,
    "limit": _read_limit,
    "parse": _read_parse,
    "sort": _read_sort,
    "stats": _read_stats,
}
_LEVELS: Final = (
    ("or",),
    ("and",),
    ("=", "!=", "<", "<=", ">", ">=", "like", "=~", "in", "not"),
    ("+", "-"),
    ("*", "/", "%"),
    ("^",),
)
"""Binary operators, the weakest first."""
_COMPARING: Final = 2


def _expression(tokens: _Tokens, level: int = 0, *, aggregates: bool = False) -> Expression:
    tokens.depth += 1
    if tokens.depth > MAX_DEPTH * len(_LEVELS):
        raise BadQuery(f"An expression is nested deeper than {MAX_DEPTH} levels.")
    start = tokens.next.start
    if level == len(_LEVELS):
        found = _operand(tokens, aggregates=aggregates)
    elif level == _COMPARING and tokens.next.is_("not"):
        tokens.take_operator()
        found = Expression("not", (_expression(tokens, level, aggregates=aggregates),))
    else:
        found = _expression(tokens, level + 1, aggregates=aggregates)
        while tokens.next.is_(*_LEVELS[level]):
            found = _binary(tokens, found, level, aggregates=aggregates)
    tokens.depth -= 1
    text = tokens.text[start : tokens.last_end].strip()
    return Expression(found.operator, found.operands, found.value, text)


def _binary(tokens: _Tokens, left: Expression, level: int, *, aggregates: bool) -> Expression:
    operator = tokens.take_operator()
    is_negated = operator == "not"
    if is_negated:
        operator = tokens.take().text.lower()
        if operator not in ("like", "in"):
            raise BadQuery(f"not is followed by {operator}; expected like or in.")
    if operator in ("like", "=~"):
        found = Expression("like", (left,), _pattern(tokens))
    elif operator == "in":
        found = Expression("in", (left, *_bracketed(tokens)))
    else:
        found = Expression(operator, (left, _expression(tokens, level + 1, aggregates=aggregates)))
    return Expression("not", (found,)) if is_negated else found


def _bracketed(tokens: _Tokens) -> tuple[Expression, ...]:
    tokens.expect("[")
    values = [_expression(tokens)]
    while tokens.take_if(","):
        values.append(_expression(tokens))
    tokens.expect("]")
    return tuple(values)


def _pattern(tokens: _Tokens) -> "re.Pattern[str]":
    token = tokens.take()
    if token.kind == "string":
        return re.compile(re.escape(_unquoted(token.text)))
    if token.kind == "regex":
        return _compiled(token)
    raise BadQuery(f"like is followed by {token.text or 'nothing'}; expected a text or a /regular expression/.")


def _compiled(token: _Token) -> "re.Pattern[str]":
    body, _, flags = token.text[1:].rpartition("/")
    try:
        with warnings.catch_warnings(action="ignore"):  # of parts that later versions of Python may read differently
            return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", body), re.IGNORECASE if flags else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadQuery(f"{token.text} is no regular expression: {error}.") from None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _operand(tokens: _Tokens, *, aggregates: bool) -> Expression:
    if tokens.next.is_("-"):
        tokens.take_operator()
        return Expression("-", (Expression("value", value=0.0), _operand(tokens, aggregates=aggregates)))
    token = tokens.take()
    if token.is_("("):
        found = _expression(tokens, aggregates=aggregates)
        tokens.expect(")")
        return found
    if token.kind == "number":
        return Expression("value", value=float(token.text))
    if token.kind == "string":
        return Expression("value", value=_unquoted(token.text))
    if token.kind == "name" and tokens.next.is_("("):
        return _call(tokens, token, aggregates=aggregates)
    if token.kind in ("name", "quoted"):
        return Expression("field", value=token.text.strip("`"))
    raise BadQuery(f"unexpected symbol found {token.text or 'the end of the query'} at position {token.start}")


def _call(tokens: _Tokens, token: _Token, *, aggregates: bool) -> Expression:
    name = token.text.lower()
    is_aggregate = name in AGGREGATES
    if is_aggregate and not aggregates:
        raise BadQuery(f"{token.text} is only supported in stats.")
    if not is_aggregate and name not in FUNCTIONS:
        raise BadQuery(f"The function {token.text} is not supported by Headrace.")
    tokens.expect("(")
    operands: list[Expression] = []
    if name == "count" and tokens.take_if("*"):
        operands = []
    else:
        while not tokens.next.is_(")"):
            operands.append(_period(tokens) if tokens.next.kind == "period" else _expression(tokens))
            if not tokens.take_if(","):
                break
    tokens.expect(")")
    least, most = (AGGREGATES if is_aggregate else FUNCTIONS)[name][:2]
    if not least <= len(operands) <= most:
        raise BadQuery(f"{token.text} has {len(operands)} operands; expected {least} to {most}.")
    return Expression(name, tuple(operands))


def _period(tokens: _Tokens) -> Expression:
    """Read a period such as `5m` as its seconds."""
    token = tokens.take()
    found = re.fullmatch(r"(\d{1,9})([a-z]+)", token.text)
    unit = None if found is None else PERIOD_S.get(found[2])
    if found is None or unit is None or not int(found[1]):
        raise BadQuery(f"{token.text} is no period; expected a number and one of {', '.join(PERIOD_S)}.")
    return Expression("value", value=int(found[1]) * unit)
