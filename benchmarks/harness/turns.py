"""Runs in turns, so that a slow phase of the machine or a neighbour's load falls on all that is compared."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, TypeVar

_Name = TypeVar("_Name")


def rotated(names: Sequence[_Name], number: int) -> Sequence[_Name]:
    """Return the names in the order of a round, whose first one changes from round to round."""
    turn = number % len(names)
    return (*names[turn:], *names[:turn])


def in_turns(names: Sequence[_Name], rounds: int) -> Iterator[tuple[int, _Name]]:
    """Yield the number of the round and a name, for all names in each round."""
    for number in range(rounds):
        for name in rotated(names, number):
            yield number, name


def pair_ratios(values: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """Return the ratios of paired runs, and their median, as result files have them."""
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    return {"ratios": [round(ratio, 3) for ratio in ratios], "ratio_median": round(median(ratios), 3)}
