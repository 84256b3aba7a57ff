"""
A budget of work for rendering a chat template.

A template is foreign code, and a thread that runs it cannot be stopped from outside. So the sandbox counts the work
while it runs: a step for each iteration and call, one for every hundred characters and one for every ten values that an
operation reads or builds. Operations whose result may be much larger than their arguments are counted before they run.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from time import perf_counter
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Macro

from headrace.inference.models.chat_sizes import (
    ITEM_BYTES,
    MAX_BITS,
    MAX_VALUES,
    POINTER_BYTES,
    RESULT_SIZES,
    Extent,
    formatted_size,
    measure,
    refuse_above,
    shallow,
    split_bytes,
)
from headrace.inference.models.render_limits import RenderLimits, too_long

_CHARACTERS_A_STEP: Final = 100
_VALUES_A_STEP: Final = 10
_SPLITTING: Final = frozenset({
    "batch", "dictsort", "groupby", "list", "partition", "rpartition", "rsplit", "slice", "sort", "split",
    "splitlines", "unique",
})  # fmt: skip
"""Filters and methods that may return an item for each character, or a list of the items."""
_SHALLOW: Final = frozenset({
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
})  # fmt: skip
"""Filters that do not visit the values inside the items of a collection."""
_COLLECTING: Final = frozenset({"join", "sum"})
"""Filters and methods that need a list, whose size is known, instead of an iterator."""
_SEARCHING: Final = frozenset({"count", "index"})
"""Methods of lists that compare."""
_MAX_ADDED: Final = 1000
"""Longest text that a template may add to a list, which an expression may have measured already to print it."""


class GrowingList(list[Any]):
    """
    A list that began empty, to which a template may add texts and numbers, as a queue of ids (Kimi K2).

    It never holds another list, nor itself, and none of the client's lists can be changed.
    """

    CHANGES: Final = frozenset({"append", "pop"})

    def append(self, item: Any) -> None:
        if not isinstance(item, str | int | float) or len(str(item)) > _MAX_ADDED:
            raise SecurityError(
                f"The chat template adds to a list what is no number and no text of {_MAX_ADDED} characters."
            )
        super().append(item)


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
            raise too_long(f"{self._limits.max_steps} steps")
        if perf_counter() > self._deadline_s:
            raise too_long(f"{self._limits.max_seconds:g} s")

    def write(self, num_characters: int) -> None:
        self._num_characters -= num_characters
        if self._num_characters < 0:
            raise too_long(f"{self._limits.max_characters} characters")

    def take(self, num_bytes: int) -> None:
        self.reserve(num_bytes)
        self._num_bytes -= num_bytes

    def reserve(self, num_bytes: int) -> None:
        """Check that there is memory for a result, which is counted when it is there."""
        if num_bytes > self._num_bytes:
            raise too_long(f"{self._limits.max_bytes} bytes of memory")


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


def keep(value: object) -> None:
    """Count the work and the memory of a value that was built."""
    size = len(value) if isinstance(value, str | list | tuple | dict | set) else 0
    budget = _BUDGET.get()
    budget.spend(1 + size // _CHARACTERS_A_STEP)
    budget.take(sys.getsizeof(value))
    if isinstance(value, int):
        refuse_above(value.bit_length(), MAX_BITS)
    elif size > MAX_VALUES and not isinstance(value, str):
        raise too_long(f"{MAX_VALUES} values in one operation")


def counted_loop(items: Any) -> Any:
    if isinstance(items, Iterator):
        return _counted(items)
    return _CountedItems(items) if isinstance(items, Sized) else items


def counted_body(num_bytes: int) -> None:
    """Count the constant texts of a loop or a macro, which runs now."""
    _BUDGET.get().take(num_bytes)


def growing(items: list[Any]) -> GrowingList:
    """Return an empty list that the template may add to."""
    keep(items)
    return GrowingList(items)


def counted_value(value: Any) -> Any:
    """Count a list, a slice or a text that the template has just built."""
    keep(value)
    return value


def measured(value: Any) -> Any:
    """Count the work of an operation that visits all values inside `value`."""
    _spend_on([measure(value)])
    return value


def printed(value: Any) -> Any:
    """Count the text of a value that is about to be written, or joined by `~`."""
    extent = measure(value)
    _spend_on([extent])
    size = len(value) if isinstance(value, str) else extent.num_printed
    _BUDGET.get().take(POINTER_BYTES + size * extent.character_bytes)
    return value


def counted_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts its work; Jinja's mark for `pass_environment` and the like is kept."""
    has_more = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        context, values = args[:has_more], _listed(name, args[has_more:])
        _spend_before(name, *values, **kwargs)
        result = function(*context, *values, **kwargs)
        if isinstance(result, Iterator):
            return _counted(result)
        keep(result)
        return result

    return counted


def counted_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def counted(*args: Any) -> Any:
        _spend_on(map(measure, args))
        return function(*args)

    return counted


def counted_call(call: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    method = getattr(function, "__wrapped__", function)
    owner = getattr(method, "__self__", None)
    if args:
        keep(args)
    if isinstance(owner, str):
        args = _listed(method.__name__, args)
        _spend_before(method.__name__, owner, *args, **kwargs)
    elif not isinstance(function, Macro):
        is_search = isinstance(owner, list | tuple) and method.__name__ in _SEARCHING
        _spend_on(map(measure, (*args, *kwargs.values(), *((owner,) if is_search else ()))))
    result = call(*args, **kwargs)
    keep(result)
    return result


def check_format(text: str, values: object) -> None:
    """Count the operator `%` of a text before it runs."""
    arguments = values if isinstance(values, tuple) else (values,)
    extent = measure(text)
    _expect(formatted_size(text, arguments, extent), [extent, measure(arguments)])


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
        budget.take(ITEM_BYTES + sys.getsizeof(item))
        yield item


def _listed(name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values with the iterator to be joined or summed as a list."""
    if name in _COLLECTING and values and isinstance(values[0], Iterator):
        return (list(values[0]), *values[1:])
    return values


def _spend_before(name: str, value: Any = "", *args: Any, **kwargs: Any) -> None:
    """Count the arguments of a filter or a method, and the size of its result if that may be much larger."""
    arguments = (*args, *kwargs.values())
    extent = shallow(value) if name in _SHALLOW else measure(value)
    extents = [extent, *map(measure, arguments)]
    if name in _SPLITTING:
        _BUDGET.get().take(split_bytes(value, arguments))
    size_of = RESULT_SIZES.get(name)
    _expect(0 if size_of is None else size_of(value, arguments, extent), extents)


def _expect(num_characters: int, extents: list[Extent]) -> None:
    """Count the work of an operation, and check that there is memory for its result of so many characters."""
    _spend_on(extents)
    budget = _BUDGET.get()
    budget.spend(num_characters // _CHARACTERS_A_STEP)
    budget.reserve(num_characters * max(extent.character_bytes for extent in extents))


def _spend_on(extents: Iterable[Extent]) -> None:
    steps = (extent.num_values // _VALUES_A_STEP + extent.num_characters // _CHARACTERS_A_STEP for extent in extents)
    _BUDGET.get().spend(1 + sum(steps))
