"""
Bounds of what an operation of a chat template reads and builds, computed before the operation runs.

Templates share values: `[text] * 1000` holds one text 1000 times, and a few such lists inside each other stand for more
values than any memory holds. Printing, comparing and hashing visit each of them, in C, while no other thread runs.
"""

import re
from collections.abc import Callable, Mapping
from itertools import chain
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler, Namespace

from headrace.inference.models.render_limits import too_long

MAX_VALUES: Final = 1_000_000
"""Values that one operation may visit or build, 0.1 s of work in C."""
MAX_DEPTH: Final = 250
"""Nesting of the values of an operation; Python hashes nested tuples without a limit of its own."""
MAX_BITS: Final = 4096
"""Largest integer, in bits, that a template may build."""
POINTER_BYTES: Final = 8
ITEM_BYTES: Final = 84
"""A pointer in a list, and a text of one character."""
_PRINTED_VALUE: Final = 24
"""Characters of a printed number, or of the brackets, quotes and separators of another value."""
_ESCAPED: Final = 6
"""Characters of an escaped one, `\\u0000`."""
_MAX_INDENT: Final = 32
_MAX_DIGITS: Final = 1000
"""Decimal places of the filter `round`, which computes a power of ten."""
_MAX_WIDTH_DIGITS: Final = 4
_WIDTHS: Final = tuple(re.compile(rf"\d{{{digits}}}") for digits in range(1, _MAX_WIDTH_DIGITS + 2))
"""Patterns of widths of at least 1, 2, ... digits."""
_STAR_WIDTH: Final = re.compile(r"%[^a-zA-Z%]*\*")
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_CONTAINERS: Final[tuple[type, ...]] = (
    *(dict, list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items())),
    *(Namespace, LoopContext, Cycler),
)
_SIZED: Final = (dict, list, tuple, set, frozenset, range)


class Extent(NamedTuple):
    """The size of a value with all values in it; a value that is shared counts each time."""

    num_values: int
    num_characters: int
    sum_of_depths: int = 0
    """The levels of indentation of all values."""
    character_bytes: int = 1
    """Memory of the widest character."""

    @property
    def num_printed(self) -> int:
        """A bound of the characters of the printed value."""
        return self.num_characters + self.num_values * _PRINTED_VALUE


def refuse_above(size: int, limit: int) -> None:
    if size > limit:
        raise SecurityError(
            f"The chat template builds a value of {size} characters, items or bits; expected at most {limit}."
        )


def measure(value: object) -> Extent:
    """Return the size of a value; raises `RenderingTooLong` if it has too many values in it."""
    if isinstance(value, str):
        return Extent(1, len(value), character_bytes=1 if value.isascii() else 4)
    if isinstance(value, int):
        return Extent(1, value.bit_length() // 3)
    if not isinstance(value, _CONTAINERS):
        return Extent(1, 0)
    return _measure_levels(value)


def shallow(value: object) -> Extent:
    if isinstance(value, str):
        return measure(value)
    return Extent(len(value), 0) if isinstance(value, list | tuple | dict) else Extent(1, 0)


def _measure_levels(value: object) -> Extent:
    level: list[Any] = [value]
    num_values = num_characters = sum_of_depths = 0
    width = 1
    for depth in range(MAX_DEPTH):
        num_values += len(level)
        sum_of_depths += depth * len(level)
        inner: list[Any] = []
        for item in level:
            if isinstance(item, _CONTAINERS):
                inner += _parts(item)
                if num_values + len(inner) > MAX_VALUES:
                    raise too_long(f"{MAX_VALUES} values in one operation")
            elif isinstance(item, str):
                num_characters += len(item)
                width = width if item.isascii() else 4
            elif isinstance(item, int):
                num_characters += item.bit_length() // 3
        if not inner:
            return Extent(num_values, num_characters, sum_of_depths, width)
        level = inner
    raise too_long(f"{MAX_DEPTH} values inside each other")


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return chain(value.keys(), value.values())
    if isinstance(value, Namespace):
        return (value._Namespace__attrs,)  # noqa: SLF001 - printing it prints them
    if isinstance(value, LoopContext):
        return (value.previtem, value.nextitem)
    return value.items if isinstance(value, Cycler) else value


def split_bytes(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return a bound of the memory of the parts of a text, or of a list with the items of a collection."""
    if not isinstance(value, str):
        return len(value) * ITEM_BYTES if isinstance(value, list | tuple | dict) else 0
    separators = [argument for argument in arguments if isinstance(argument, str) and argument]
    num_parts = value.count(separators[0]) + 1 if separators else len(value)
    if num_parts > MAX_VALUES:
        raise too_long(f"{MAX_VALUES} values in one operation")
    return num_parts * ITEM_BYTES + len(value) * measure(value).character_bytes


Bound = Callable[[Any, tuple[Any, ...], Extent], int]
"""Return a bound of the size of a result, from the value, the arguments and the size of the value."""


def _json(_value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    indent = max((_indentation(argument) for argument in arguments), default=0)
    if indent > _MAX_INDENT:
        raise too_long(f"{_MAX_INDENT} characters to indent JSON")
    separators = sum(measure(argument).num_characters for argument in arguments if isinstance(argument, tuple | list))
    printed = _ESCAPED * extent.num_characters + extent.num_values * (_PRINTED_VALUE + separators)
    return printed + 2 * indent * extent.sum_of_depths


def _indentation(argument: object) -> int:
    return argument if isinstance(argument, int) else len(argument) if isinstance(argument, str) else 0


def _width(arguments: tuple[Any, ...]) -> int:
    return max((abs(_indentation(argument)) for argument in arguments), default=0)


def _padded(_value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    return _width(arguments) + extent.num_printed


def _padded_lines(value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the size after indenting each line, or widening each tab."""
    num_parts = 1 + sum(map(value.count, f"{_LINE_ENDS}\t")) if isinstance(value, str) else 1
    return (_width(arguments) + 1) * num_parts + extent.num_printed


def _chunked(_value: Any, arguments: tuple[Any, ...], _extent: Extent) -> int:
    """Bound the size of the lists of `batch` and `slice`, which are filled up to a length."""
    return max((abs(argument) for argument in arguments if isinstance(argument, int)), default=0) * POINTER_BYTES


def _joined(value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the size of a text joined from items: the owner of the method `join` is the separator."""
    is_method = isinstance(value, str) and arguments and not isinstance(arguments[0], str)
    separator, items = (value, arguments[0]) if is_method else (arguments[0] if arguments else "", value)
    if isinstance(items, str):
        return len(items) * (ITEM_BYTES + shallow(separator).num_characters)
    printed = measure(items).num_printed if is_method else extent.num_printed
    num_items = len(items) if isinstance(items, _SIZED) else 0
    return printed + num_items * shallow(separator).num_characters


def _replaced(value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if len(texts) < 2:
        return extent.num_printed
    count: int = value.count(texts[0]) if isinstance(value, str) else extent.num_printed
    return extent.num_printed + count * len(texts[1])


def formatted_size(text: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the size of a formatted text; raises `SecurityError` for a width that is huge or an argument."""
    template = str(text)
    num_digits = sum(width.search(template) is not None for width in _WIDTHS)
    if num_digits > _MAX_WIDTH_DIGITS or _STAR_WIDTH.search(template) or _has_nested_fields(template):
        raise SecurityError(
            f"The chat template formats with a width of more than {_MAX_WIDTH_DIGITS} digits, or of an argument."
        )
    longest = int(10**num_digits) + measure(arguments).num_printed
    return extent.num_printed + (template.count("%") + template.count("{")) * longest


def _has_nested_fields(template: str) -> bool:
    """Return whether a field has its width from another field, as in `{:{}}`."""
    try:
        return any("{" in (layout or "") for _, _, layout, _ in Formatter().parse(template))
    except ValueError:  # not a template of `format`
        return False


def _summed(value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the memory of a sum of lists: each addition copies all items before it."""
    if not any(isinstance(argument, list | tuple) for argument in arguments):
        return 0
    num_items = len(value) if isinstance(value, _SIZED) else 1
    return num_items * extent.num_values * POINTER_BYTES


def _translated(_value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the size of a text whose characters are replaced by a table."""
    tables = (argument.values() if isinstance(argument, dict) else argument for argument in arguments)
    texts = (text for table in tables if not isinstance(table, int) for text in table)
    return extent.num_characters * max((len(text) for text in texts if isinstance(text, str)), default=1)


def _rounded(_value: Any, arguments: tuple[Any, ...], _extent: Extent) -> int:
    if _width(tuple(argument for argument in arguments if isinstance(argument, int))) > _MAX_DIGITS:
        raise SecurityError(f"The chat template rounds to more than {_MAX_DIGITS} digits.")
    return 0


def _quadratic(_value: Any, arguments: tuple[Any, ...], extent: Extent) -> int:
    """Bound the work of a filter that may read each character once for every other one."""
    return (extent.num_printed + sum(measure(argument).num_characters for argument in arguments)) ** 2


RESULT_SIZES: Final[Mapping[str, Bound]] = MappingProxyType(
    {
        "batch": _chunked,
        "center": _padded,
        "expandtabs": _padded_lines,
        "format": formatted_size,
        "format_map": formatted_size,
        "indent": _padded_lines,
        "join": _joined,
        "ljust": _padded,
        "pprint": _quadratic,
        "replace": _replaced,
        "rjust": _padded,
        "round": _rounded,
        "slice": _chunked,
        "striptags": _quadratic,
        "sum": _summed,
        "tojson": _json,
        "translate": _translated,
        "urlize": _quadratic,
        "wordwrap": _quadratic,
        "zfill": _padded,
    }
)
"""Bounds of the results of filters and of methods of texts, where these may be much larger than the value."""
