"""
GPTQ (AutoGPTQ, GPTQModel): 2, 3, 4 or 8 bits, packed along the inputs.

`qweight` (inputs * bits / 32, outputs), `qzeros` (groups, outputs * bits / 32), `scales` (groups, outputs) and `g_idx`,
the group of each input. The first version of the format stores zero points less 1: GPTQModel subtracts the 1 from whole
words, so that a code of 0 borrows from its neighbour. A symmetric file's zero point is the middle of the codes.
Source: AutoGPTQ `qlinear_cuda.py`, GPTQModel `nn_modules/qlinear/torch.py`, vLLM `gptq.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import (
    WIDTHS,
    Affine,
    Codes,
    affine_weight,
    check_groups,
    column_groups,
    unpack,
)
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight
from headrace.inference.models.stored_tensor import StoredTensor

_ONES: Final = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""A word whose codes are all 1. Codes of 3 bits cross words, so they are counted up one by one."""
_Zeros = Callable[[npt.NDArray[np.uint32]], Codes]


def check_gptq(quantization: Fields) -> None:
    """Refuse the kernels' own layouts, which some tools save."""
    quantization.refuse("checkpoint_format", "a layout of GPTQ", unless=("gptq", "gptq_v2", ""))
    quantization.refuse("is_marlin_format", "the Marlin layout of GPTQ", unless=(False,))


def read_gptq(matrix: MatrixFiles) -> StoredWeight:
    num_rows, num_columns = matrix.shape
    qweight, qzeros, scales = (matrix.required(name) for name in ("qweight", "qzeros", "scales"))
    num_words = qweight.shape[0] if qweight.shape else 0
    bits = next((bits for bits in WIDTHS if 32 * num_words == bits * num_columns), None)
    if bits is None or num_rows * bits % 32:
        raise qweight.broken(f"expected codes of 2, 3, 4 or 8 bits for {num_rows} x {num_columns} weights")
    num_groups = scales.shape[0] if scales.shape else 0
    qweight.expect((num_columns * bits // 32, num_rows))
    scales.expect((num_groups, num_rows))
    qzeros.expect((num_groups, num_rows * bits // 32))
    if (index := matrix.get("g_idx")) is not None:
        groups = check_groups(index, num_columns, num_groups)
    else:
        size = matrix.quantization.whole("group_size", -1, minimum=-1)
        groups = column_groups(scales, num_columns, num_groups, size)
    load = partial(_load, qweight, qzeros, scales, bits, _zeros(matrix.quantization, bits))
    symmetric = matrix.quantization.flag("sym", default=False)
    return affine_weight(bits, groups, load, num_groups=num_groups, symmetric=symmetric)


def _load(qweight: StoredTensor, qzeros: StoredTensor, scales: StoredTensor, bits: int, zeros: _Zeros) -> Affine:
    return Affine(
        codes=unpack(qweight.words().T, bits),
        scales=np.ascontiguousarray(scales.floats().T),
        zeros=np.ascontiguousarray(zeros(qzeros.words()).T, np.float32),
    )


def _zeros(quantization: Fields, bits: int) -> _Zeros:
    """Return the function that reads the zero points of a matrix from its words."""
    if quantization.flag("sym", default=False):
        return lambda words: np.full((len(words), words.shape[1] * 32 // bits), 2 ** (bits - 1), np.uint8)
    if quantization.text("checkpoint_format", "gptq") == "gptq_v2":
        return lambda words: unpack(words, bits)
    if bits in _ONES:
        return lambda words: unpack(words + np.uint32(_ONES[bits]), bits)
    return lambda words: (unpack(words, bits) + np.uint8(1)) & np.uint8(2**bits - 1)
