"""
The JSONPath expressions of batch transform: `$`, `.name`, `['a','b']`, `[0,-1]`, `[2:5]` and `*`. Pure.

Several children of an object give an object, several elements of an array an array. Steps after a wildcard or several
elements apply to each of them. Source: SageMaker developer guide, "Associate Prediction Results with Input Records".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_STEP: Final = re.compile(r"\.?\[\s*(?P<inside>(?:'[^']*'|\"[^\"]*\"|[^\]'\"])*)\]|\.(?P<name>\*|[^.\[\]'\"\s]+)")
_NAME: Final = re.compile(r"\s*(?:'([^']+)'|\"([^\"]+)\")\s*(?:,|$)")
_RANGE: Final = re.compile(r"(?P<start>-?\d*)\s*(?P<colon>:?)\s*(?P<end>-?\d*)")


class JsonPathError(ValueError):
    """The expression is not supported, or selects nothing in a value."""


Step = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPath:
    text: str
    steps: tuple[tuple[Step, bool], ...]
    """Each step, and whether it selects several values."""

    @property
    def is_root(self) -> bool:
        return not self.steps

    def select(self, value: Any) -> Any:
        """Return the selected part of a value. Raises `JsonPathError`."""
        is_many = False
        try:
            for step, selects_many in self.steps:
                value = [step(item) for item in value] if is_many else step(value)
                is_many = is_many or selects_many
        except (LookupError, TypeError, AttributeError):
            raise JsonPathError(f"{self.text} selects nothing") from None
        return value


def parse_json_path(text: str) -> JsonPath:
    """Raises `JsonPathError`, whose message names the expression."""
    position, steps = 1, []
    while text.startswith("$") and position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            break
        name, position = found["name"], found.end()
        step = (_all, True) if name == "*" else (_child(name), False) if name else _bracketed(found["inside"].strip())
        if step is None:
            break
        steps.append(step)
    else:
        if text.startswith("$"):
            return JsonPath(text=text, steps=tuple(steps))
    raise JsonPathError(f"{text!r} is not a supported JSONPath; expected steps like .name, ['a','b'], [0,-1] and [2:5]")


def _bracketed(inside: str) -> tuple[Step, bool] | None:
    """Return the step of a bracket and whether it selects several values; None: it is not supported."""
    if inside == "*":
        return _all, True
    names = [found[1] or found[2] for found in _NAME.finditer(inside)]
    if names and not _NAME.sub("", inside).strip():
        return (_child(names[0]), False) if len(names) == 1 else (_children(names), False)
    ranges = [_RANGE.fullmatch(part.strip()) for part in inside.split(",")]
    if any(part is None or not (part["colon"] or part["start"].lstrip("-")) for part in ranges):
        return None
    parts = [part for part in ranges if part is not None]
    if any(number == "-" for part in parts for number in (part["start"], part["end"])):
        return None
    if len(parts) == 1 and not parts[0]["colon"]:
        return _element(int(parts[0]["start"])), False
    return _elements([_slice(part) for part in parts]), True


def _slice(part: "re.Match[str]") -> slice | int:
    start, end = (int(part[name]) if part[name] else None for name in ("start", "end"))
    if part["colon"]:
        return slice(start, end)
    assert start is not None
    return start


def _all(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else list(_array(value))


def _child(name: str) -> Step:
    return lambda value: _object(value)[name]


def _children(names: list[str]) -> Step:
    return lambda value: {name: _object(value)[name] for name in names}


def _element(index: int) -> Step:
    return lambda value: _array(value)[index]


def _elements(indexes: "list[slice | int]") -> Step:
    def select(value: Any) -> list[Any]:
        array, found = _array(value), list[Any]()
        for index in indexes:
            found += array[index] if isinstance(index, slice) else [array[index]]
        return found

    return select


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(value)
    return value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value
