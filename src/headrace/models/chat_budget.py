"""
A budget of work for rendering a chat template.

A template is foreign code, and a thread that runs it cannot be stopped from outside. So the sandbox counts the work
while it runs: a step for each iteration and call, and one for every hundred characters or items that an operation reads
or builds. Operations whose result may be much larger than their arguments are counted before they run.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from jinja2.exceptions import SecurityError

from headrace.models.render_limits import RenderingTooLong, RenderLimits

_ITEMS_A_STEP: Final = 100
_MANY: Final = 100_000
"""Items that an iterator without a length is assumed to have."""
_ITEM_BYTES: Final = 84
"""A pointer in a list, and a text of one character."""
_SPLITTING: Final = frozenset({"list", "rsplit", "sort", "split", "splitlines", "unique"})
"""Filters and methods that may return an item for each character."""
_MAX_INDENT: Final = 32
_MAX_WIDTH_DIGITS: Final = 4
_WIDE: Final = re.compile(rf"\d{{{_MAX_WIDTH_DIGITS + 1},}}|%[^a-zA-Z%]*\*")
"""Format strings with a width of many digits, or with a width from an argument (`*`)."""


class _Budget:
    """The work that is left for one rendering."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._num_steps = limits.max_steps
        self._deadline_s = perf_counter() + limits.max_seconds
        self._num_characters = limits.max_characters
        self._num_bytes = limits.max_bytes

    def spend(self, num_steps: int) -> None:
        """Count steps; raises `RenderingTooLong` if none are left."""
        self._num_steps -= num_steps
        if self._num_steps < 0:
            self._refuse(f"{self._limits.max_steps} steps")
        if perf_counter() > self._deadline_s:
            self._refuse(f"{self._limits.max_seconds:g} s")

    def write(self, num_characters: int) -> None:
        """Count characters of the prompt; raises `RenderingTooLong` if none are left."""
        self._num_characters -= num_characters
        if self._num_characters < 0:
            self._refuse(f"{self._limits.max_characters} characters")

    def take(self, num_bytes: int) -> None:
        """Count memory of values; raises `RenderingTooLong` if none is left."""
        self._num_bytes -= num_bytes
        if self._num_bytes < 0:
            self._refuse(f"{self._limits.max_bytes} bytes of memory")

    @staticmethod
    def _refuse(limit: str) -> None:
        raise RenderingTooLong(
            f"The chat template needs more than {limit} for these messages. Send fewer, or correct the template.",
            param="messages",
        )


_BUDGET: ContextVar[_Budget] = ContextVar("render_budget")
"""Unset while a template is compiled, so that Jinja defers operations on constants to the rendering."""


@contextmanager
def rendering(limits: RenderLimits) -> Iterator[Callable[[int], None]]:
    """Limit the templates rendered in the block, and yield a function that counts characters of the prompt."""
    budget = _Budget(limits)
    token = _BUDGET.set(budget)
    try:
        yield budget.write
    finally:
        _BUDGET.reset(token)


def spend_on(*values: object) -> None:
    """Count one step, and the sizes of texts and collections."""
    _BUDGET.get().spend(1 + sum(map(_size, values)) // _ITEMS_A_STEP)


def keep(value: object) -> None:
    """Count the work and the memory of a value that was built."""
    spend_on(value)
    if isinstance(value, str | list | tuple | dict):
        _BUDGET.get().take(sys.getsizeof(value))


def counted_loop(items: Any) -> Any:
    """Count the iterations of a loop over `items`."""
    if isinstance(items, Iterator):
        return _counted(items)
    return _CountedItems(items) if isinstance(items, Sized) else items


def counted_part(value: Any) -> Any:
    """Count a part of a text that is about to be joined by `~`."""
    keep(value)
    return value


def counted_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts its work; Jinja's mark for `pass_environment` and the like is kept."""
    has_more = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _spend_before(name, *args[has_more:], **kwargs)
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return _counted(result)
        keep(result)
        return result

    return counted


def counted_call(call: Callable[[], Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a call, and count its work."""
    method = getattr(function, "__wrapped__", function)
    owner = getattr(method, "__self__", None)
    if isinstance(owner, str):
        _spend_before(method.__name__, owner, *args, **kwargs)
    else:
        spend_on(*args)
    result = call()
    keep(result)
    return result


class _CountedItems:
    """The items of a loop with their length, counted as they are iterated."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _counted(iter(self._items))


def _counted(items: Iterator[Any]) -> Iterator[Any]:
    budget = _BUDGET.get()
    for item in items:
        budget.spend(1)
        budget.take(_ITEM_BYTES)
        yield item


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _spend_before(name: str, value: Any = "", *args: Any, **kwargs: Any) -> None:
    """Count the arguments of a filter or a method, and the size of its result if that may be much larger."""
    arguments = (*args, *kwargs.values())
    spend_on(value, *arguments)
    if name in _SPLITTING and isinstance(value, str):
        _BUDGET.get().take(_num_parts(value, arguments) * _ITEM_BYTES)
    size_of = _RESULT_SIZES.get(name)
    if size_of is not None:
        size = size_of(value, arguments)
        _BUDGET.get().spend(size // _ITEMS_A_STEP)
        _BUDGET.get().take(size)


def _num_parts(value: str, arguments: tuple[Any, ...]) -> int:
    """Return the maximum number of items that a text is split into."""
    separators = [argument for argument in arguments if isinstance(argument, str) and argument]
    return value.count(separators[0]) + 1 if separators else len(value)


def _indented(value: Any, arguments: tuple[Any, ...]) -> int:
    """Refuse a wide indentation of JSON, which is written before each of its values."""
    if any(isinstance(argument, int) and argument > _MAX_INDENT for argument in arguments):
        raise RenderingTooLong(
            f"The chat template needs more than {_MAX_INDENT} characters to indent JSON. Correct the template.",
            param="messages",
        )
    return _size(value)


def _padded(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return a bound of the size after padding to a width, or by a number of characters."""
    width = max((abs(argument) for argument in arguments if isinstance(argument, int)), default=0)
    return (width + 1) * _num_lines(value)


def _num_lines(value: Any) -> int:
    return 1 + sum(value.count(character) for character in "\n\t") if isinstance(value, str) else 1


def _joined(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return the size of a text joined from items: the owner of the method `join` is the separator."""
    is_method = isinstance(value, str) and arguments and not isinstance(arguments[0], str)
    separator, items = (value, arguments[0]) if is_method else (arguments[0] if arguments else "", value)
    if not isinstance(items, Sized):
        return 0
    num_characters = sum(map(_size, items)) if isinstance(items, list | tuple) else 0
    return num_characters + len(items) * (len(separator) if isinstance(separator, str) else 0)


def _replaced(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return the size of a text after a replacement."""
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if not isinstance(value, str) or len(texts) < 2:
        return 0
    return value.count(texts[0]) * len(texts[1])


def _formatted(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return a bound of the size of a formatted text."""
    text = str(value)
    if _WIDE.search(text):
        raise SecurityError(f"The chat template formats with a width of more than {_MAX_WIDTH_DIGITS} digits.")
    longest = max(map(_size, arguments), default=0)
    return (text.count("%") + text.count("{")) * longest


def _summed(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return the number of items that a sum of lists copies: each addition copies all items before it."""
    if not any(isinstance(argument, list | tuple) for argument in arguments):
        return 0
    return (_size(value) or _MANY) ** 2


def _translated(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return a bound of the size of a text whose characters are replaced by a table."""
    tables = (argument.values() for argument in arguments if isinstance(argument, dict))
    return _size(value) * max((_size(text) for table in tables for text in table), default=0)


def _printed(value: Any, _arguments: tuple[Any, ...]) -> int:
    """Return the work of a filter that is much slower than others."""
    return _size(value) * _ITEMS_A_STEP


def _wrapped(value: Any, arguments: tuple[Any, ...]) -> int:
    """Return a bound of the size of a text with a separator after each few characters."""
    longest = max((len(argument) for argument in arguments if isinstance(argument, str)), default=1)
    return len(value) * longest if isinstance(value, str) else 0


_RESULT_SIZES: Mapping[str, Callable[[Any, tuple[Any, ...]], int]] = MappingProxyType(
    {
        "batch": _padded,
        "center": _padded,
        "expandtabs": _padded,
        "format": _formatted,
        "format_map": _formatted,
        "indent": _padded,
        "join": _joined,
        "ljust": _padded,
        "pprint": _printed,
        "replace": _replaced,
        "rjust": _padded,
        "slice": _padded,
        "striptags": _printed,
        "sum": _summed,
        "tojson": _indented,
        "translate": _translated,
        "urlize": _printed,
        "wordwrap": _wrapped,
        "zfill": _padded,
    }
)
"""Bounds of the results of filters and of methods of texts."""


def check_format(text: str, values: object) -> None:
    """Count the operator `%` of a text before it runs."""
    arguments = values if isinstance(values, tuple) else (values,)
    _BUDGET.get().spend(_formatted(text, arguments) // _ITEMS_A_STEP)
