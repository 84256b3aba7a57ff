"""Counts of the values in JSON, valid or not. numpy counts in blocks and releases the GIL meanwhile."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_BLOCK_BYTES = 256 * 1024
_QUOTE, _COMMA, _LIST, _OBJECT, _COLON, _ZERO, _POINT, _E = b'",[{:0.e'
_LOWER = np.uint8(0x20)

Bytes = npt.NDArray[np.uint8]


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
