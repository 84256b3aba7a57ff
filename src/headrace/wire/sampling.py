"""Conversions of sampling parameters that every dialect needs."""

from typing import TypeVar

Number = TypeVar("Number", int, float)

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them would overflow. Source: vLLM `_SAMPLING_EPS`."""

LARGEST_SEED = 2**64 - 1
LARGEST_COUNT = 2**31 - 1
"""Larger values of top-k and other counts have the same effect."""


def effective_temperature(temperature: float) -> float:
    """Return the temperature, or 0 (greedy) if it is too low to divide by."""
    return 0.0 if temperature < GREEDY_BELOW else temperature


def clamp_count(value: int) -> int:
    """Return a count that fits into 32 bits."""
    return min(value, LARGEST_COUNT)


def first_given(given: Number | None, default: Number | None, last: Number) -> Number:
    """Return the request's value, else the model's default, else `last`."""
    if given is not None:
        return given
    return last if default is None else default
