"""
Decode tensors of GGUF types that runners do not read, on all cores.

K-quants, and the older types with 5 bits, are integers with a scale, and perhaps a minimum, for 16 or 32 numbers. Codes
of IQ types (an entry for 1, 4 or 8 numbers, with signs) and of MXFP4 are looked up in the codebooks of gguf-py.
gguf-py decodes all of them too, at a third of this speed or less, which matters for gigabytes.

Q4_K becomes Q4_1: both are nibbles with a scale and a minimum for every 32 numbers. The nibbles are unchanged. A scale
(minimum) of Q4_K is the product of the super-block's half and 6 bits; it is rounded once, to the half of Q4_1:
a relative error of at most 2^-11, a 140th of the step between two nibbles.
Source: ggml `ggml-common.h` (`block_q4_K`, `block_iq2_xxs` and others), gguf-py `quants.py`.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.threads import usable_cpus
from headrace.inference.models.float8 import e8m0_halves
from headrace.inference.models.gguf_file import BLOCKS

BLOCK_BYTES: Final = 144
"""Bytes of a block of Q4_K: two halves, 12 bytes of 6-bit scales and minima, 256 nibbles."""
_CHUNK_NUMBERS: Final = 1 << 17
"""Numbers decoded at a time: intermediate results stay in the L2 cache."""
_MAX_THREADS: Final = 16
_GROUP: Final = 32
_GROUPS: Final = 8
_PAIRS: Final = np.array([0, 2, 4, 6], np.uint8)
_BITS: Final = np.arange(8, dtype=np.uint8)
_NIBBLES: Final = np.array([0, 4], np.uint8)
_SIGN_SHIFTS: Final = np.array([0, 7, 14, 21], np.uint32)
_THREES: Final = np.array([0, 3, 6, 9], np.uint16)
_IQ4: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1_TWICE: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_IQ1_STEPS: Final = 8
"""Numbers of IQ1 are -1, 0 or 1, and an eighth more or less."""

Blocks = npt.NDArray[np.uint8]
"""(blocks, bytes of a block)."""
Values = npt.NDArray[np.float32]
"""(blocks, numbers of a block)."""
Numbers = npt.NDArray[np.int8]


def dequantize(rows: npt.NDArray[np.uint8], type_id: int) -> Values:
    """
    Return rows of blocks as float32.

    Raises NotImplementedError or ValueError if neither this module nor the `gguf` package decodes the type.
    """
    num_numbers, num_bytes = BLOCKS[type_id]
    blocks = np.ascontiguousarray(rows).reshape(-1, num_bytes)
    values = np.empty((len(blocks), num_numbers), np.float32)
    decode = _DECODERS.get(type_id) or partial(_decode_by_gguf, type_id)
    step = _CHUNK_NUMBERS // num_numbers

    def decode_chunk(start: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # scales of a damaged file may be infinite
            values[start : start + step] = decode(blocks[start : start + step])

    if len(blocks) <= step:
        decode_chunk(0)
    else:
        with ThreadPoolExecutor(min(len(usable_cpus()), _MAX_THREADS)) as pool:
            for _ in pool.map(decode_chunk, range(0, len(blocks), step)):
                pass
    return values.reshape(len(rows), -1)


def _decode_by_gguf(type_id: int, blocks: Blocks) -> Values:
    from gguf import GGMLQuantizationType, quants

    # As one row: gguf-py takes 16 rows at a time.
    values: Values = quants.dequantize(blocks.reshape(1, -1), GGMLQuantizationType(type_id))
    return values.reshape(len(blocks), -1)


def q4_k_as_q4_1(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK_BYTES)
    halves = _halves(blocks[:, :4])
    scales, minima = _six_bits(blocks[:, 4:16])
    with np.errstate(invalid="ignore", over="ignore"):  # halves of a damaged file may be infinite
        head = np.stack([halves[:, :1] * scales, -halves[:, 1:] * minima], axis=-1).astype("<f2").view(np.uint8)
    nibbles = _nibble_runs(blocks[:, 16:])
    packed = nibbles[..., : _GROUP // 2] | nibbles[..., _GROUP // 2 :] << 4
    return np.concatenate([head.reshape(-1, _GROUPS, 4), packed], axis=-1).reshape(len(rows), -1)


def _decode_q2_k(blocks: Blocks) -> Values:
    """Decode blocks of 16 bytes of scales and minima, 64 bytes of codes, two halves."""
    halves = _halves(blocks[:, 80:])
    codes = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> _PAIRS[:, np.newaxis] & 3
    return _scaled(codes, halves[:, :1] * (blocks[:, :16] & 15), halves[:, 1:] * (blocks[:, :16] >> 4))


def _decode_q3_k(blocks: Blocks) -> Values:
    """Decode blocks of 32 bytes of high bits, 64 bytes of low bits, 12 bytes of scales, a half."""
    low = blocks[:, 32:96].reshape(-1, 2, 1, 32) >> _PAIRS[:, np.newaxis] & 3
    high = (blocks[:, np.newaxis, :32] >> _BITS[:, np.newaxis] & 1).reshape(-1, 2, 4, 32)
    packed = blocks[:, 96:108]
    scales_low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales_high = (packed[:, np.newaxis, 8:] >> _PAIRS[:, np.newaxis] & 3).reshape(-1, 16)
    scales = (scales_low | scales_high << 4).view(np.int8) - np.int8(32)
    return _scaled((low | high << 2).view(np.int8) - np.int8(4), _halves(blocks[:, 108:]) * scales)


def _decode_q5_k(blocks: Blocks) -> Values:
    """Decode blocks of two halves, 12 bytes of scales and minima, 32 bytes of high bits, 128 bytes of low bits."""
    halves = _halves(blocks[:, :4])
    scales, minima = _six_bits(blocks[:, 4:16])
    codes = _nibble_runs(blocks[:, 48:])
    codes |= (blocks[:, np.newaxis, 16:48] >> _BITS[:, np.newaxis] & 1) << 4
    return _scaled(codes, halves[:, :1] * scales, halves[:, 1:] * minima)


def _decode_q6_k(blocks: Blocks) -> Values:
    """Decode blocks of 128 bytes of low bits, 64 bytes of high bits, 16 scales, a half."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2)
    codes |= (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS[:, np.newaxis] & 3) << 4
    return _scaled(codes.view(np.int8) - np.int8(32), _halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8))


def _decode_q5_0(blocks: Blocks) -> Values:
    """Decode blocks of a half, 4 bytes of high bits, 16 bytes of low bits."""
    return _scaled(_five_bits(blocks[:, 2:]).view(np.int8) - np.int8(16), _halves(blocks[:, :2]))


def _decode_q5_1(blocks: Blocks) -> Values:
    """Decode blocks of a scale, a minimum, 4 bytes of high bits, 16 bytes of low bits."""
    halves = _halves(blocks[:, :4])
    return _scaled(_five_bits(blocks[:, 4:]), halves[:, :1], -halves[:, 1:])


def _decode_iq2_xxs(blocks: Blocks) -> Values:
    """Decode blocks of a half, and 8 pairs of words: 4 codes of 8 bits; 4 signs of 7 bits and a scale of 4 bits."""
    words = np.ascontiguousarray(blocks[:, 2:]).view("<u4").reshape(-1, 8, 2)
    codes = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    scales = _halves(blocks[:, :2]) * (0.25 * (0.5 + (words[..., 1] >> 28).astype(np.float32)))
    return _scaled(_entries("IQ2_XXS", codes) * _signs(_seven_bits(words[..., 1])), scales)


def _decode_iq2_xs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes of 9 bits with signs of 7 bits, 8 bytes of scales."""
    codes = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    scales = _halves(blocks[:, :2]) * (0.25 * (0.5 + _unpacked(blocks[:, 66:], _NIBBLES, 15)))
    return _scaled(_entries("IQ2_XS", codes & 511) * _signs(_parity_signs()[codes >> 9]), scales)


def _decode_iq2_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes, 32 bytes of signs, 8 bytes of the codes' high bits, 8 bytes of scales."""
    codes = blocks[:, 2:34] | _unpacked(blocks[:, 66:74], _PAIRS, 3).astype(np.uint16) << 8
    scales = _halves(blocks[:, :2]) * (0.25 * (0.5 + _unpacked(blocks[:, 74:], _NIBBLES, 15)))
    return _scaled(_entries("IQ2_S", codes) * _signs(blocks[:, 34:66]), scales)


def _decode_iq3_xxs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 64 codes, and 8 words of signs and a scale."""
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")
    scales = _halves(blocks[:, :2]) * (0.5 * (0.5 + (words >> 28).astype(np.float32)))
    return _scaled(_entries("IQ3_XXS", blocks[:, 2:66]) * _signs(_seven_bits(words)), scales)


def _decode_iq3_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 64 codes, 8 bytes of their high bits, 32 bytes of signs, 4 bytes of scales."""
    codes = blocks[:, 2:66] | _unpacked(blocks[:, 66:74], _BITS, 1).astype(np.uint16) << 8
    scales = _halves(blocks[:, :2]) * (1 + 2 * _unpacked(blocks[:, 106:], _NIBBLES, 15))
    return _scaled(_entries("IQ3_S", codes) * _signs(blocks[:, 74:106]), scales)


def _decode_iq1_s(blocks: Blocks) -> Values:
    """Decode blocks of a half, 32 codes, and 8 words: the codes' high bits, a scale and the sign of the eighth."""
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    codes = blocks[:, 2:34] | _unpacked(words, _THREES, 7) << 8
    eighths = np.repeat(np.where(words & 0x8000, -1, 1).astype(np.int8), 32, axis=1)
    scales = _halves(blocks[:, :2]) * (1 + 2 * (words >> 12 & 7)).astype(np.float32) / np.float32(_IQ1_STEPS)
    return _scaled(_entries("IQ1_S", codes) * np.int8(_IQ1_STEPS) + eighths, scales)


def _decode_iq1_m(blocks: Blocks) -> Values:
    """Decode blocks of 32 codes, 16 bytes of their high bits and signs, 4 words of scales and of a half's nibbles."""
    words = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
    codes = blocks[:, :32] | _unpacked(blocks[:, 32:48], _NIBBLES, 7).astype(np.uint16) << 8
    negative = _unpacked(blocks[:, 32:48], _NIBBLES, 8)
    eighths = np.repeat(np.where(negative, -1, 1).astype(np.int8), 8, axis=1)
    half = (words >> 12 << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, keepdims=True, dtype=np.uint16)
    steps = (1 + 2 * _unpacked(words, _THREES, 7)).astype(np.float32) / np.float32(_IQ1_STEPS)
    scales = half.view("<f2").astype(np.float32) * steps
    return _scaled(_entries("IQ1_S", codes) * np.int8(_IQ1_STEPS) + eighths, scales)


def _decode_iq4_nl(blocks: Blocks) -> Values:
    """Decode blocks of a half and 16 bytes of codes."""
    return _scaled(_IQ4[np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)], _halves(blocks[:, :2]))


def _decode_iq4_xs(blocks: Blocks) -> Values:
    """Decode blocks of a half, 2 bytes of the scales' high bits, 4 bytes of their low bits, 128 bytes of codes."""
    words = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = (_unpacked(blocks[:, 4:8], _NIBBLES, 15) | high << 4).view(np.int8) - np.int8(32)
    packed = blocks[:, 8:].reshape(-1, 8, 1, 16)
    return _scaled(_IQ4[np.concatenate([packed & 15, packed >> 4], axis=2)], _halves(blocks[:, :2]) * scales)


def _decode_mxfp4(blocks: Blocks) -> Values:
    """Decode blocks of an exponent and 16 bytes of codes."""
    numbers = _E2M1_TWICE[np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)]
    return _scaled(numbers, np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127))


def mxfp4_as_fp4(blocks: Blocks) -> Blocks | None:
    """Return MXFP4 as blocks with a half as their scale, or None if halves do not hold the exponents."""
    halves = e8m0_halves(blocks[:, :1])
    return None if halves is None else np.concatenate([halves.view(np.uint8), blocks[:, 1:]], axis=1)


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
    runs = packed.reshape(-1, _GROUPS // 2, 1, _GROUP)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, _GROUPS, _GROUP)


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


def _unpacked(
    packed: npt.NDArray[np.unsignedinteger], shifts: npt.NDArray[np.unsignedinteger], mask: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return several fields of every number, one after the other."""
    fields: npt.NDArray[np.unsignedinteger] = packed[..., np.newaxis] >> shifts & packed.dtype.type(mask)
    return fields.reshape(len(packed), -1)


def _entries(name: str, codes: npt.NDArray[np.integer]) -> Numbers:
    return np.take(_codebook(name), codes).view(np.int8).reshape(len(codes), -1)


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


_DECODERS: Final[Mapping[int, Callable[[Blocks], Values]]] = MappingProxyType(
    {
        6: _decode_q5_0,
        7: _decode_q5_1,
        10: _decode_q2_k,
        11: _decode_q3_k,
        13: _decode_q5_k,
        14: _decode_q6_k,
        16: _decode_iq2_xxs,
        17: _decode_iq2_xs,
        18: _decode_iq3_xxs,
        19: _decode_iq1_s,
        20: _decode_iq4_nl,
        21: _decode_iq3_s,
        22: _decode_iq2_s,
        23: _decode_iq4_xs,
        29: _decode_iq1_m,
        39: _decode_mxfp4,
    }
)
