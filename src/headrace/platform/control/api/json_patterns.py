"""
Filter patterns for lines in JSON: `{ $.level = "error" && ($.status >= 500 || $.path = "/v1/*") }`. Pure.

Regular expressions (`%...%`) are refused by name. Source: CloudWatch Logs user guide, "Filter pattern syntax".
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

Test = Callable[[Any], bool]
_MAX_DEPTH: Final = 50
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<path>\$(?:\.[\w-]+|\.?\[(?:\d{1,9}|'[^']*'|"[^"]*")\])+)
    |(?P<sign>&&|\|\||!=|>=|<=|[()=<>])
    |(?P<quoted>"(?:[^"\\]|\\.)*")
    |(?P<word>[^\s()=<>!&|"]+)
    )""",
    re.VERBOSE,
)
_STEP: Final = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\[['"]([^'"]*)['"]\]""")
_NUMERIC: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
_WORDS: Final[Mapping[tuple[str, str], Callable[[list[Any]], bool]]] = {
    ("IS", "NULL"): lambda found: found == [None],
    ("IS", "TRUE"): lambda found: found == [True] and found[0] is True,
    ("IS", "FALSE"): lambda found: found == [False] and found[0] is False,
    ("NOT", "EXISTS"): lambda found: not found,
}


class BadPattern(ValueError):
    """The pattern is malformed, or uses what is not supported; the message says what."""


@dataclass(frozen=True, slots=True)
class JsonFilter:
    """The lines that are JSON objects and pass a test."""

    test: Test

    def fits(self, line: str) -> bool:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(document, dict) and self.test(document)


def read_json_pattern(text: str) -> JsonFilter:
    """Parse a pattern in braces. Raises `BadPattern`."""
    if not text.endswith("}"):
        raise BadPattern("a closing } is missing")
    tokens = _Tokens(text[1:-1])
    test = _read_any(tokens, 0)
    if (left := tokens.next()) is not None:
        raise BadPattern(f"unexpected {left[1]}")
    return JsonFilter(test)


class _Tokens:
    """The tokens of a pattern, each with its kind, and one of look-ahead."""

    def __init__(self, text: str) -> None:
        self._rest = self._split(text)
        self._seen = next(self._rest, None)

    @staticmethod
    def _split(text: str) -> Iterator[tuple[str, str]]:
        at, text = 0, text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise BadPattern(f"unexpected {text[at:].strip()[:20]}")
            yield found.lastgroup, found[found.lastgroup]
            at = found.end()

    def next(self) -> tuple[str, str] | None:
        seen, self._seen = self._seen, next(self._rest, None)
        return seen

    def skip(self, sign: str) -> bool:
        """Return whether the next token is a sign, which is then consumed."""
        is_next = self._seen == ("sign", sign)
        if is_next:
            self.next()
        return is_next


def _read_any(tokens: _Tokens, depth: int) -> Test:
    tests = [_read_all(tokens, depth)]
    while tokens.skip("||"):
        tests.append(_read_all(tokens, depth))
    return lambda document: any(test(document) for test in tests)


def _read_all(tokens: _Tokens, depth: int) -> Test:
    tests = [_read_condition(tokens, depth)]
    while tokens.skip("&&"):
        tests.append(_read_condition(tokens, depth))
    return lambda document: all(test(document) for test in tests)


def _read_condition(tokens: _Tokens, depth: int) -> Test:
    if tokens.skip("("):
        if depth == _MAX_DEPTH:
            raise BadPattern(f"more than {_MAX_DEPTH} parentheses inside each other")
        test = _read_any(tokens, depth + 1)
        if not tokens.skip(")"):
            raise BadPattern("a closing ) is missing")
        return test
    kind, path = tokens.next() or ("", "the end")
    if kind != "path":
        raise BadPattern(f"expected a property such as $.level, not {path}")
    steps = [int(index) if index else name or key for name, index, key in _STEP.findall(path)]
    (sign_kind, sign), (kind, value) = tokens.next() or ("", "the end"), tokens.next() or ("", "the end")
    word = _WORDS.get((sign.upper(), value.upper()))
    if word is not None:
        return lambda document: word(_values(document, steps))
    if sign_kind != "sign" or sign not in _NUMERIC or kind not in ("quoted", "word"):
        raise BadPattern(f"expected an operator and a value after {path}, not {sign} {value}")
    if kind == "word" and value.startswith("%"):
        raise BadPattern("regular expressions are not supported by Headrace")
    passes = _comparison(sign, re.sub(r"\\(.)", r"\1", value[1:-1]) if kind == "quoted" else value)
    return lambda document: any(passes(found) for found in _values(document, steps))


def _values(document: Any, steps: list[str | int]) -> list[Any]:
    """Return the value at a path; none if it does not exist."""
    for step in steps:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return []
    return [document]


def _comparison(sign: str, text: str) -> Test:
    number: float | None = None
    with suppress(ValueError):
        number = float(text)
    if number is None and sign not in ("=", "!="):
        raise BadPattern(f"expected a number after {sign}, not {text}")

    def passes(found: Any) -> bool:
        if number is not None and isinstance(found, int | float) and not isinstance(found, bool):
            return _NUMERIC[sign](found, number)
        if not isinstance(found, str) or sign not in ("=", "!="):
            return False
        return _is_like(found, text) is (sign == "=")

    return passes


def _is_like(found: str, pattern: str) -> bool:
    """Return whether a text has the form of a pattern, in which each * stands for any text."""
    first, *others = pattern.split("*")
    if not others:
        return found == first
    *middle, last = others
    if not found.startswith(first) or not found.endswith(last) or len(found) < len(first) + len(last):
        return False
    at, end = len(first), len(found) - len(last)
    for part in middle:
        at = found.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
