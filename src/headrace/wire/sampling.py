"""Conversions of sampling parameters that every dialect needs."""

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
