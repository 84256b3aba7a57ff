"""
The number of values in a JSON body, counted before it is decoded.

The decoder holds the GIL for the whole body, and no other stream gets a token meanwhile: 8 million empty lists are
24 MB and took 2.3 s. numpy counts them in blocks and releases the GIL.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

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
_BLOCK_BYTES = 256 * 1024
_QUOTE, _COMMA, _LIST, _OBJECT, _COLON, _ZERO, _POINT, _E = b'",[{:0.e'
_LOWER = np.uint8(0x20)

Bytes = npt.NDArray[np.uint8]


def check_json_size(body: bytes, *, what: str = "The request body") -> None:
    """Refuse JSON, valid or not, with too many values to be decoded at once. Raises `PayloadTooLarge` about `what`."""
    containers, values, members, hard_numbers = count_json(body)
    for count, most, kind in (
        (containers, MAX_CONTAINERS, "objects and lists"),
        (values, MAX_VALUES, "values"),
        (members, MAX_MEMBERS, "object members"),
        (hard_numbers, MAX_HARD_NUMBERS, "numbers of 20 digits or with an exponent of three"),
    ):
        if count > most:
            raise PayloadTooLarge(f"{what} has {count} {kind}; expected at most {most}. Send less at a time.")


def count_json(body: bytes) -> tuple[int, int, int, int]:
    """Return the numbers of objects and lists, of values (roughly; a string is one), of members and hard numbers."""
    containers = commas = members = hard_numbers = 0
    is_inside = np.uint8(0)
    for block in _blocks(body):
        inside = np.bitwise_xor.accumulate((block == _QUOTE).view(np.uint8)) ^ is_inside
        is_inside = inside[-1]
        is_outside = inside == 0
        containers += int(np.count_nonzero(is_outside & ((block == _LIST) | (block == _OBJECT))))
        commas += int(np.count_nonzero(is_outside & (block == _COMMA)))
        members += int(np.count_nonzero(is_outside & (block == _COLON)))
        hard_numbers += _count_hard_numbers(block, is_outside)
    return containers, commas + containers, members, hard_numbers


def _count_hard_numbers(block: Bytes, is_outside: npt.NDArray[np.bool_]) -> int:
    """Return how many numbers of a block may take long; one that crosses the end of the block is left out."""
    is_digit = ((block - _ZERO) < 10) & is_outside  # unsigned: characters below 0 wrap around
    three = is_digit[:-2] & is_digit[1:-1] & is_digit[2:]
    is_exponent = ((block | _LOWER) == _E) & is_outside
    long_exponents = is_exponent[:-4] & (three[1:-1] | three[2:])  # behind the e, or behind its sign
    run = is_digit | ((block == _POINT) & is_outside)
    for shift in (1, 2, 4, 8, 4):  # 2, 4, 8, 16 and at last 20 in a row
        run = run[:-shift] & run[shift:]
    num_runs = int(np.count_nonzero(run[1:] & ~run[:-1])) + int(run[:1].any())
    return int(np.count_nonzero(long_exponents)) + num_runs


def _blocks(body: bytes) -> Iterator[Bytes]:
    """Yield the body in blocks without its escapes, so that every remaining quote begins or ends a string."""
    start = 0
    while start < len(body):
        stop = start + _BLOCK_BYTES
        while stop < len(body) and body[stop - 1] == b"\\"[0]:
            stop += 1  # never split an escape
        block = body[start:stop]
        if b"\\" in block:
            block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
        if block:
            yield np.frombuffer(block, np.uint8)
        start = stop
