"""
The formats of compressed-tensors, which llm-compressor writes for vLLM: int8, packed integers and FP8.

int-quantized ("W8A8"): `weight` (int8), `weight_scale` for each row or group of columns, and perhaps
`weight_zero_point`. pack-quantized ("W4A16", "W8A16"): `weight_packed` (rows, columns * bits / 32), codes with half
their range added; zero points are packed along the rows. Headrace writes both itself.
Source: compressed-tensors 0.20, `quantization/quant_config.py`, `quant_args.py`, `compressors/`.
"""

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import (
    Affine,
    Floats,
    Groups,
    affine_weight,
    check_groups,
    column_groups,
    unpack,
)
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight, float_tensor, int8_tensor
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding

METHOD: Final = "compressed-tensors"
SCALE_SUFFIX: Final = "_scale"
"""Suffix that turns the name of a matrix into the name of its scales."""
PACKED_SUFFIX: Final = "_packed"
ZERO_SUFFIX: Final = "_zero_point"
SHAPE_SUFFIX: Final = "_shape"
INT4_GROUP: Final = 32
"""Columns that share a scale in the 4-bit folders of `headrace quantize`."""
_INT8: Final = "int-quantized"
_PACKED: Final = "pack-quantized"
_FORMATS: Final = (
    _INT8,
    "naive-quantized",
    _PACKED,
    "float-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
_PACKED_BITS: Final = (2, 4, 8)
_WORD_BITS: Final = 32


def w8a8_config(ignore: list[str]) -> dict[str, object]:
    """Return a `quantization_config`: int8 weights per row, dynamic activations per token; `ignore` stays float."""
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return _config(_INT8, group, ignore)


def w4a16_config(ignore: list[str]) -> dict[str, object]:
    """Return a `quantization_config`: 4 bits with zero points for every 32 columns; `ignore` stays float."""
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": INT4_GROUP,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return _config(_PACKED, group, ignore)


def _config(layout: str, group: object, ignore: list[str]) -> dict[str, object]:
    return {
        "quant_method": METHOD,
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def check_compressed_tensors(quantization: Fields) -> None:
    """
    Refuse formats that are not read.

    The quantization of inputs is not checked: runners keep them in bf16 or use finer groups than any format.
    """
    quantization.refuse("format", f"the format of {METHOD}", unless=_FORMATS)
    quantization.sub("sparsity_config").refuse("format", "a sparse format", unless=("dense",))
    quantization.sub("transform_config").refuse("config_groups", "a rotation of weights or activations", unless=({},))
    groups = quantization.sub("config_groups")
    for name in groups.values:
        group = groups.sub(name)
        group.refuse("format", f"the format of {METHOD}", unless=_FORMATS)
        group.sub("weights").refuse("num_bits", f"quantization of {METHOD}", unless=_PACKED_BITS)


def read_int8(matrix: MatrixFiles) -> StoredWeight:
    """Find and check the tensors of a matrix in int-quantized; with one scale for each row it stays as it is."""
    weight = matrix.required("weight").expect(matrix.shape)
    scale, zero = matrix.required("weight_scale"), matrix.get("weight_zero_point")
    scales = _by_group(scale, scale.floats(), matrix.shape)
    zeros = _zeros(zero, scales, matrix.shape)
    if scales.shape[1] == 1 and not zeros.any():
        values = weight.data.reshape(matrix.shape).view(np.int8)
        return StoredWeight(Encoding.I8, 8, lambda: int8_tensor(scales, values))
    groups = _groups(matrix, scale, scales.shape[1])
    by_column = zeros if zeros.shape[1] == 1 else zeros[:, groups]
    return StoredWeight(Encoding.F32, 8, lambda: float_tensor((weight.integers() - by_column) * scales[:, groups]))


def read_packed(matrix: MatrixFiles) -> StoredWeight:
    num_rows, num_columns = matrix.shape
    packed, scale = matrix.required("weight_packed"), matrix.required("weight_scale")
    num_words = packed.shape[-1] if packed.shape else 0
    packed.expect((num_rows, num_words))
    bits = next((bits for bits in _PACKED_BITS if num_words == -(-num_columns * bits // _WORD_BITS)), None)
    if bits is None:
        raise packed.broken(f"expected codes of 2, 4 or 8 bits for {num_rows} x {num_columns} weights")
    if (stored := matrix.get("weight_shape")) is not None and stored.integers().tolist() != list(matrix.shape):
        raise stored.broken(f"expected the numbers {list(matrix.shape)}, not {stored.integers().tolist()!r:.80}")
    scales = _by_group(scale, scale.floats(), matrix.shape)
    groups = _groups(matrix, scale, scales.shape[1])
    zero = matrix.get("weight_zero_point")
    if zero is not None and zero.dtype == "I32":
        zero.expect((-(-num_rows * bits // _WORD_BITS), scales.shape[1]))
    else:
        _zeros(zero, scales, matrix.shape)
    load = partial(_load_packed, packed, scales, zero, bits, matrix.shape)
    return affine_weight(bits, groups, load, num_groups=scales.shape[1], symmetric=zero is None)


def _by_group(tensor: StoredTensor, values: npt.NDArray[np.generic], shape: Shape) -> Floats:
    """Return the scales or zero points of each row (or one row for all) and group of columns."""
    num_rows, num_columns = shape
    if tensor.shape in {(), (1,), (num_rows,)}:
        return values.reshape(-1, 1).astype(np.float32)
    if len(tensor.shape) != 2 or tensor.shape[0] not in (1, num_rows) or not 0 < tensor.shape[1] <= num_columns:
        raise tensor.broken(f"expected one number for each of {num_rows} rows, or for groups of each")
    return values.astype(np.float32)


def _zeros(zero: StoredTensor | None, scales: Floats, shape: Shape) -> Floats:
    """Return the zero points of a symmetric format, or those stored in the shape of the scales."""
    if zero is None:
        return np.zeros((1, 1), np.float32)
    zeros = _by_group(zero, zero.integers(), shape)
    if zeros.shape[1] != scales.shape[1]:
        raise zero.broken(f"expected as many groups as scales ({scales.shape[1]})")
    return zeros


def _groups(matrix: MatrixFiles, scale: StoredTensor, num_groups: int) -> Groups:
    num_rows, num_columns = matrix.shape
    index = matrix.get("weight_g_idx")
    # An index of -1 says that the columns are in order.
    if index is not None and not (index.expect((num_columns,)).integers() == -1).any():
        return check_groups(index, num_columns, num_groups)
    problem = f"expected one number for each of {num_rows} rows, or groups that divide {num_columns} columns"
    return column_groups(scale, num_columns, num_groups, _group_size(matrix, num_groups), problem)


def _group_size(matrix: MatrixFiles, num_groups: int) -> int:
    """Return the group size for `num_groups`: that of the config, or the only one that divides the columns."""
    groups = matrix.quantization.sub("config_groups")
    for name in groups.values:
        weights = groups.sub(name).sub("weights")
        size = weights.whole("group_size", -1, minimum=-1)
        if size > 0 and -(-matrix.shape[1] // size) == num_groups:
            return size
    return matrix.shape[1] if matrix.shape[1] % num_groups else matrix.shape[1] // num_groups


def _load_packed(packed: StoredTensor, scales: Floats, zero: StoredTensor | None, bits: int, shape: Shape) -> Affine:
    num_rows, num_columns = shape
    half = 2 ** (bits - 1)
    if zero is None:
        zeros = np.full(scales.shape, half, np.float32)
    elif zero.dtype == "I32":
        zeros = np.ascontiguousarray(unpack(zero.words().T, bits)[:, :num_rows].T, np.float32)
    else:
        zeros = _by_group(zero, zero.integers(), shape) + half
    return Affine(
        codes=unpack(packed.words(), bits)[:, :num_columns],
        scales=np.broadcast_to(scales, (num_rows, scales.shape[1])),
        zeros=np.broadcast_to(zeros, (num_rows, scales.shape[1])),
    )
