"""The rotary position embedding of queries and keys, fused with the write to the KV cache."""

import triton
import triton.language as tl
from torch import Tensor

from headrace.inference.runner.torch.batch import StepTensors


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
    """Return the rotated query (T, H, D); see `runner.torch.fused.rotate_and_store`."""
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
