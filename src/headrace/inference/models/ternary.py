"""
Ternary weights: `Encoding.TERNARY` from the types of GGUF and the codes of BitNet, without a change of a number.

TQ1_0 packs 5 numbers of base 3 in a byte, TQ2_0 codes of 2 bits, both with a half for 256 numbers. Q1_0 has signs of
128 numbers and a half: the codes 0 and 2. Source: ggml `ggml-common.h`, gguf-py `quants.py`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.models.gguf_file import BLOCKS
from headrace.inference.models.weights import Encoding, RawTensor

BLOCK: Final = 128
"""Numbers that share a scale."""
BLOCK_BYTES: Final = 34
_CODES_BYTES: Final = 32
_Q4_GROUP: Final = 32
_SHIFTS: Final = np.array([0, 2, 4, 6], np.uint8)
_POWERS: Final = np.array([1, 3, 9, 27, 81], np.uint8)

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]


def ternary_rows(rows: Bytes, type_id: int) -> Bytes:
    """Return rows of a ternary type of GGUF as rows of `Encoding.TERNARY`."""
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCKS[type_id][1])
    return GGUF_TYPES[type_id](blocks).reshape(len(rows), -1)


def pack_ternary(codes: Bytes, scales: Halves) -> Bytes:
    """Return blocks, given codes of 0 to 3 and a scale for each 128 of them or for a multiple of that."""
    parts = codes.reshape(-1, len(_SHIFTS), _CODES_BYTES) << _SHIFTS[:, np.newaxis]
    return _with_scales(np.bitwise_or.reduce(parts, axis=1), scales)


def ternary_values(rows: Bytes) -> npt.NDArray[np.float32]:
    """Return the numbers of rows of `Encoding.TERNARY`."""
    codes, scales = _unpack(rows)
    values: npt.NDArray[np.float32] = (codes.astype(np.float32) - 1) * scales.astype(np.float32)
    return values.reshape(len(rows), -1)


def ternary_as_q4_1(tensor: RawTensor) -> RawTensor:
    """Return a ternary tensor in Q4_1 with the same numbers."""
    codes, scales = _unpack(tensor.data)
    groups = codes.reshape(-1, _Q4_GROUP)
    heads = np.repeat(np.concatenate([scales, -scales], axis=1), BLOCK // _Q4_GROUP, axis=0)
    nibbles = groups[:, : _Q4_GROUP // 2] | groups[:, _Q4_GROUP // 2 :] << 4
    rows = np.concatenate([heads.view(np.uint8), nibbles], axis=1).reshape(tensor.num_rows, -1)
    return RawTensor(Encoding.Q4_1, tensor.num_rows, tensor.num_columns, rows)


def _unpack(rows: Bytes) -> tuple[Bytes, Halves]:
    """Return the codes (blocks, 128) and the scales (blocks, 1)."""
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK_BYTES)
    codes: Bytes = blocks[:, np.newaxis, :_CODES_BYTES] >> _SHIFTS[:, np.newaxis] & np.uint8(3)
    return codes.reshape(-1, BLOCK), _halves(blocks[:, _CODES_BYTES:])


def _with_scales(packed: Bytes, scales: Halves) -> Bytes:
    blocks = packed.reshape(-1, _CODES_BYTES)
    each = np.repeat(scales.reshape(-1), len(blocks) // scales.size)
    return np.concatenate([blocks, each.astype("<f2").view(np.uint8).reshape(-1, 2)], axis=1)


def _from_tq1_0(blocks: Bytes) -> Bytes:
    """Convert blocks of 48 bytes of 5 numbers each, 4 bytes of 4 numbers, and a half."""
    runs = [
        blocks[:, np.newaxis, start:stop] * _POWERS[:count, np.newaxis]
        for start, stop, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    numbers = np.concatenate([run.reshape(len(blocks), -1) for run in runs], axis=1)
    codes = (numbers.astype(np.uint16) * 3 >> 8).astype(np.uint8)  # the highest digit
    return pack_ternary(codes, _halves(blocks[:, 52:]))


def _from_tq2_0(blocks: Bytes) -> Bytes:
    return _with_scales(blocks[:, :64], _halves(blocks[:, 64:]))


def _from_q1_0(blocks: Bytes) -> Bytes:
    """Convert blocks of a half and 128 bits, which are the signs from the lowest up: 0 is negative."""
    codes = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") * np.uint8(2)
    return pack_ternary(codes, _halves(blocks[:, :2]))


def _halves(data: Bytes) -> Halves:
    return np.ascontiguousarray(data).view("<f2")


GGUF_TYPES: Final[Mapping[int, Callable[[Bytes], Bytes]]] = MappingProxyType(
    {34: _from_tq1_0, 35: _from_tq2_0, 41: _from_q1_0}
)
"""TQ1_0, TQ2_0 and Q1_0, with the conversion of their blocks."""
