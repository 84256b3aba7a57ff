"""
Weights of matrices in the formats that a runner computes with, and the product with each of them.

Letters in shapes: `T` tokens, `N` outputs, `K` inputs, `B` blocks of inputs that share a scale, `G` groups of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.errors import BrokenModel
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.torch.batch import uses_triton

FP8: Final = torch.float8_e4m3fn
FP8_MAX: Final = 448.0
INT8_MAX: Final = 127.0
INT4_BLOCK: Final = 32
"""Inputs that share a scale in int4."""
_INT4_MAX: Final = 15
_INT4_ZERO: Final = 8
_Q4_SCALE_BYTES: Final = 2
_I8_SCALE_BYTES: Final = 4
_FP8_MULTIPLE: Final = 16
_ROW_SCALES_CAPABILITY: Final = (9, 0)
_SMALLEST_SCALE: Final = 1e-12
"""Scale of a row of zeros, which must not divide by 0."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A matrix in float8 (e4m3) or int8 with a scale for each output. Inputs are rounded likewise."""

    values: Tensor
    """(N, K)"""
    scales: Tensor
    """(N,) float32."""

    @property
    def is_int8(self) -> bool:
        """False: float8."""
        return self.values.dtype == torch.int8

    @property
    def largest(self) -> float:
        return INT8_MAX if self.is_int8 else FP8_MAX


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """
    A matrix in 4 bits: `number * scale + minimum`, both shared by blocks of 32 inputs. Inputs are not rounded.

    The packing is that of GGUF's Q4_1: byte i of a block holds input i in its lower and input i + 16 in its upper half.
    """

    values: Tensor
    """(N, K / 2) uint8."""
    scales: Tensor
    """(N, B) float16."""
    minima: Tensor | None
    """(N, B) float16; None: -8 times the scales, as in Q4_0."""


Weight = Tensor | ScaledWeight | Int4Weight
"""A matrix (N, K); a plain tensor is one in floating point."""


def linear(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    is_invariant: bool = False,
) -> Tensor:
    """
    Return `x @ weight.T + bias`, (T, N), with `x` (T, K) and `bias` (N,).

    `dtype` is the type of the result if the weights are in floating point, by default that of `x`. `is_invariant`: on
    CUDA, compute a row with the same bits whatever T is: with tiles of one size, by our kernels instead of a library
    that chooses an algorithm by T.
    """
    dtype = dtype or x.dtype
    if isinstance(weight, Tensor) and not (is_invariant and uses_triton(x)):
        return _library_product(x, weight, bias, dtype)
    if not uses_triton(x):
        product = _plain_product(x, weight)
    elif isinstance(weight, ScaledWeight) and not is_invariant and _has_scaled_mm(x, weight):
        from headrace.inference.runner.torch.kernels.matmul import round_rows as round_by_kernel

        values, scales = round_by_kernel(x, FP8, FP8_MAX, _SMALLEST_SCALE)
        factors = (scales[:, None], weight.scales[None])
        product = torch._scaled_mm(values, weight.values.T, *factors, out_dtype=x.dtype)  # noqa: SLF001 -- no public name
    else:
        product = _launch(x, weight, dtype, is_invariant=is_invariant)
    return product if bias is None else product + bias


def grouped_linear(x: Tensor, weight: Weight, starts: Tensor, *, is_invariant: bool = False) -> Tensor:
    """
    Multiply each group of the rows of `x` (T, K) by a matrix of its own; return (T, N) in the type of `x`.

    The matrices are on top of each other, (G * N, K), the rows of a group next to each other; `starts` (G + 1,) int32
    has the first row of each group, and T. On CUDA the host does not wait for the sizes of the groups.
    """
    if uses_triton(x):
        return _launch(x, weight, x.dtype, is_invariant=is_invariant, starts=starts)
    num_rows = len(weight) if isinstance(weight, Tensor) else len(weight.values)
    num_outputs = num_rows // (len(starts) - 1)
    parts = [
        linear(x[start:stop], _rows_of(weight, slice(group * num_outputs, (group + 1) * num_outputs)))
        for group, (start, stop) in enumerate(pairwise(starts.tolist()))
        if stop > start
    ]
    return torch.cat(parts)


def on_top(parts: Sequence[Weight]) -> Weight:
    """Return matrices of one format and with the same inputs as one, on top of each other."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    packed = [part for part in parts if not isinstance(part, Tensor)]
    values, scales = torch.cat([part.values for part in packed]), torch.cat([part.scales for part in packed])
    if not isinstance(first, Int4Weight):
        return replace(first, values=values, scales=scales)
    given = [part.minima if isinstance(part, Int4Weight) else None for part in packed]
    if all(minima is None for minima in given):
        return Int4Weight(values, scales, None)
    minima = [
        part.scales * -_INT4_ZERO if minima is None else minima for part, minima in zip(packed, given, strict=True)
    ]
    return Int4Weight(values, scales, torch.cat(minima))


def _rows_of(weight: Weight, rows: slice) -> Weight:
    if isinstance(weight, Tensor):
        return weight[rows]
    part = replace(weight, values=weight.values[rows], scales=weight.scales[rows])
    if isinstance(part, Int4Weight) and part.minima is not None:
        return replace(part, minima=part.minima[rows])
    return part


def dequantize(weight: Weight, dtype: torch.dtype) -> Tensor:
    match weight:
        case Tensor():
            return weight.to(dtype)
        case Int4Weight():
            blocks = weight.values.view(len(weight.values), -1, INT4_BLOCK // 2)
            numbers = torch.cat([blocks & 15, blocks >> 4], -1).float()  # (N, B, 32)
            scales = weight.scales.float()
            minima = scales * -_INT4_ZERO if weight.minima is None else weight.minima.float()
            return (numbers * scales[..., None] + minima[..., None]).flatten(1).to(dtype)
        case _:
            return (weight.values.float() * weight.scales[:, None]).to(dtype)


def quantize_fp8(matrix: Tensor) -> ScaledWeight:
    return ScaledWeight(*round_rows(matrix, FP8, FP8_MAX))


def quantize_int8(matrix: Tensor) -> ScaledWeight:
    return ScaledWeight(*round_rows(matrix, torch.int8, INT8_MAX))


def quantize_int4(matrix: Tensor) -> Int4Weight:
    """Round a matrix (N, K) to 4 bits; raises `BrokenModel` if K is no multiple of 32."""
    if matrix.shape[1] % INT4_BLOCK:
        raise BrokenModel(f"A matrix has {matrix.shape[1]} inputs; int4 needs a multiple of {INT4_BLOCK}.")
    blocks = matrix.float().reshape(len(matrix), -1, INT4_BLOCK)
    minima = blocks.amin(-1).half()
    scales = ((blocks.amax(-1) - minima.float()) / _INT4_MAX).clamp_min(_SMALLEST_SCALE).half()
    divisors = torch.where(scales == 0, torch.inf, scales.float())
    numbers = torch.round((blocks - minima.float()[..., None]) / divisors[..., None])
    low, high = numbers.clamp(0, _INT4_MAX).to(torch.uint8).chunk(2, -1)
    return Int4Weight((low | (high << 4)).flatten(1), scales, minima)


def round_rows(matrix: Tensor, dtype: torch.dtype, largest: float) -> tuple[Tensor, Tensor]:
    """Return the rows of a matrix in a small type, and the scale (rows,) of each: its largest number / `largest`."""
    numbers = matrix.float()
    scales = (numbers.abs().amax(-1) / largest).clamp_min(_SMALLEST_SCALE)
    scaled = numbers / scales[:, None]
    if not dtype.is_floating_point:
        scaled = torch.round(scaled)
    return scaled.clamp(-largest, largest).to(dtype), scales


def pack_int4(raw: RawTensor) -> Int4Weight:
    """Return a checkpoint's Q4_0 or Q4_1 matrix, not rounded again; raises `BrokenModel` for another encoding."""
    if raw.encoding not in {Encoding.Q4_0, Encoding.Q4_1}:
        raise BrokenModel(f"A matrix is stored as {raw.encoding}; expected q4_0 or q4_1.")
    num_factors = 2 if raw.encoding is Encoding.Q4_1 else 1
    blocks = raw.data.reshape(raw.num_rows, -1, num_factors * _Q4_SCALE_BYTES + INT4_BLOCK // 2)
    factors = np.ascontiguousarray(blocks[..., : num_factors * _Q4_SCALE_BYTES]).view("<f2")
    values = np.ascontiguousarray(blocks[..., num_factors * _Q4_SCALE_BYTES :]).reshape(raw.num_rows, -1)
    minima = torch.from_numpy(factors[..., 1].copy()) if num_factors > 1 else None
    return Int4Weight(torch.from_numpy(values), torch.from_numpy(factors[..., 0].copy()), minima)


def pack_int8(raw: RawTensor) -> ScaledWeight:
    """Return a checkpoint's int8 matrix, not rounded again; raises `BrokenModel` for another encoding."""
    if raw.encoding is not Encoding.I8:
        raise BrokenModel(f"A matrix is stored as {raw.encoding}; expected i8.")
    scales = np.ascontiguousarray(raw.data[:, :_I8_SCALE_BYTES]).view("<f4")[:, 0]
    values = np.ascontiguousarray(raw.data[:, _I8_SCALE_BYTES:]).view(np.int8)
    return ScaledWeight(torch.from_numpy(values), torch.from_numpy(scales.copy()))


def _library_product(x: Tensor, matrix: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if dtype == x.dtype:
        return functional.linear(x, matrix, bias)
    if x.is_cuda:
        product = torch.mm(x, matrix.T, out_dtype=dtype)
        return product if bias is None else product + bias
    return functional.linear(x.to(dtype), matrix.to(dtype), bias)  # a CPU adds up in the type of its inputs


def _plain_product(x: Tensor, weight: Weight) -> Tensor:
    if not isinstance(weight, ScaledWeight):
        return functional.linear(x, dequantize(weight, x.dtype))
    values, scales = round_rows(x, weight.values.dtype, weight.largest)
    if weight.is_int8:
        sums = torch._int_mm(values, weight.values.T).float()  # noqa: SLF001 -- torch has no other exact product
    else:
        sums = torch.matmul(values.float(), weight.values.float().T)
    return (sums * scales[:, None] * weight.scales).to(x.dtype)


def _launch(
    x: Tensor, weight: Weight, dtype: torch.dtype, *, is_invariant: bool, starts: Tensor | None = None
) -> Tensor:
    """Return the product by our kernels, with one matrix or, with `starts`, with that of each group of rows."""
    from headrace.inference.runner.torch.kernels import matmul as kernels

    how = kernels.Launch(dtype=dtype, is_invariant=is_invariant, starts=starts)
    match weight:
        case Tensor():
            return kernels.product(x, weight, how)
        case Int4Weight():
            return kernels.int4_product(x, weight.values, weight.scales, weight.minima, how)
        case _:
            values, scales = kernels.round_rows(x, weight.values.dtype, weight.largest, _SMALLEST_SCALE)
            return kernels.scaled_product(values, scales, weight.values, weight.scales, how)


def _has_scaled_mm(x: Tensor, weight: ScaledWeight) -> bool:
    """Return whether cuBLAS multiplies these shapes of float8 with a scale for each row."""
    if weight.is_int8 or any(size % _FP8_MULTIPLE for size in weight.values.shape):
        return False
    return x.dtype == torch.bfloat16 and x.is_cuda and _capability(x.device) >= _ROW_SCALES_CAPABILITY


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
