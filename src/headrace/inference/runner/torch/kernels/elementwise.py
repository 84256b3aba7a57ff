"""Norms, the rotary embedding, the activation of the MLP, and writes to the KV cache: one pass over memory each."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.inference.runner.torch.batch import StepTensors

_WIDE: Final = 4096
"""Rows of norms of this size and more are shared by more warps."""
_SILU_BLOCK: Final = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply the norm over the last axis of (T, size) or (T, heads, size)."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm(x, x, weight, normed, normed, eps, adds=False)
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch_norm(x, residual.contiguous(), weight, total, normed, eps, adds=True)
    return total, normed


def _launch_norm(
    x: Tensor, residual: Tensor, weight: Tensor, total: Tensor, normed: Tensor, eps: float, *, adds: bool
) -> None:
    size = x.shape[-1]
    rows = x.unsqueeze(1) if x.dim() == 2 else x  # of the heads of a token, which may lie within a wider matrix
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


def rotate_and_store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch: StepTensors,
    key_cache: Tensor,
    value_cache: Tensor,
) -> Tensor:
    query, key, value = (part if part.stride(2) == 1 else part.contiguous() for part in (query, key, value))
    num_tokens, num_heads, dim = query.shape
    rotated = query.new_empty(query.shape)
    _rotate[(num_tokens, num_heads + key.shape[1])](
        *(query, key, value, cos, sin, rotated, key_cache, value_cache, batch.positions, batch.slots),
        *(query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1)),
        *(key_cache.stride(1), key_cache.stride(2), value_cache.stride(1), value_cache.stride(2)),
        NUM_HEADS=num_heads,
        DIM=dim,
        VALUE_DIM=value.shape[2],
        BLOCK=triton.next_power_of_2(dim // 2),
        VALUE_BLOCK=triton.next_power_of_2(value.shape[2]),
        num_warps=1,
    )
    return rotated


@triton.jit
def _turn(source, target, cos, sin, lane, is_inside, HALF: tl.constexpr):
    first = tl.load(source + lane, mask=is_inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + lane, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(target + lane, (first * cos - second * sin).to(target.dtype.element_ty), mask=is_inside)
    tl.store(target + HALF + lane, (second * cos + first * sin).to(target.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize_on_alignment=("positions", "slots"))
def _rotate(
    query,
    key,
    value,
    cos_table,
    sin_table,
    rotated,
    key_cache,
    value_cache,
    positions,
    slots,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    key_cache_stride,
    key_cache_head_stride,
    value_cache_stride,
    value_cache_head_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Rotate a head of the query, or a head of the key, which is stored with its value."""
    HALF: tl.constexpr = DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    is_inside = lane < HALF
    position = tl.load(positions + token).to(tl.int64)
    cos = tl.load(cos_table + position * HALF + lane, mask=is_inside, other=0.0)
    sin = tl.load(sin_table + position * HALF + lane, mask=is_inside, other=0.0)
    if head < NUM_HEADS:
        source = query + token * query_stride + head * query_head_stride
        _turn(source, rotated + (token * NUM_HEADS + head) * DIM, cos, sin, lane, is_inside, HALF)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            head -= NUM_HEADS
            source = key + token * key_stride + head * key_head_stride
            target = key_cache + slot * key_cache_stride + head * key_cache_head_stride
            _turn(source, target, cos, sin, lane, is_inside, HALF)
            value_lane = tl.arange(0, VALUE_BLOCK)
            is_value = value_lane < VALUE_DIM
            numbers = tl.load(value + token * value_stride + head * value_head_stride + value_lane, mask=is_value)
            place = value_cache + slot * value_cache_stride + head * value_cache_head_stride + value_lane
            tl.store(place, numbers.to(value_cache.dtype.element_ty), mask=is_value)


def store(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    for new, cache in ((keys, key_cache), (values, value_cache)):
        new = new if new[0].is_contiguous() else new.contiguous()  # noqa: PLW2901 -- the same, but for its layout
        size = new[0].numel()
        _store[(len(new),)](
            *(new, cache, slots, new.stride(0), cache.stride(1)), SIZE=size, BLOCK=triton.next_power_of_2(size)
        )


@triton.jit(do_not_specialize_on_alignment=("slots",))
def _store(new, cache, slots, new_stride, cache_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    lane = tl.arange(0, BLOCK)
    numbers = tl.load(new + token * new_stride + lane, mask=lane < SIZE)
    tl.store(cache + slot * cache_stride + lane, numbers.to(cache.dtype.element_ty), mask=lane < SIZE)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty((num_tokens, size))
    _silu_mul[(num_tokens, triton.cdiv(size, _SILU_BLOCK))](gate_up, output, SIZE=size, BLOCK=_SILU_BLOCK)
    return output


@triton.jit
def _silu_mul(gate_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = lane < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + lane, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + lane, mask=is_inside, other=0.0).to(tl.float32)
    activated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * SIZE + lane, activated.to(output.dtype.element_ty), mask=is_inside)
