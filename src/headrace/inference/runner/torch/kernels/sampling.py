"""
Drawing tokens in two passes over the logits, for rows without filters.

The masses have the bits of `runner.sampling.masses`: every operation is rounded, so the kernels must not be compiled
with fused multiply-add (`enable_fp_fusion`).
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 2048


def draw_any(logits: Tensor, inverse_temperatures: Tensor, bits: Tensor) -> Tensor:
    """Return a token (R,) int32 for each row of logits (R, V), at the place that its random bits (R,) int64 choose."""
    num_rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    largest = logits.amax(-1)
    sums = torch.empty((num_rows, num_blocks), dtype=torch.int64, device=logits.device)
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    given = (logits, largest, inverse_temperatures)
    _sum_masses[(num_rows, num_blocks)](
        *given, sums, logits.stride(0), num_blocks, SIZE=vocab_size, BLOCK=_BLOCK, enable_fp_fusion=False
    )
    _pick[(num_rows,)](
        *given,
        *(sums, bits, tokens, logits.stride(0)),
        NUM_BLOCKS=num_blocks,
        BLOCKS=triton.next_power_of_2(num_blocks),
        SIZE=vocab_size,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )
    return tokens


@triton.jit
def _masses(logits, largest, inverse_temperature, token, SIZE: tl.constexpr):
    is_token = token < SIZE
    numbers = tl.load(logits + token, mask=is_token, other=float("-inf"))
    x = tl.maximum((numbers - largest) * inverse_temperature, -60.0)
    power = (x * 1.44269504 + 12582912.0) - 12582912.0  # rounds: a sum near 1.5 * 2 ** 23 has no bits after the point
    r = x - power * 0.693359375
    r = r - power * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    value = p * (r * r) + r + 1.0
    factor = ((power.to(tl.int32) + 167) << 23).to(tl.float32, bitcast=True)  # 2 ** (power + 40)
    scaled = value * factor
    rounded = tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled)  # from 2 ** 23 on it is whole
    return tl.where(is_token, rounded, 0.0).to(tl.int64)


@triton.jit
def _sum_masses(
    logits, largest, inverse_temperatures, sums, stride, num_blocks, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the masses of a block of tokens."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    mass = _masses(logits + row * stride, tl.load(largest + row), tl.load(inverse_temperatures + row), token, SIZE)
    tl.store(sums + row * num_blocks + block, tl.sum(mass, 0))


@triton.jit
def _pick(
    logits,
    largest,
    inverse_temperatures,
    sums,
    bits,
    tokens,
    stride,
    NUM_BLOCKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the block and then the token at the point of a row."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCKS)
    block_mass = tl.load(sums + row * NUM_BLOCKS + index, mask=index < NUM_BLOCKS, other=0)
    cumulative = tl.cumsum(block_mass, 0)
    total = tl.sum(block_mass, 0)
    point = tl.umulhi(tl.load(bits + row).to(tl.uint64), total.to(tl.uint64)).to(tl.int64)
    block = tl.minimum(tl.sum((cumulative <= point).to(tl.int32), 0), NUM_BLOCKS - 1)
    rest = point - tl.sum(tl.where(index < block, block_mass, 0), 0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    mass = _masses(logits + row * stride, tl.load(largest + row), tl.load(inverse_temperatures + row), token, SIZE)
    inside = tl.sum((tl.cumsum(mass, 0) <= rest).to(tl.int32), 0)
    tl.store(tokens + row, tl.minimum(block * BLOCK + inside, SIZE - 1))
