"""
Evaluation of a query over the lines of logs, oldest first. Pure.

Lines are read once and not kept: `stats` keeps values of groups, and otherwise the rows of the result are kept.
"""

import heapq
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cmp_to_key, partial
from typing import Any, Final, cast

from headrace.platform.insights.functions import AGGREGATES, FUNCTIONS, OPERATORS, Value, number, text
from headrace.platform.insights.syntax import MAX_ROWS, BadQuery, Column, Command, Expression

_MAX_FIELDS: Final = 200
"""Fields that are found in a line of JSON. Source: CloudWatch Logs user guide, "discovered fields"."""
_MAX_GROUPS: Final = 10_000
_MAX_VALUES: Final = 2_000_000
"""Values that the aggregates of a query keep."""
_EPOCH_DAYS: Final = 2932896
"""Days from 1970 to the last year of Python's calendar."""


class Moment(float):
    """A time in milliseconds since 1970, which is shown as a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    timestamp_ms: int
    message: str
    stream: str
    log: str
    """Account and log group: `123456789012:/aws/sagemaker/Endpoints/e`."""
    pointer: str
    """Names the line in other operations."""


class Row:
    """The fields of a line, or of a group of lines; those in its JSON are found when one is asked for."""

    __slots__ = ("_found", "line", "values")

    def __init__(self, line: Line | None, values: dict[str, Value]) -> None:
        self.line = line
        self.values = values
        self._found: dict[str, Value] | None = None

    def get(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if self.line is None:
            return None
        read = _OF_LINE.get(name)
        if read is not None:
            return read(self.line)
        if self._found is None:
            self._found = _discovered(self.line.message)
        return self._found.get(name)


_OF_LINE: Final[Mapping[str, Callable[[Line], Value]]] = {
    "@timestamp": lambda line: Moment(line.timestamp_ms),
    "@ingestionTime": lambda line: Moment(line.timestamp_ms),
    "@message": lambda line: line.message,
    "@logStream": lambda line: line.stream,
    "@log": lambda line: line.log,
    "@ptr": lambda line: line.pointer,
}


def _discovered(message: str) -> dict[str, Value]:
    """Return the fields of a line of JSON, those of objects in it by `outer.inner`."""
    found: dict[str, Value] = {}
    try:
        whole = json.loads(message) if message.startswith("{") else None
    except (ValueError, RecursionError):
        return found
    waiting: deque[tuple[str, Any]] = deque([("", whole)])
    while waiting and len(found) < _MAX_FIELDS:
        name, value = waiting.popleft()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value[:_MAX_FIELDS])
            waiting.extend((f"{name}.{key}" if name else str(key), item) for key, item in items)
        elif name:
            found[name] = number(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return found


@dataclass(slots=True)
class Result:
    """The rows of a query, as `GetQueryResults` returns them, and what it took."""

    rows: list[list[dict[str, str]]] = field(default_factory=list)
    num_scanned: int = 0
    num_matched: int = 0
    num_bytes: int = 0


def run_query(commands: Sequence[Command], lines: Iterable[Line], *, limit: int, max_characters: int) -> Result:
    """
    Run a query over lines, oldest first; `limit` is for a query without a command `limit`.

    The result has at most about `max_characters`. Raises `BadQuery`: it would need more groups than are kept.
    """
    result = Result()
    first_later = next(
        (at for at, command in enumerate(commands) if command.name in ("stats", "sort", "limit", "dedup")),
        len(commands),
    )
    matched = _counted(_by_line(commands[:first_later], _scanned(lines, result)), result)
    limit = next((command.count for command in reversed(commands) if command.name == "limit"), limit)
    rows = _later(commands[first_later:], matched, limit)
    names, room = _columns(commands), max_characters
    for row in rows:
        shown = [{"field": name, "value": show(value)} for name in names if (value := row.get(name)) is not None]
        if row.line is not None:
            shown.append({"field": "@ptr", "value": row.line.pointer})
        room -= sum(len(cell["field"]) + len(cell["value"]) for cell in shown)
        if room < 0:
            break
        result.rows.append(shown)
    return result


def show(value: Value) -> str:
    if isinstance(value, Moment):
        seconds = min(max(value / 1000, 0.0), _EPOCH_DAYS * 86_400.0)
        moment = datetime.fromtimestamp(seconds, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    return text(value)


def _scanned(lines: Iterable[Line], result: Result) -> Iterator[Row]:
    for line in lines:
        result.num_scanned += 1
        result.num_bytes += len(line.message)
        yield Row(line, {})


def _counted(rows: Iterable[Row], result: Result) -> Iterator[Row]:
    for row in rows:
        result.num_matched += 1
        yield row


def _by_line(commands: Sequence[Command], rows: Iterable[Row]) -> Iterator[Row]:
    """Apply the commands that need one row at a time: `fields`, `display`, `parse` and `filter`."""
    for row in rows:
        if all(_apply(command, row) for command in commands):
            yield row


def _apply(command: Command, row: Row) -> bool:
    """Add the fields of a command to a row; return whether the row stays."""
    if command.name == "filter":
        return _is_true(evaluate(command.columns[0].expression, row))
    if command.name == "parse":
        pattern, value = command.pattern, evaluate(command.columns[0].expression, row)
        found = pattern.search(text(value)) if pattern is not None and value is not None else None
        if found is not None:
            unnamed = set(range(1, found.re.groups + 1)) - set(found.re.groupindex.values())
            row.values.update(zip(command.names, (found[number] for number in sorted(unnamed)), strict=True))
            row.values.update(found.groupdict())
        return True
    for column in command.columns:
        if column.expression.operator != "field" or column.name != column.expression.value:
            row.values[column.name] = evaluate(column.expression, row)
    return True


def _later(commands: Sequence[Command], rows: Iterable[Row], limit: int) -> list[Row]:
    """Apply commands from the first one that needs several rows."""
    if not commands or commands[0].name in ("limit", "dedup"):  # the newest lines come first
        rows = _newest(rows, limit, commands[0] if commands and commands[0].name == "dedup" else None)
    for at, command in enumerate(commands):
        if command.name == "stats":
            rows = _grouped(command, rows)
        elif command.name == "sort":
            is_last = all(later.name in ("limit", "display", "fields") for later in commands[at + 1 :])
            rows = heapq.nsmallest(limit if is_last else MAX_ROWS, rows, key=_sort_key(command))
        elif command.name == "dedup":
            rows = _first_of_each(command, rows)
        elif command.name == "limit":
            rows = list(rows)[: command.count]
        else:
            rows = list(_by_line([command], rows))
    return list(rows)[:limit]


def _newest(rows: Iterable[Row], limit: int, dedup: Command | None) -> list[Row]:
    if dedup is None:
        return list(deque(rows, maxlen=limit))[::-1]
    last: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = _key(dedup.columns, row)
        last.pop(key, None)
        last[key] = row
        if len(last) > _MAX_GROUPS:
            raise _too_many("dedup")
    return list(last.values())[::-1]


def _first_of_each(command: Command, rows: Iterable[Row]) -> list[Row]:
    first: dict[tuple[str, ...], Row] = {}
    for row in rows:
        first.setdefault(_key(command.columns, row), row)
    return list(first.values())


def _key(columns: Sequence[Column], row: Row) -> tuple[str, ...]:
    return tuple(text(evaluate(column.expression, row)) for column in columns)


def _too_many(what: str) -> BadQuery:
    return BadQuery(f"{what} has more than {_MAX_GROUPS} groups. Group by a field with fewer values.")


def _sort_key(command: Command) -> Callable[[Row], Any]:
    """Order rows by columns; numbers before texts, and what is missing last."""

    def compare(left: Row, right: Row) -> int:
        for column, is_descending in zip(command.columns, command.directions, strict=True):
            before, after = (_rank(_by_name(column, row)) for row in (left, right))
            if before != after:
                if 2 in (before[0], after[0]):
                    return -1 if before < after else 1
                return -1 if (before < after) is not is_descending else 1
        return 0

    return cmp_to_key(compare)


def _by_name(column: Column, row: Row) -> Value:
    """Return the value of a column that an earlier command has computed, such as `count(*)`, or compute it."""
    if column.expression.text in row.values:
        return row.values[column.expression.text]
    return evaluate(column.expression, row)


def _rank(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    found = number(value)
    return (0, found, "") if found is not None else (1, 0.0, text(value))


def _grouped(command: Command, rows: Iterable[Row]) -> list[Row]:
    aggregates = [found for column in command.columns for found in _aggregates_in(column.expression)]
    groups: dict[tuple[str, ...], tuple[dict[str, Value], list[list[Value]], list[int]]] = {}
    num_values = 0
    for row in rows:
        values = {column.name: evaluate(column.expression, row) for column in command.groups}
        key = tuple(map(text, values.values()))
        if key not in groups and len(groups) == _MAX_GROUPS:
            raise _too_many("stats")
        _, kept, counts = groups.setdefault(key, (values, [[] for _ in aggregates], [0 for _ in aggregates]))
        for at, aggregate in enumerate(aggregates):
            value = evaluate(aggregate.operands[0], row) if aggregate.operands else None
            counts[at] += not aggregate.operands or value is not None
            if value is not None and aggregate.operator != "count":
                num_values += 1
                kept[at].append(value)
        if num_values > _MAX_VALUES:
            raise BadQuery(f"stats keeps more than {_MAX_VALUES} values. Filter the lines, or query a shorter time.")
    if not groups and not command.groups:
        groups[()] = ({}, [[] for _ in aggregates], [0 for _ in aggregates])
    return [_group_row(command, aggregates, *group) for group in groups.values()]


def _group_row(
    command: Command,
    aggregates: Sequence[Expression],
    values: dict[str, Value],
    kept: Sequence[Sequence[Value]],
    counts: Sequence[int],
) -> Row:
    computed: dict[int, Value] = {}
    for aggregate, found, count in zip(aggregates, kept, counts, strict=True):
        rest = [evaluate(operand, Row(None, {})) for operand in aggregate.operands[1:]]
        is_count = aggregate.operator == "count"
        computed[id(aggregate)] = float(count) if is_count else AGGREGATES[aggregate.operator][2](found, *rest)
    row = Row(None, values)
    for column in command.columns:
        values[column.name] = evaluate(column.expression, row, computed)
    return row


def _aggregates_in(expression: Expression) -> Iterator[Expression]:
    if expression.operator in AGGREGATES:
        yield expression
    else:
        for operand in expression.operands:
            yield from _aggregates_in(operand)


def _columns(commands: Sequence[Command]) -> list[str]:
    """Return the names of the columns of the result."""
    names: list[str] = []
    for command in commands:
        found = [column.name for column in (*command.groups, *command.columns)]
        if command.name in ("stats", "display"):
            names = found
        elif command.name == "fields":
            names += found
    return list(dict.fromkeys(names)) or ["@timestamp", "@message"]


def _is_true(value: Value) -> bool:
    return value is True or (not isinstance(value, bool) and bool(number(value)))


_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def evaluate(expression: Expression, row: Row, computed: Mapping[int, Value] | None = None) -> Value:
    """Return the value of an expression for a row; `computed` has the values of aggregates."""
    special = _SPECIAL.get(expression.operator)
    if special is not None:
        return special(expression, row, computed)
    if expression.operator in AGGREGATES:
        return None if computed is None else computed[id(expression)]
    values = [evaluate(operand, row, computed) for operand in expression.operands]
    return _FUNCTIONS[expression.operator](*values)


_Computed = Mapping[int, Value] | None


def _both(expression: Expression, row: Row, computed: _Computed) -> Value:
    left, right = expression.operands
    return _is_true(evaluate(left, row, computed)) and _is_true(evaluate(right, row, computed))


def _either(expression: Expression, row: Row, computed: _Computed) -> Value:
    left, right = expression.operands
    return _is_true(evaluate(left, row, computed)) or _is_true(evaluate(right, row, computed))


def _like(expression: Expression, row: Row, computed: _Computed) -> Value:
    value, pattern = evaluate(expression.operands[0], row, computed), expression.value
    assert isinstance(pattern, re.Pattern)
    return value is not None and pattern.search(text(value)) is not None


def _bin(expression: Expression, row: Row, computed: _Computed) -> Value:
    return _of_time("datefloor", row.get("@timestamp"), evaluate(expression.operands[0], row, computed))


_SPECIAL: Final[Mapping[str, Callable[[Expression, Row, _Computed], Value]]] = {
    "value": lambda expression, *_: cast("Value", expression.value),
    "field": lambda expression, row, _: row.get(str(expression.value)),
    "and": _both,
    "or": _either,
    "like": _like,
    "bin": _bin,
}
"""Expressions that need more than the values of their operands."""


def _of_time(function: str, *operands: Value) -> Value:
    found = FUNCTIONS[function][2](*operands)
    return None if found is None else Moment(found)


def _compare(operator: str, left: Value, right: Value) -> bool:
    """Compare as numbers if both are, else as texts; a missing field fits no comparison."""
    if left is None or right is None:
        return False
    numbers = number(left), number(right)
    if None in numbers:
        return _ORDER[operator](text(left), text(right))
    return _ORDER[operator](*numbers)


_FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    **{name: function for name, (_, _, function) in FUNCTIONS.items()},
    **OPERATORS,
    **{sign: partial(_compare, sign) for sign in _ORDER},
    **{name: partial(_of_time, name) for name in ("datefloor", "dateceil", "frommillis")},
    "not": lambda value: not _is_true(value),
    "in": lambda value, *others: any(_compare("=", value, other) for other in others),
}
