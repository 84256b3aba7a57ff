"""Activations of the MLP."""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` (T, I) of gate and up side by side (T, 2 I)."""
    gate_up = gate_up.contiguous()
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty((num_tokens, size))
    _silu_mul[(num_tokens, triton.cdiv(size, _BLOCK))](gate_up, output, SIZE=size, BLOCK=_BLOCK)
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
