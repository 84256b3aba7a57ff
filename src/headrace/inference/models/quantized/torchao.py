"""
torchao: int8, e4m3 and 4 bits, in the names under which its tensors are flattened.

int8 and e4m3: `module._weight_qdata`, `module._weight_scale` and `module._weight_zero_point` are the tensors of
int-quantized and FP8 under other names.
4 bits: `code * scale + zero` with signed codes and zeros in floating point for each group of inputs.

- plain: `_weight_qdata` (outputs, inputs / 2), the first code of a byte in its low nibble; `_weight_scale` and
  `_weight_zero_point` (groups, outputs).
- tile_packed_to_4d: `_weight_qdata` (outputs / 8, inputs / 128, 32, 4) words as the lanes of a tensor core read
  them, with outputs and inputs padded; `_weight_scale_and_zero` (groups, outputs, 2).

Source: torchao 0.18 `prototype/safetensors/safetensors_utils.py`, `quantize_/workflows/int8/int8_tensor.py` and
`int4/*.py`; FBGEMM `int4_utils.py`; PyTorch `native/cuda/int4mm.cu`.
"""

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import Affine, Codes, Floats, affine_weight
from headrace.inference.models.quantized.compressed_tensors import read_int8
from headrace.inference.models.quantized.fp8 import read_fp8
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor

CODES: Final = "_weight_qdata"
SCALES: Final = "_weight_scale"
PAIRS: Final = "_weight_scale_and_zero"
_ZEROS: Final = "_weight_zero_point"
_NAMES: Final = {"weight": CODES, "weight_scale": SCALES, "weight_zero_point": _ZEROS}
"""The names of compressed-tensors, and torchao's for the same tensors."""
_INPUT_SCALES: Final = "_weight_act_pre_scale"
_KINDS: Final = (
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
    "Int4WeightOnlyConfig",
    "Float8WeightOnlyConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8StaticActivationFloat8WeightConfig",
    "FqnToConfig",
    "ModuleFqnToConfig",
)
_PACKINGS: Final = ("plain", "tile_packed_to_4d")
_BITS: Final = 4
_MIDDLE: Final = 8
"""The code whose value is the zero: signed codes begin at -8."""
_TILE_ROWS: Final = 8
_TILE_COLUMNS: Final = 128


def check_torchao(quantization: Fields) -> None:
    """Refuse other configurations and packings; the tensors of those for single modules are checked one by one."""
    kind = quantization.values.get("quant_type")
    if isinstance(kind, dict):
        default = quantization.sub("quant_type").sub("default")
        kind = default.values.get("_type")
        _check_packing(default.sub("_data"))
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{quantization.source}: torchao's configuration is {kind!r:.100}; expected one of {', '.join(_KINDS)}.",
            quant_type=str(kind),
        )


def _check_packing(data: Fields) -> None:
    packing = data.values.get("int4_packing_format", _PACKINGS[0])
    if isinstance(packing, dict):
        packing = packing.get("_data")
    if str(packing).lower() not in _PACKINGS:
        raise UnsupportedModel(
            f"{data.source}: int4_packing_format is {packing!r:.100}; expected {' or '.join(_PACKINGS)}. "
            "The others are layouts of one kernel.",
            int4_packing_format=str(packing),
        )
    data.refuse("int4_tile_packed_ntile", "the tiles of AMD's GPUs", unless=(_TILE_ROWS,))


def read_torchao_integers(matrix: MatrixFiles) -> StoredWeight:
    """Find and check the tensors of an int8 matrix, or of one in plain 4 bits."""
    _refuse_scaled_inputs(matrix)
    num_rows, num_columns = matrix.shape
    codes = matrix.required(CODES)
    if codes.shape != (num_rows, num_columns // 2):
        return read_int8(_renamed(matrix))
    scales = matrix.required(SCALES)
    num_groups = scales.shape[0] if scales.shape else 0
    scales.expect((num_groups, num_rows)).floats()
    zeros = matrix.required(_ZEROS).expect((num_groups, num_rows))
    zeros.floats()
    if num_groups < 1 or num_columns % num_groups:
        raise scales.broken(f"its groups do not divide {num_columns} columns")
    groups = np.arange(num_columns) // (num_columns // num_groups)

    def load() -> Affine:
        pairs = codes.data.reshape(num_rows, -1)
        unpacked = np.stack([pairs & 15, pairs >> _BITS], axis=-1).reshape(num_rows, -1)
        return _affine(scales, unpacked ^ np.uint8(_MIDDLE), scales.floats().T, zeros.floats().T)

    return affine_weight(_BITS, groups, load, num_groups=num_groups)


def read_torchao_tiles(matrix: MatrixFiles) -> StoredWeight:
    _refuse_scaled_inputs(matrix)
    num_rows, num_columns = matrix.shape
    codes, both = matrix.required(CODES), matrix.required(PAIRS)
    row_tiles, column_tiles = codes.shape[:2] if len(codes.shape) == _BITS else (0, 0)
    codes.expect((row_tiles, column_tiles, 32, 4))
    padded_rows, padded_columns = row_tiles * _TILE_ROWS, column_tiles * _TILE_COLUMNS
    num_groups = both.shape[0] if both.shape else 0
    both.expect((num_groups, padded_rows, 2)).floats()
    if padded_rows < num_rows or padded_columns < num_columns:
        raise codes.broken(f"expected tiles for {num_rows} x {num_columns} weights")
    if num_groups < 1 or padded_columns % num_groups:
        raise both.broken(f"its groups do not divide {padded_columns} columns")
    groups = np.arange(num_columns) // (padded_columns // num_groups)
    load = partial(_load_tiles, codes, both, matrix.shape)
    return affine_weight(_BITS, groups, load, num_groups=num_groups)


def read_torchao_fp8(matrix: MatrixFiles) -> StoredWeight:
    _refuse_scaled_inputs(matrix)
    return read_fp8(_renamed(matrix))


def _load_tiles(codes: StoredTensor, both: StoredTensor, shape: Shape) -> Affine:
    scales, zeros = np.moveaxis(both.floats()[:, : shape[0]].transpose(1, 0, 2), -1, 0)
    return _affine(both, _untiled(codes)[: shape[0], : shape[1]], scales, zeros)


def _untiled(codes: StoredTensor) -> Codes:
    """
    Return the codes (rows, columns) of words in tiles.

    Lane 4 * row + c of a tile of 8 rows holds words of 32 columns. Its nibble a + 4 * b belongs to column 8a + 2c + b.
    """
    row_tiles, column_tiles, _, num_words = codes.shape
    lanes = codes.words().reshape(row_tiles, column_tiles, _TILE_ROWS, 4, num_words).transpose(0, 2, 1, 4, 3)
    columns = np.empty((*lanes.shape[:-1], 4, 4, 2), np.uint8)
    for a in range(4):
        for b in range(2):
            columns[..., a, :, b] = lanes >> np.uint32(_BITS * (a + 4 * b)) & 15
    return columns.reshape(row_tiles * _TILE_ROWS, -1)


def _affine(tensor: StoredTensor, codes: Codes, scales: Floats, zeros: Floats) -> Affine:
    """Return the numbers of `(code - 8) * scale + zero`."""
    if not scales.all():
        raise tensor.broken("a scale is 0")
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = np.float32(_MIDDLE) - zeros / scales
    return Affine(codes=codes, scales=np.ascontiguousarray(scales), zeros=np.ascontiguousarray(shifted))


def _refuse_scaled_inputs(matrix: MatrixFiles) -> None:
    if (scales := matrix.get(_INPUT_SCALES)) is not None:
        raise UnsupportedModel(
            f"{scales.file}: tensor {scales.name} scales the inputs of a matrix (torchao's AWQ or SmoothQuant), which "
            "is not supported. Use a checkpoint without act_pre_scale.",
            tensor=scales.name,
        )


def _renamed(matrix: MatrixFiles) -> MatrixFiles:
    found = {name: matrix.get(stored) for name, stored in _NAMES.items()}
    tensors = {f"{matrix.module}.{name}": tensor for name, tensor in found.items() if tensor is not None}
    return replace(matrix, tensors=tensors)
