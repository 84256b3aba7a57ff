"""
BitNet of transformers: ternary weights as codes of 2 bits with one scale for a matrix.

A byte has the codes of four rows, a quarter of the matrix apart: byte (i, j) those of rows i, n/4 + i, 2n/4 + i and
3n/4 + i. Class `bitlinear` divides the product by `weight_scale`, `autobitlinear` multiplies by it.
Source: transformers `integrations/bitnet.py`.
"""

from functools import partial
from typing import Final

import numpy as np

from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import Affine, affine_weight
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.ternary import BLOCK, pack_ternary
from headrace.inference.models.weights import Encoding, RawTensor

_BITS: Final = 2
_CODES_OF_BYTE: Final = 4
_AUTO: Final = "autobitlinear"
_SCALE_ERROR: Final = 2.0**-11
"""Largest error of a normal half, relative to the number."""


def check_bitnet(quantization: Fields) -> None:
    """Refuse linear layers that hold a norm, and weights that are quantized when they are used."""
    quantization.refuse("use_rms_norm", "a norm inside BitNet's linear layers", unless=(False,))
    quantization.refuse("quantization_mode", "a mode of BitNet", unless=("offline",))
    quantization.refuse("linear_class", "a linear class of BitNet", unless=("bitlinear", _AUTO))


def read_bitnet(matrix: MatrixFiles) -> StoredWeight:
    num_rows, num_columns = matrix.shape
    codes, scale = matrix.required("weight"), matrix.required("weight_scale").expect((1,), ())
    if num_rows % _CODES_OF_BYTE:
        raise codes.broken(f"{num_rows} rows are not a multiple of {_CODES_OF_BYTE}")
    codes.expect((num_rows // _CODES_OF_BYTE, num_columns))
    scale.floats()
    is_factor = matrix.quantization.text("linear_class", "bitlinear") == _AUTO
    load = partial(_load, codes, scale, is_factor=is_factor)
    if num_columns % BLOCK:
        return affine_weight(_BITS, np.zeros(num_columns, np.int64), load, num_groups=1)
    return StoredWeight(Encoding.TERNARY, _BITS, lambda: _ternary(load(), scale))


def _load(codes: StoredTensor, scale: StoredTensor, *, is_factor: bool) -> Affine:
    packed, stored = codes.data.reshape(codes.shape), scale.floats().reshape(())
    values = np.concatenate([packed >> 2 * place & 3 for place in range(_CODES_OF_BYTE)])
    with np.errstate(divide="ignore"):  # a damaged scale may be 0
        scales = np.full((len(values), 1), stored if is_factor else 1 / stored, np.float32)
    return Affine(values, scales, np.ones_like(scales))


def _ternary(affine: Affine, scale: StoredTensor) -> RawTensor:
    """Return the codes with their scale as a half."""
    exact = affine.scales[:1]
    with np.errstate(over="ignore"):
        half = exact.astype(np.float16)
    if not np.isfinite(half).all() or (np.abs(half - exact) > _SCALE_ERROR * np.abs(exact)).any():
        raise scale.broken(f"a weight would be {exact[0, 0]:.3g}, which a half does not hold")
    num_rows, num_columns = affine.codes.shape
    return RawTensor(Encoding.TERNARY, num_rows, num_columns, pack_ternary(affine.codes, half).reshape(num_rows, -1))
