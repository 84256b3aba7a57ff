"""
Small operations around the matrices, one launch each on CUDA.

They compute in float32 and return the type of their input. Letters in shapes: `T` tokens, `H` query heads, `K` KV
heads, `D` size of a head, `I` width of the MLP.
"""

import torch
from torch import Tensor
from torch.nn import functional

from headrace.inference.runner.torch.batch import StepTensors, uses_triton
from headrace.inference.runner.torch.kv_cache import store


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if uses_triton(x):
        from headrace.inference.runner.torch.kernels.elementwise import rms_norm as launch

        return launch(x, weight, eps)
    return _rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if uses_triton(x):
        from headrace.inference.runner.torch.kernels.elementwise import add_rms_norm as launch

        return launch(x, residual, weight, eps)
    total = x + residual
    return total, _rms_norm(total, weight, eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    numbers = x.float()
    scale = torch.rsqrt(numbers.square().mean(-1, keepdim=True) + eps)
    return (numbers * scale * weight.float()).to(x.dtype)


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
    """
    Apply the rotary position embedding, write keys and values to a layer's cache, and return the rotated query.

    The query is (T, H, D), key and value (T, K, D), the caches (blocks, block_tokens, K, D). `cos` and `sin`
    (positions, D / 2) float32 are those of each position; pairs are `i` and `i + D / 2`.
    """
    if uses_triton(query):
        from headrace.inference.runner.torch.kernels.elementwise import rotate_and_store as launch

        return launch(query, key, value, cos, sin, batch, key_cache, value_cache)
    store(rotate(key, cos, sin, batch), value, key_cache, value_cache, batch.slots)
    return rotate(query, cos, sin, batch)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, batch: StepTensors) -> Tensor:
    """Apply the rotary position embedding to heads (T, H, D), as `rotate_and_store` does."""
    cos, sin = cos[batch.positions][:, None], sin[batch.positions][:, None]
    first, second = heads.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(heads.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` (T, I) of gate and up side by side (T, 2 I)."""
    if uses_triton(gate_up):
        from headrace.inference.runner.torch.kernels.elementwise import silu_mul as launch

        return launch(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return (functional.silu(gate.float()) * up.float()).to(gate_up.dtype)
