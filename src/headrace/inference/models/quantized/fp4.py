"""
4-bit floating point numbers (e2m1), two to a byte and the first in the low nibble, with a scale for each block.

MXFP4: blocks of 32 with a power of two. NVFP4: blocks of 16 with an e4m3 scale, which one more number multiplies
(ModelOpt: `weight_scale_2`) or divides (compressed-tensors: `weight_global_scale`).
Source: OCP Microscaling Formats 1.0; gpt-oss's model card; compressed-tensors `nvfp4_quantized.py`; vLLM `modelopt.py`.
"""

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.models.float8 import e2m1_values, e8m0_halves, e8m0_values
from headrace.inference.models.quantized.affine import Floats
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight, float_tensor
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding, RawTensor

MXFP4_BLOCK: Final = 32
_NVFP4_BLOCK: Final = 16
_BITS: Final = 4
_LEAST_DIVISOR: Final = 2.0**-127
"""The smallest divisor whose reciprocal fits into a float32."""
_LOSS: Final = "its blocks of e2m1 are shorter than ours"


def mxfp4_values(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> Floats:
    """Decode MXFP4: `blocks` (..., groups, 16) and their exponents (..., groups) give (..., groups * 32)."""
    values: Floats = e2m1_values(blocks) * e8m0_values(scales)[..., np.newaxis]
    return values.reshape(*scales.shape[:-1], -1)


def mxfp4_tensor(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> RawTensor:
    """Return a matrix in MXFP4, `blocks` (rows, groups, 16) and `scales` (rows, groups), with its codes and scales."""
    halves = e8m0_halves(scales)
    if halves is None:
        return float_tensor(mxfp4_values(blocks, scales))
    num_rows, num_groups = scales.shape
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(num_rows, num_groups, 2, MXFP4_BLOCK // 2)
    heads = np.ascontiguousarray(halves)[..., np.newaxis].view(np.uint8)
    data = np.concatenate([heads, codes[:, :, 0] | codes[:, :, 1] << 4], axis=-1)
    return RawTensor(Encoding.FP4, num_rows, num_groups * MXFP4_BLOCK, data.reshape(num_rows, -1))


def read_fp4(matrix: MatrixFiles) -> StoredWeight:
    """Find and check the tensors of a matrix in MXFP4 or NVFP4, under the names of compressed-tensors or ModelOpt."""
    name = "weight_packed" if matrix.get("weight_packed") is not None else "weight"
    packed = matrix.required(name)
    scale = matrix.required("weight_scale")
    num_rows, num_columns = matrix.shape
    block = MXFP4_BLOCK if scale.dtype in {"U8", "F8_E8M0"} else _NVFP4_BLOCK
    if num_columns % block:
        raise packed.broken(f"{num_columns} columns are not a multiple of {block}")
    packed.expect((num_rows, num_columns // 2))
    scale.expect((num_rows, num_columns // block))
    if block == MXFP4_BLOCK:
        blocks = packed.data.reshape(num_rows, -1, MXFP4_BLOCK // 2)
        scales = scale.data.reshape(num_rows, -1)
        return StoredWeight(Encoding.FP4, _BITS, lambda: mxfp4_tensor(blocks, scales))
    return StoredWeight(Encoding.F32, _BITS, partial(_load_nvfp4, packed, scale, _global_factor(matrix)), _LOSS)


def _global_factor(matrix: MatrixFiles) -> np.float32:
    if (multiplier := matrix.get("weight_scale_2")) is not None:
        return np.float32(multiplier.expect((), (1,)).floats().reshape(-1)[0])
    tensor = matrix.required("weight_global_scale").expect((), (1,))
    divisor = tensor.floats().reshape(-1)[0]
    if not _LEAST_DIVISOR <= divisor < np.inf:
        raise tensor.broken(f"its value is {divisor}, expected a finite number of at least {_LEAST_DIVISOR:g}")
    return np.float32(1 / divisor)


def _load_nvfp4(packed: StoredTensor, scale: StoredTensor, factor: np.float32) -> RawTensor:
    num_rows = packed.shape[0]
    values = e2m1_values(packed.data.reshape(num_rows, -1, _NVFP4_BLOCK // 2))
    values *= (scale.floats() * factor)[..., np.newaxis]
    return float_tensor(values.reshape(num_rows, -1))
