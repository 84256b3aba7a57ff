"""Small rules about sampling numbers that every dialect needs."""

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy: dividing logits by it would overflow. Source: vLLM `_SAMPLING_EPS`."""

LARGEST_SEED = 2**64 - 1
LARGEST_COUNT = 2**31 - 1
"""Top-k and the like beyond this are the same as this."""


def effective_temperature(temperature: float) -> float:
    """The temperature, or 0 (greedy) where it is too low to divide by."""
    return 0.0 if temperature < GREEDY_BELOW else temperature


def clamp_count(value: int) -> int:
    """A count that fits into 32 bits."""
    return min(value, LARGEST_COUNT)
