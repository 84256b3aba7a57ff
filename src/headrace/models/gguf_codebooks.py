"""
Decode types of GGUF whose codes are looked up: IQ types (an entry for 1, 4 or 8 numbers, with signs) and MXFP4.

gguf-py decodes them too, several times slower. The codebooks are those of its classes.
Source: ggml `ggml-common.h` (`block_iq2_xxs` and others), gguf-py `quants.py`.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.models.float8 import e8m0_halves
from headrace.models.gguf_kquants import Blocks, Values

_SIGN_SHIFTS: Final = np.array([0, 7, 14, 21], np.uint32)
_PAIRS: Final = np.array([0, 2, 4, 6], np.uint8)
_THREES: Final = np.array([0, 3, 6, 9], np.uint16)
_NIBBLES: Final = np.array([0, 4], np.uint8)
_BITS: Final = np.arange(8, dtype=np.uint8)
_IQ4: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1_TWICE: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_IQ1_STEPS: Final = 8
"""Numbers of IQ1 are -1, 0 or 1, and an eighth more or less."""

Numbers = npt.NDArray[np.int8]
Codes = npt.NDArray[np.integer]


def decode_iq2_xxs(blocks: Blocks) -> Values:
    """Decode blocks of a half, and 8 pairs of words: 4 codes of 8 bits; 4 signs of 7 bits and a scale of 4 bits."""
    words = np.ascontiguousarray(blocks[:, 2:]).view("<u4").reshape(-1, 8, 2)
    codes = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    scales = _half(blocks) * (0.25 * (0.5 + (words[..., 1] >> 28).astype(np.float32)))
    return _scaled(_entries("IQ2_XXS", codes) * _signs(_seven_bits(words[..., 1])), scales)


def decode_iq2_xs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes of 9 bits with signs of 7 bits, 8 bytes of scales."""
    codes = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    scales = _half(blocks) * (0.25 * (0.5 + _unpacked(blocks[:, 66:], _NIBBLES, 15)))
    return _scaled(_entries("IQ2_XS", codes & 511) * _signs(_parity_signs()[codes >> 9]), scales)


def decode_iq2_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes, 32 bytes of signs, 8 bytes of the codes' high bits, 8 bytes of scales."""
    codes = blocks[:, 2:34] | _unpacked(blocks[:, 66:74], _PAIRS, 3).astype(np.uint16) << 8
    scales = _half(blocks) * (0.25 * (0.5 + _unpacked(blocks[:, 74:], _NIBBLES, 15)))
    return _scaled(_entries("IQ2_S", codes) * _signs(blocks[:, 34:66]), scales)


def decode_iq3_xxs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 64 codes, and 8 words of signs and a scale."""
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")
    scales = _half(blocks) * (0.5 * (0.5 + (words >> 28).astype(np.float32)))
    return _scaled(_entries("IQ3_XXS", blocks[:, 2:66]) * _signs(_seven_bits(words)), scales)


def decode_iq3_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 64 codes, 8 bytes of their high bits, 32 bytes of signs, 4 bytes of scales."""
    codes = blocks[:, 2:66] | _unpacked(blocks[:, 66:74], _BITS, 1).astype(np.uint16) << 8
    scales = _half(blocks) * (1 + 2 * _unpacked(blocks[:, 106:], _NIBBLES, 15))
    return _scaled(_entries("IQ3_S", codes) * _signs(blocks[:, 74:106]), scales)


def decode_iq1_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes, and 8 words: the codes' high bits, a scale and the sign of the eighth."""
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    codes = blocks[:, 2:34] | _unpacked(words, _THREES, 7) << 8
    eighths = np.repeat(np.where(words & 0x8000, -1, 1).astype(np.int8), 32, axis=1)
    scales = _half(blocks) * (1 + 2 * (words >> 12 & 7)).astype(np.float32) / np.float32(_IQ1_STEPS)
    return _scaled(_entries("IQ1_S", codes) * np.int8(_IQ1_STEPS) + eighths, scales)


def decode_iq1_m(blocks: Blocks) -> Values:
    """Decode blocks of 32 codes, 16 bytes of their high bits and signs, 4 words of scales and of a half's nibbles."""
    words = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
    codes = blocks[:, :32] | _unpacked(blocks[:, 32:48], _NIBBLES, 7).astype(np.uint16) << 8
    negative = _unpacked(blocks[:, 32:48], _NIBBLES, 8)
    eighths = np.repeat(np.where(negative, -1, 1).astype(np.int8), 8, axis=1)
    half = (words >> 12 << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, keepdims=True, dtype=np.uint16)
    steps = (1 + 2 * _unpacked(words, _THREES, 7)).astype(np.float32) / np.float32(_IQ1_STEPS)
    scales = half.view("<f2").astype(np.float32) * steps
    return _scaled(_entries("IQ1_S", codes) * np.int8(_IQ1_STEPS) + eighths, scales)


def decode_iq4_nl(blocks: Blocks) -> Values:
    """Decode blocks of a half and 16 bytes of codes."""
    return _scaled(_IQ4[np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)], _half(blocks))


def decode_iq4_xs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 2 bytes of the scales' high bits, 4 bytes of their low bits, 128 bytes of codes."""
    words = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = (_unpacked(blocks[:, 4:8], _NIBBLES, 15) | high << 4).view(np.int8) - np.int8(32)
    packed = blocks[:, 8:].reshape(-1, 8, 1, 16)
    return _scaled(_IQ4[np.concatenate([packed & 15, packed >> 4], axis=2)], _half(blocks) * scales)


def decode_mxfp4(blocks: Blocks) -> Values:
    """Decode blocks of an exponent and 16 bytes of codes."""
    numbers = _E2M1_TWICE[np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)]
    return _scaled(numbers, np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127))


def mxfp4_as_fp4(blocks: Blocks) -> Blocks | None:
    """Return MXFP4 as blocks with a half as their scale, or None if halves do not hold the exponents."""
    halves = e8m0_halves(blocks[:, :1])
    return None if halves is None else np.concatenate([halves.view(np.uint8), blocks[:, 1:]], axis=1)


def _scaled(numbers: Numbers, scales: Values) -> Values:
    """Multiply equal runs of numbers by the columns of `scales`."""
    runs = numbers.reshape(*scales.shape, -1)
    return np.multiply(runs, scales[..., np.newaxis], dtype=np.float32).reshape(len(numbers), -1)


def _half(blocks: Blocks) -> Values:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _unpacked(
    packed: npt.NDArray[np.unsignedinteger], shifts: npt.NDArray[np.unsignedinteger], mask: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return several fields of every number, one after the other."""
    fields: npt.NDArray[np.unsignedinteger] = packed[..., np.newaxis] >> shifts & packed.dtype.type(mask)
    return fields.reshape(len(packed), -1)


def _entries(name: str, codes: Codes) -> Numbers:
    book = _codebook(name)
    return np.take(book, codes).view(np.int8).reshape(len(codes), -1)


def _signs(bits: npt.NDArray[np.uint8]) -> Numbers:
    """Return -1 or 1 for each bit, from the lowest up."""
    return np.take(_sign_table(), bits).view(np.int8).reshape(len(bits), -1)


def _seven_bits(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the bytes of signs of words with four codes of 7 bits."""
    signs: npt.NDArray[np.uint8] = _parity_signs()[_unpacked(words, _SIGN_SHIFTS, 127)]
    return signs


@cache
def _codebook(name: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the entries of a codebook as words of bytes, so that one look-up copies a whole entry."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    entries = np.ascontiguousarray(kind.grid.reshape(kind.grid_shape).astype(np.int8))
    return entries.view("<u8" if kind.grid_shape[1] == 8 else "<u4").reshape(-1)


@cache
def _sign_table() -> npt.NDArray[np.uint64]:
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).view("<u8").reshape(-1)


@cache
def _parity_signs() -> npt.NDArray[np.uint8]:
    """Return the byte of signs for each code of 7 bits: the eighth bit makes the number of ones even."""
    codes = np.arange(128, dtype=np.uint8)
    ones = np.unpackbits(codes[:, np.newaxis], axis=1).sum(axis=1, dtype=np.uint8)
    signs: npt.NDArray[np.uint8] = codes | (ones & 1) << 7
    return signs
