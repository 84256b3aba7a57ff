"""
Products of inputs (T, K) with matrices (N, K) in the formats of `runner.torch.matmul`.

An output is summed over K in steps of one size, in order, whatever T is. Tiles of other shapes may still differ in the
last bits of a sum, so batch invariance takes `TILES_FOR_ALL` for every T; sums of int8 are exact in any case.

With `starts` there are G matrices on top of each other, (G * N, K), and each multiplies its own rows of the inputs:
those from `starts[g]` to `starts[g + 1]`. The host need not know how many these are.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.inference.runner.torch.kernels.tiles import (
    FLOATS,
    compute_dtype,
    find_owner,
    first_row_of_tile,
    num_tiles,
)


class Tiles(NamedTuple):
    """The sizes of a program's tiles, its warps and the depth of its pipeline."""

    tokens: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


TILES_FOR_FEW: Final = Tiles(16, 32, 128, 4, 4)
"""Few tokens wait for the weights: many programs, each with several loads in flight."""
TILES_FOR_MANY: Final = Tiles(128, 128, 64, 8, 3)
TILES_FOR_ALL: Final = Tiles(64, 64, 64, 4, 4)
_FEW: Final = 16


class Launch(NamedTuple):
    """The properties of a product besides its operands."""

    dtype: torch.dtype
    """Type of the result."""
    is_invariant: bool
    """A row has the same bits whatever T is."""
    starts: Tensor | None
    """(G + 1,) int32, or None for one matrix."""


def product(x: Tensor, matrix: Tensor, how: Launch) -> Tensor:
    return _launch(x, matrix, (x, x, x), "float", how)


def scaled_product(x: Tensor, x_scales: Tensor, matrix: Tensor, scales: Tensor, how: Launch) -> Tensor:
    """Return `x @ matrix.T` of numbers in int8 or float8, times the scales (T,) of tokens and (N,) of outputs."""
    is_int8 = matrix.dtype == torch.int8
    how = how._replace(is_invariant=how.is_invariant and not is_int8)
    return _launch(x, matrix, (x_scales, scales, scales), "int8" if is_int8 else "float8", how)


def int4_product(x: Tensor, values: Tensor, scales: Tensor, minima: Tensor | None, how: Launch) -> Tensor:
    """Return `x @ matrix.T` of a matrix in 4 bits; see `Int4Weight`."""
    factors = (x, scales, scales if minima is None else minima)
    return _launch(x, values, factors, "int4_symmetric" if minima is None else "int4", how)


def round_rows(x: Tensor, dtype: torch.dtype, largest: float, smallest_scale: float) -> tuple[Tensor, Tensor]:
    """Return the rows (T, K) in a small type, and the scale (T,) of each."""
    x = x.contiguous()
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
    size = x.shape[1]
    _round_rows[(len(x),)](
        *(x, values, scales, largest, smallest_scale),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        IS_INTEGER=not dtype.is_floating_point,
        num_warps=8,
    )
    return values, scales


def _launch(x: Tensor, matrix: Tensor, factors: tuple[Tensor, Tensor, Tensor], kind: str, how: Launch) -> Tensor:
    x = x if x.stride(1) == 1 else x.contiguous()
    num_tokens, num_inputs = x.shape
    num_groups = 1 if how.starts is None else len(how.starts) - 1
    num_outputs = len(matrix) // num_groups
    tiles = TILES_FOR_FEW if num_tokens <= _FEW * num_groups else TILES_FOR_MANY
    if how.is_invariant:
        tiles = TILES_FOR_ALL
    token_tiles = triton.cdiv(num_tokens, tiles.tokens)
    if how.starts is not None:
        token_tiles = num_tiles(num_tokens, num_groups, tiles.tokens)
    output = torch.empty((num_tokens, num_outputs), dtype=how.dtype, device=x.device)
    _product[(token_tiles * triton.cdiv(num_outputs, tiles.outputs),)](
        *(x, matrix, *factors, output, x if how.starts is None else how.starts),
        *(num_tokens, token_tiles, x.stride(0), matrix.stride(0)),
        NUM_GROUPS=0 if how.starts is None else num_groups,
        NUM_INPUTS=num_inputs,
        NUM_OUTPUTS=num_outputs,
        TOKENS=tiles.tokens,
        OUTPUTS=tiles.outputs,
        INPUTS=tiles.inputs,
        KIND=kind,
        COMPUTE=compute_dtype(x if x.dtype in FLOATS else output),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return output


@triton.jit
def _add_numbers(
    total,
    x_rows,
    matrix_rows,
    is_token,
    is_column,
    start,
    NUM_INPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    KIND: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Add the products of the inputs from `start` on with a matrix of one number for each weight."""
    index = start + tl.arange(0, INPUTS)
    is_index = index < NUM_INPUTS
    is_input = is_token[:, None] & is_index[None, :]
    is_weight = is_index[:, None] & is_column[None, :]
    if KIND == "int8":
        inputs = tl.load(x_rows + index[None, :], mask=is_input, other=0)
        weights = tl.load(matrix_rows + index[:, None], mask=is_weight, other=0)
        total = tl.dot(inputs, weights, total, out_dtype=tl.int32)
    else:
        inputs = tl.load(x_rows + index[None, :], mask=is_input, other=0.0).to(COMPUTE)
        weights = tl.load(matrix_rows + index[:, None], mask=is_weight, other=0.0).to(COMPUTE)
        total = tl.dot(inputs, weights, total, input_precision="ieee")
    return total


@triton.jit
def _add_int4(
    total,
    x_rows,
    matrix_rows,
    scale_rows,
    minimum_rows,
    is_token,
    is_column,
    start,
    NUM_INPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Add the products of the inputs from `start` on with a matrix of two numbers in a byte."""
    byte = start // 2 + tl.arange(0, INPUTS // 2)
    block = byte // 16
    lower = block * 32 + byte % 16  # the input in the lower half of the byte; the upper has that 16 further on
    is_byte = byte < NUM_INPUTS // 2
    is_number = is_byte[:, None] & is_column[None, :]
    numbers = tl.load(matrix_rows + byte[:, None], mask=is_number, other=0)
    scale = tl.load(scale_rows + block[:, None], mask=is_number, other=0.0).to(tl.float32)
    if IS_SYMMETRIC:
        minimum = scale * -8.0
    else:
        minimum = tl.load(minimum_rows + block[:, None], mask=is_number, other=0.0).to(tl.float32)
    is_input = is_token[:, None] & is_byte[None, :]
    first = tl.load(x_rows + lower[None, :], mask=is_input, other=0.0).to(COMPUTE)
    second = tl.load(x_rows + lower[None, :] + 16, mask=is_input, other=0.0).to(COMPUTE)
    low = ((numbers & 15).to(tl.float32) * scale + minimum).to(COMPUTE)
    high = ((numbers >> 4).to(tl.float32) * scale + minimum).to(COMPUTE)
    total = tl.dot(first, low, total, input_precision="ieee")
    return tl.dot(second, high, total, input_precision="ieee")


@triton.jit(do_not_specialize=("num_tokens", "num_token_tiles"))
def _product(
    x,
    matrix,
    token_factors,
    output_factors,
    minima,
    output,
    starts,
    num_tokens,
    num_token_tiles,
    x_stride,
    matrix_stride,
    NUM_GROUPS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    KIND: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Compute a tile (TOKENS, OUTPUTS); programs of the same outputs are neighbours, for the L2 cache."""
    tile = tl.program_id(0) % num_token_tiles
    group = 0
    first_token = tile * TOKENS
    stop = num_tokens
    if NUM_GROUPS > 0:
        group = find_owner(starts, tile, NUM_GROUPS, TOKENS)
        start = tl.load(starts + group)
        first_token = start + first_row_of_tile(start, tile, group, TOKENS)
        stop = tl.load(starts + group + 1)
        if first_token >= stop:
            return
    token = (first_token + tl.arange(0, TOKENS)).to(tl.int64)
    column = (tl.program_id(0) // num_token_tiles * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    is_token = token < stop
    is_column = column < NUM_OUTPUTS
    weight_row = group * NUM_OUTPUTS + column
    x_rows = x + token[:, None] * x_stride
    matrix_rows = matrix + weight_row[None, :] * matrix_stride
    if KIND == "int8":
        total = tl.zeros([TOKENS, OUTPUTS], tl.int32)
    else:
        total = tl.zeros([TOKENS, OUTPUTS], tl.float32)
    for first_input in range(0, NUM_INPUTS, INPUTS):
        if KIND == "int4" or KIND == "int4_symmetric":
            blocks = weight_row[None, :] * (NUM_INPUTS // 32)
            total = _add_int4(
                *(total, x_rows, matrix_rows, output_factors + blocks, minima + blocks, is_token, is_column),
                *(first_input, NUM_INPUTS, INPUTS, KIND == "int4_symmetric", COMPUTE),
            )
        else:
            total = _add_numbers(
                *(total, x_rows, matrix_rows, is_token, is_column, first_input, NUM_INPUTS, INPUTS, KIND, COMPUTE)
            )
    result = total.to(tl.float32)
    if KIND == "int8" or KIND == "float8":
        token_factor = tl.load(token_factors + token, mask=is_token, other=0.0)
        column_factor = tl.load(output_factors + weight_row, mask=is_column, other=0.0)
        result = result * token_factor[:, None] * column_factor[None, :]
    places = output + token[:, None] * NUM_OUTPUTS + column[None, :]
    tl.store(places, result.to(output.dtype.element_ty), mask=is_token[:, None] & is_column[None, :])


@triton.jit
def _round_rows(
    x,
    values,
    scales,
    largest,
    smallest_scale,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_INTEGER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    numbers = tl.load(x + row * SIZE + lane, mask=lane < SIZE, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(numbers), 0), largest), smallest_scale)
    scaled = tl.div_rn(numbers, scale)
    if IS_INTEGER:
        scaled = (scaled + 12582912.0) - 12582912.0  # rounds: a sum near 1.5 * 2 ** 23 has no bits after the point
    scaled = tl.minimum(tl.maximum(scaled, -largest), largest)
    tl.store(values + row * SIZE + lane, scaled.to(values.dtype.element_ty), mask=lane < SIZE)
    tl.store(scales + row, scale)
