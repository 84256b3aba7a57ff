"""
HQQ: 4 or 8 bits with a scale and a zero point in floating point for each group of inputs: `(code - zero) * scale`.

`W_q` has the codes of a group in a row. With 4 bits a byte holds one code of the first half of the groups in its high
nibble, and one of the second half in the low. `scale` and `zero` have a number for each group.
Source: hqq 0.2 `core/quantize.py`, `core/bitpack.py`; vLLM `hqq_marlin.py`.
"""

from functools import partial
from typing import Final

import numpy as np

from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import Affine, affine_weight, decode_affine
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding

_BITS: Final = (4, 8)
_INPUTS_AXIS: Final = 1


def check_hqq(quantization: Fields) -> None:
    """Refuse widths, axes and nested scales that are not read; a configuration may be for all modules or for each."""
    config = quantization.sub("quant_config")
    parts = [config] if config.has("weight_quant_params") else [config.sub(name) for name in config.values]
    for part in parts:
        weights = part.sub("weight_quant_params")
        weights.refuse("nbits", "a width of HQQ", unless=_BITS)
        weights.refuse("axis", "groups of outputs (HQQ's axis 0)", unless=(_INPUTS_AXIS,))
        weights.refuse("view_as_float", "codes of HQQ stored as floats", unless=(False,))
        for name in ("scale_quant_params", "zero_quant_params"):
            part.refuse(name, "scales of HQQ that are quantized themselves")


def read_hqq(matrix: MatrixFiles) -> StoredWeight:
    num_rows, num_columns = matrix.shape
    codes, scale, zero = (matrix.required(name) for name in ("W_q", "scale", "zero"))
    size = codes.shape[-1] if codes.shape else 0
    if size < 1 or num_columns % size:
        raise codes.broken(f"its groups do not divide {num_columns} columns")
    num_groups = num_rows * (num_columns // size)
    bits = 8 if codes.shape == (num_groups, size) else 4
    codes.expect((num_groups * bits // 8, size))
    for tensor in (scale, zero):
        tensor.expect((num_groups, 1)).floats()
    if num_groups * bits % 8:
        raise codes.broken(f"{num_groups} groups do not fill its bytes")
    groups = np.arange(num_columns) // size
    load = partial(_load, codes, scale, zero, num_rows, bits)
    if bits == 8:
        return StoredWeight(Encoding.F32, bits, lambda: decode_affine(load(), groups))
    return affine_weight(bits, groups, load, num_groups=num_columns // size)


def _load(codes: StoredTensor, scale: StoredTensor, zero: StoredTensor, num_rows: int, bits: int) -> Affine:
    data = codes.data.reshape(codes.shape)
    unpacked = data if bits == 8 else np.concatenate([data >> 4, data & 15])
    return Affine(
        codes=unpacked.reshape(num_rows, -1),
        scales=scale.floats().reshape(num_rows, -1),
        zeros=zero.floats().reshape(num_rows, -1),
    )
