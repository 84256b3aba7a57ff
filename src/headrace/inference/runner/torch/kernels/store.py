"""Writing keys and values to the paged KV cache."""

import triton
import triton.language as tl
from torch import Tensor


def store(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write keys and values (T, heads, dim) to their slots; -1 is not written."""
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
