"""The number types of kernels."""

from types import MappingProxyType
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS: Final = MappingProxyType({torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16})


def compute_dtype(tensor: Tensor) -> tl.dtype:
    """Return the type in which tiles are multiplied: that of the tensor, but float32 in the interpreter."""
    if triton.knobs.runtime.interpret:
        return tl.float32  # the interpreter has no arithmetic in bfloat16
    return FLOATS[tensor.dtype]
