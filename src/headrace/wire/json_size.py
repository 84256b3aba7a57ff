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
INLINE_BYTES = 64 * 1024
"""Shorter bodies are decoded uncounted: whatever they contain, it takes milliseconds."""
_BLOCK_BYTES = 256 * 1024
_QUOTE, _COMMA, _LIST, _OBJECT, _COLON = b'",[{:'

Bytes = npt.NDArray[np.uint8]


def check_json_size(body: bytes, *, what: str = "The request body") -> None:
    """
    Refuse JSON with too many values to be decoded at once. It need not be valid.

    Args:
        body: the JSON.
        what: the subject of the error.

    Raises:
        PayloadTooLarge: it has more objects and lists, values or object members than are decoded.
    """
    containers, values, members = count_json(body)
    for count, most, kind in (
        (containers, MAX_CONTAINERS, "objects and lists"),
        (values, MAX_VALUES, "values"),
        (members, MAX_MEMBERS, "object members"),
    ):
        if count > most:
            raise PayloadTooLarge(f"{what} has {count} {kind}; expected at most {most}. Send less at a time.")


def count_json(body: bytes) -> tuple[int, int, int]:
    """Return the numbers of objects and lists, of values (roughly; a string is one) and of object members."""
    containers = commas = members = 0
    is_inside = np.uint8(0)
    for block in _blocks(body):
        inside = np.bitwise_xor.accumulate((block == _QUOTE).view(np.uint8)) ^ is_inside
        is_inside = inside[-1]
        is_outside = inside == 0
        containers += int(np.count_nonzero(is_outside & ((block == _LIST) | (block == _OBJECT))))
        commas += int(np.count_nonzero(is_outside & (block == _COMMA)))
        members += int(np.count_nonzero(is_outside & (block == _COLON)))
    return containers, commas + containers, members


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
