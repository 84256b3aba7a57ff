"""
Matrices of e4m3 with a scale for the matrix, for each row, or for each block of rows and columns.

`weight_scale` and `weight_scale_inv` both multiply, whatever the name says; Mistral's own name is `qscale_weight`.
Source: vLLM `fp8.py`, DeepSeek-V3's README (blocks of 128 x 128), compressed-tensors `float-quantized`.
"""

from functools import partial
from typing import Final

import numpy as np

from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight, float_tensor
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding, RawTensor

_BITS: Final = 8
_SCALES: Final = ("weight_scale", "weight_scale_inv", "qscale_weight")
_DEFAULT_BLOCK: Final = 128
_MATRIX: Final = 2


def check_fp8(quantization: Fields) -> None:
    """Refuse other 8-bit types of `quant_method: fp8`."""
    quantization.refuse("fmt", "the type of FP8", unless=("e4m3",))


def check_modelopt(quantization: Fields) -> None:
    """Refuse what ModelOpt writes beside FP8 and NVFP4."""
    algorithms = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4")
    quantization.refuse("quant_algo", "the algorithm of ModelOpt", unless=algorithms)


def read_fp8(matrix: MatrixFiles) -> StoredWeight:
    weight = matrix.required("weight").expect(matrix.shape)
    name = next((name for name in _SCALES if matrix.get(name) is not None), _SCALES[0])
    scale = matrix.required(name)
    scale.floats()
    block = _block(matrix.quantization, scale, matrix.shape)
    return StoredWeight(Encoding.F32, _BITS, partial(_load, weight, scale, block))


def _block(quantization: Fields, scale: StoredTensor, shape: Shape) -> Shape:
    """Return rows and columns that share a scale."""
    num_rows, num_columns = shape
    if scale.shape in {(), (1,), (1, 1)}:
        return shape
    if scale.shape in {(num_rows,), (num_rows, 1)}:
        return 1, num_columns
    declared = _declared_block(quantization)
    rows, columns = min(declared[0], num_rows), min(declared[1], num_columns)
    expected = (-(-num_rows // rows), -(-num_columns // columns))
    if scale.shape != expected:
        raise scale.broken(f"expected one scale, {num_rows}, or {list(expected)} for blocks of {rows} x {columns}")
    return rows, columns


def _declared_block(quantization: Fields) -> Shape:
    """Return the block of `weight_block_size`, or of the first group of compressed-tensors that has one."""
    groups = quantization.sub("config_groups")
    weights = [groups.sub(name).sub("weights") for name in groups.values]
    candidates = [
        quantization.values.get("weight_block_size"),
        *(part.values.get("block_structure") for part in weights),
    ]
    for value in candidates:
        if isinstance(value, list) and len(value) == _MATRIX and all(type(size) is int and size > 0 for size in value):
            return value[0], value[1]
    return _DEFAULT_BLOCK, _DEFAULT_BLOCK


def _load(weight: StoredTensor, scale: StoredTensor, block: Shape) -> RawTensor:
    values = weight.floats()
    scales = scale.floats()
    if scales.size == 1 or block[0] == 1:
        values *= scales.reshape(-1, 1)
        return float_tensor(values)
    for first, row in zip(range(0, len(values), block[0]), scales, strict=True):
        values[first : first + block[0]] *= np.repeat(row, block[1])[: values.shape[1]]
    return float_tensor(values)
