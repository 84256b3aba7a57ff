"""
Matrices of small integers with a scale and a zero point for each group of columns: `(code - zero) * scale`.

AWQ, GPTQ and the packed format of compressed-tensors differ only in the order of their bits; all become this form.
Up to 4 bits it maps on Q4_1 (`code * d + m` for 32 columns) without a second rounding: the codes are kept, `d` is the
scale, and `m = -zero * scale` is rounded to a half, an error of at most 2^-11 of itself. Symmetric codes of 4 bits have
the zero point 8, and map on Q4_0 exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.models.quantized.stored_weight import StoredWeight, float_tensor, int8_tensor
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding, RawTensor

BLOCK: Final = 32
_SCALE_ERROR: Final = 2.0**-11
"""Largest error of a scale as a half, relative to the largest scale of the matrix."""
_INT8_OFFSET: Final = 128
WIDTHS: Final = (2, 3, 4, 8)
"""Bits of a code."""

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Affine:
    """The numbers of a matrix: `codes` (rows, columns), `scales` and `zeros` (rows, groups)."""

    codes: Codes
    scales: Floats
    zeros: Floats


def affine_weight(
    bits: int, groups: Groups, load: Callable[[], Affine], *, num_groups: int, symmetric: bool = False
) -> StoredWeight:
    """
    Return a matrix whose columns belong to `groups`; `load` reads its numbers, with zero points of 8 if `symmetric`.

    Columns whose groups change inside a block of 32 cannot share its scale; they are decoded.
    """
    # Q4_0 and Q4_1 have a scale for every 32 columns: these must be of one group.
    blocks = None if len(groups) % BLOCK else groups.reshape(-1, BLOCK)[:, 0]
    if blocks is not None and not (np.repeat(blocks, BLOCK) == groups).all():
        blocks = None
    is_int8 = bits == 8 and num_groups == 1
    if bits == 8 and not is_int8:
        return StoredWeight(Encoding.F32, bits, lambda: decode_affine(load(), groups))
    if is_int8:
        return StoredWeight(Encoding.I8, bits, lambda: _int8(load(), groups))
    if blocks is None:
        loss = "groups of columns do not begin at multiples of 32 (act-order or a small group)"
        return StoredWeight(Encoding.F32, bits, lambda: decode_affine(load(), groups), loss)
    encoding = Encoding.Q4_0 if symmetric and bits == 4 else Encoding.Q4_1
    return StoredWeight(encoding, bits, lambda: _blocks(encoding, load(), blocks, groups))


def column_groups(
    scales: StoredTensor, num_columns: int, num_groups: int, group_size: int, problem: str = ""
) -> Groups:
    """Return the group of each column; raises `BrokenModel` if groups of that size do not make `num_groups`."""
    size = num_columns if group_size <= 0 else min(group_size, num_columns)
    if num_groups == 0 or -(-num_columns // size) != num_groups:
        if num_groups == 0 or num_columns % num_groups:
            raise scales.broken(problem or f"its groups do not divide {num_columns} columns")
        size = num_columns // num_groups
    return np.arange(num_columns) // size


def check_groups(index: StoredTensor, num_columns: int, num_groups: int) -> Groups:
    """Return the group of each column as the file lists them (`g_idx`)."""
    groups = index.expect((num_columns,)).integers().astype(np.int64)
    if groups.min() < 0 or groups.max() >= num_groups:
        raise index.broken(f"expected groups from 0 to {num_groups - 1}")
    return groups


def decode_affine(affine: Affine, groups: Groups) -> RawTensor:
    with np.errstate(over="ignore", invalid="ignore"):  # damaged scales may overflow
        return float_tensor((affine.codes - affine.zeros[:, groups]) * affine.scales[:, groups])


def unpack(words: npt.NDArray[np.uint32], bits: int) -> Codes:
    """Return the codes of 32-bit words along the last axis, from the lowest bits up; 3 bits cross words."""
    data = np.ascontiguousarray(words, "<u4").view(np.uint8)
    if bits == 8:
        return data
    if bits == 4:
        codes = np.empty((*data.shape[:-1], 2 * data.shape[-1]), np.uint8)
        codes[..., 0::2], codes[..., 1::2] = data & 15, data >> 4
        return codes
    single = np.unpackbits(data, axis=-1, bitorder="little").reshape(*data.shape[:-1], -1, bits)
    joined: Codes = (single << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    return joined


def _blocks(encoding: Encoding, affine: Affine, blocks: Groups, groups: Groups) -> RawTensor:
    with np.errstate(over="ignore", invalid="ignore"):  # damaged scales may not be finite
        scales = affine.scales.astype("<f2")
        minima = (-affine.scales * affine.zeros).astype("<f2")
        error = np.abs(affine.scales - scales.astype(np.float32)).max()
    # Halves must represent all scales, except those that are tiny compared with the largest.
    fits = np.isfinite(affine.scales).all() and error <= _SCALE_ERROR * np.abs(affine.scales).max()
    if not fits or not np.isfinite(minima).all():
        return decode_affine(affine, groups)
    num_rows, num_columns = affine.codes.shape
    halves = affine.codes.reshape(num_rows, -1, 2, BLOCK // 2)
    parts = [scales] if encoding is Encoding.Q4_0 else [scales, minima]
    heads = np.ascontiguousarray(np.stack(parts, axis=-1)[:, blocks]).view(np.uint8)
    rows = np.concatenate([heads, halves[:, :, 0] | halves[:, :, 1] << 4], axis=-1)
    return RawTensor(encoding, num_rows, num_columns, rows.reshape(num_rows, -1))


def _int8(affine: Affine, groups: Groups) -> RawTensor:
    if not (affine.zeros == _INT8_OFFSET).all():
        return decode_affine(affine, groups)
    return int8_tensor(affine.scales, (affine.codes ^ _INT8_OFFSET).view(np.int8))
