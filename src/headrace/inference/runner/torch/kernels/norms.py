"""Root mean square norms, one program for each row."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDE: Final = 4096
"""Rows of this size and more are shared by more warps."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply the norm over the last axis of (T, size) or (T, heads, size)."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, normed, normed, eps, adds=False)
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `x + residual` (T, size), and its norm."""
    total, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x, residual.contiguous(), weight, total, normed, eps, adds=True)
    return total, normed


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, total: Tensor, normed: Tensor, eps: float, *, adds: bool
) -> None:
    size = x.shape[-1]
    rows = (
        x.unsqueeze(1) if x.dim() == 2 else x
    )  # the heads of a token, whose rows may lie within those of a wider matrix
    rows = rows if rows.stride(2) == 1 else rows.contiguous()
    _rms_norm[(rows.shape[0] * rows.shape[1],)](
        *(rows, residual, weight, total, normed, eps),
        *(rows.stride(0), rows.stride(1)),
        HEADS=rows.shape[1],
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        ADDS=adds,
        num_warps=8 if size >= _WIDE else 4,
    )


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    total,
    normed,
    eps,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    is_inside = lane < SIZE
    start = row // HEADS * token_stride + row % HEADS * head_stride
    numbers = tl.load(x + start + lane, mask=is_inside, other=0.0).to(tl.float32)
    if ADDS:
        numbers += tl.load(residual + row * SIZE + lane, mask=is_inside, other=0.0).to(tl.float32)
        rounded = numbers.to(total.dtype.element_ty)
        tl.store(total + row * SIZE + lane, rounded, mask=is_inside)
        numbers = rounded.to(tl.float32)
    mean = tl.sum(numbers * numbers, 0) / SIZE
    scaled = numbers * (1.0 / tl.sqrt(mean + eps)) * tl.load(weight + lane, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(normed + row * SIZE + lane, scaled.to(normed.dtype.element_ty), mask=is_inside)
