"""
torchao: int8 and e4m3 with a scale for each row, group or block, in the names under which its tensors are flattened.

`module._weight_qdata`, `module._weight_scale` and `module._weight_zero_point` are the tensors of int-quantized and FP8
under other names. Its 4-bit layouts belong to single kernels.
Source: torchao 0.18 `prototype/safetensors/safetensors_utils.py`, `quantize_/workflows/int8/int8_tensor.py`.
"""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.fields import Fields
from headrace.models.quantized.compressed_tensors import read_int8
from headrace.models.quantized.fp8 import read_fp8
from headrace.models.quantized.stored_weight import MatrixFiles, StoredWeight

CODES: Final = "_weight_qdata"
SCALES: Final = "_weight_scale"
_NAMES: Final = {"weight": CODES, "weight_scale": SCALES, "weight_zero_point": "_weight_zero_point"}
"""The names of compressed-tensors, and torchao's for the same tensors."""
_KINDS: Final = (
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
    "Float8WeightOnlyConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8StaticActivationFloat8WeightConfig",
    "FqnToConfig",
    "ModuleFqnToConfig",
)


def check_torchao(quantization: Fields) -> None:
    """Refuse configurations other than int8 and FP8; the tensors of those for single modules are checked one by one."""
    kind = quantization.values.get("quant_type")
    if isinstance(kind, dict):
        kind = quantization.sub("quant_type").sub("default").values.get("_type")
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{quantization.source}: torchao's configuration is {kind!r:.100}; expected one of {', '.join(_KINDS)}.",
            quant_type=str(kind),
        )


def read_torchao_int8(matrix: MatrixFiles) -> StoredWeight:
    """Find and check the tensors of an int8 matrix."""
    return read_int8(_renamed(matrix))


def read_torchao_fp8(matrix: MatrixFiles) -> StoredWeight:
    """Find and check the tensors of an FP8 matrix."""
    return read_fp8(_renamed(matrix))


def _renamed(matrix: MatrixFiles) -> MatrixFiles:
    found = {name: matrix.get(stored) for name, stored in _NAMES.items()}
    tensors = {f"{matrix.module}.{name}": tensor for name, tensor in found.items() if tensor is not None}
    return replace(matrix, tensors=tensors)
