"""
Decode K-quants, and the older types with 5 bits: integers with a scale, and perhaps a minimum, for 16 or 32 numbers.

gguf-py decodes them too, at a third of this speed, which matters for gigabytes.
Q4_K becomes Q4_1: both are nibbles with a scale and a minimum for every 32 numbers. The nibbles are unchanged. A scale
(minimum) of Q4_K is the product of the super-block's half and 6 bits; it is rounded once, to the half of Q4_1:
a relative error of at most 2^-11, a 140th of the step between two nibbles.
Source: ggml `ggml-common.h` (`block_q4_K` and others), gguf-py `quants.py`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_BYTES: Final = 144
"""Bytes of a block of Q4_K: two halves, 12 bytes of 6-bit scales and minima, 256 nibbles."""
_GROUPS: Final = 8
_HALF_GROUP: Final = 16
_PAIRS: Final = np.array([0, 2, 4, 6], np.uint8)[:, np.newaxis]
_BITS: Final = np.arange(8, dtype=np.uint8)[:, np.newaxis]

Blocks = npt.NDArray[np.uint8]
"""(blocks, bytes of a block)."""
Values = npt.NDArray[np.float32]
"""(blocks, numbers of a block)."""


def q4_k_as_q4_1(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return rows of Q4_K blocks as rows of Q4_1 blocks."""
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK_BYTES)
    halves = _halves(blocks[:, :4])
    scales, minima = _six_bits(blocks[:, 4:16])
    with np.errstate(invalid="ignore", over="ignore"):  # halves of a damaged file may be infinite
        head = np.stack([halves[:, :1] * scales, -halves[:, 1:] * minima], axis=-1).astype("<f2").view(np.uint8)
    nibbles = _nibble_runs(blocks[:, 16:])
    packed = nibbles[..., :_HALF_GROUP] | nibbles[..., _HALF_GROUP:] << 4
    return np.concatenate([head.reshape(-1, _GROUPS, 4), packed], axis=-1).reshape(len(rows), -1)


def decode_q2_k(blocks: Blocks) -> Values:
    """Decode blocks of 16 bytes of scales and minima, 64 bytes of codes, two halves."""
    halves = _halves(blocks[:, 80:])
    codes = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> _PAIRS & 3
    return _scaled(codes, halves[:, :1] * (blocks[:, :16] & 15), halves[:, 1:] * (blocks[:, :16] >> 4))


def decode_q3_k(blocks: Blocks) -> Values:
    """Decode blocks of 32 bytes of high bits, 64 bytes of low bits, 12 bytes of scales, a half."""
    low = blocks[:, 32:96].reshape(-1, 2, 1, 32) >> _PAIRS & 3
    high = (blocks[:, np.newaxis, :32] >> _BITS & 1).reshape(-1, 2, 4, 32)
    packed = blocks[:, 96:108]
    scales_low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales_high = (packed[:, np.newaxis, 8:] >> _PAIRS & 3).reshape(-1, 16)
    scales = (scales_low | scales_high << 4).view(np.int8) - np.int8(32)
    return _scaled((low | high << 2).view(np.int8) - np.int8(4), _halves(blocks[:, 108:]) * scales)


def decode_q5_k(blocks: Blocks) -> Values:
    """Decode blocks of two halves, 12 bytes of scales and minima, 32 bytes of high bits, 128 bytes of low bits."""
    halves = _halves(blocks[:, :4])
    scales, minima = _six_bits(blocks[:, 4:16])
    codes = _nibble_runs(blocks[:, 48:])
    codes |= (blocks[:, np.newaxis, 16:48] >> _BITS & 1) << 4
    return _scaled(codes, halves[:, :1] * scales, halves[:, 1:] * minima)


def decode_q6_k(blocks: Blocks) -> Values:
    """Decode blocks of 128 bytes of low bits, 64 bytes of high bits, 16 scales, a half."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2)
    codes |= (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS & 3) << 4
    return _scaled(codes.view(np.int8) - np.int8(32), _halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8))


def decode_q5_0(blocks: Blocks) -> Values:
    """Decode blocks of a half, 4 bytes of high bits, 16 bytes of low bits."""
    return _scaled(_five_bits(blocks[:, 2:]).view(np.int8) - np.int8(16), _halves(blocks[:, :2]))


def decode_q5_1(blocks: Blocks) -> Values:
    """Decode blocks of a scale, a minimum, 4 bytes of high bits, 16 bytes of low bits."""
    halves = _halves(blocks[:, :4])
    return _scaled(_five_bits(blocks[:, 4:]), halves[:, :1], -halves[:, 1:])


def _scaled(codes: npt.NDArray[np.integer], scales: Values, minima: Values | None = None) -> Values:
    """Return `code * scale - minimum`, where the columns of `scales` and `minima` stand for equal runs of codes."""
    runs = codes.reshape(*scales.shape, -1)
    values: Values = np.multiply(runs, scales[..., np.newaxis], dtype=np.float32)
    if minima is not None:
        values -= minima[..., np.newaxis]
    return values.reshape(len(codes), -1)


def _halves(data: npt.NDArray[np.uint8]) -> Values:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibble_runs(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Unpack runs of 32 bytes, each the low nibbles of 32 codes and the high nibbles of the next 32."""
    runs = packed.reshape(-1, _GROUPS // 2, 1, 2 * _HALF_GROUP)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, _GROUPS, 2 * _HALF_GROUP)


def _five_bits(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Unpack 32 codes from 4 bytes of high bits and 16 bytes of nibbles."""
    high = np.unpackbits(np.ascontiguousarray(packed[:, :4]), axis=1, bitorder="little")
    codes: Blocks = np.concatenate([packed[:, 4:] & 15, packed[:, 4:] >> 4], axis=1) | high << 4
    return codes


def _six_bits(packed: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Unpack scales and minima of the 8 groups; the first four share bytes with the upper bits of the last four."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=1)
    return scales, minima
