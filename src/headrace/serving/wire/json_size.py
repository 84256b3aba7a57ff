"""
The number of values in a JSON body, counted before it is decoded.

The decoder holds the GIL for the whole body, and no other stream gets a token meanwhile: 8 million empty lists are
24 MB and took 2.3 s. `json_count` counts them with numpy, which a platform imports when the first large body comes.
"""

from headrace.core.errors import PayloadTooLarge

MAX_CONTAINERS = 50_000
"""Objects and lists of one body: about 15 ms of decoding."""
MAX_VALUES = 500_000
"""Values of one body, a token id each for a batch of prompts: about 15 ms of decoding."""
MAX_MEMBERS = 100_000
"""Members of all objects of one body; each has a name to be made, which takes several times as long as a number."""
MAX_HARD_NUMBERS = 4_000
"""
Numbers of one body that msgspec may need 10 us for: those with an exponent of three digits, or of 20 digits.

`1e308` takes 300 times as long as `1e300`: its fast path does not cover the ends of the range.
"""
INLINE_BYTES = 64 * 1024
"""Shorter bodies are decoded inline, without another thread."""
UNCOUNTED_BYTES = 4 * 1024
"""Shorter bodies are decoded uncounted: whatever they contain, it takes milliseconds."""


def check_json_size(body: bytes, *, what: str = "The request body") -> None:
    """Refuse JSON, valid or not, with too many values to be decoded at once. Raises `PayloadTooLarge` about `what`."""
    from headrace.serving.wire.json_count import count_json

    containers, values, members, hard_numbers = count_json(body)
    for count, most, kind in (
        (containers, MAX_CONTAINERS, "objects and lists"),
        (values, MAX_VALUES, "values"),
        (members, MAX_MEMBERS, "object members"),
        (hard_numbers, MAX_HARD_NUMBERS, "numbers of 20 digits or with an exponent of three"),
    ):
        if count > most:
            raise PayloadTooLarge(f"{what} has {count} {kind}; expected at most {most}. Send less at a time.")
