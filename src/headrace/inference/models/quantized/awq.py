"""
AWQ (AutoAWQ, llm-compressor's predecessor): 4 bits in groups of inputs, as laid out for two kernels.

GEMM: `qweight` (inputs, outputs / 8), the eight outputs of a word in the order 0, 2, 4, 6, 1, 3, 5, 7; `qzeros`
(groups, outputs / 8) likewise; `scales` (groups, outputs).
GEMV: `qweight` (outputs, inputs / 8) in their order; `qzeros` (outputs, words), `scales` (outputs, 8 * words), padded.
Source: AutoAWQ `modules/linear/gemm.py`, `gemv.py`, `utils/packing_utils.py`.
"""

from functools import partial
from typing import Final

import numpy as np

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import Affine, Codes, affine_weight, column_groups, unpack
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight
from headrace.inference.models.stored_tensor import StoredTensor

_BITS: Final = 4
_PER_WORD: Final = 8
_UNSHUFFLED: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word that holds each output."""
_GEMM: Final = ("gemm", "exllama", "ipex", "bitblas", "torch")
_GEMV: Final = "gemv"


def check_awq(quantization: Fields) -> None:
    """Refuse layouts and widths other than GEMM and GEMV with 4 bits."""
    version = _version(quantization)
    if version not in (*_GEMM, _GEMV):
        raise UnsupportedModel(
            f"{quantization.source}: the version of AWQ is {version!r:.200}; expected gemm or gemv. "
            "Use a checkpoint in the GEMM layout, the usual one.",
            version=version,
        )
    quantization.refuse("backend", "the layout of an AWQ backend", unless=("autoawq", "auto"))
    for key in ("bits", "w_bit"):
        quantization.refuse(key, "a width of AWQ", unless=(_BITS,))
    quantization.refuse("zero_point", "AWQ without zero points", unless=(True,))


def read_awq(matrix: MatrixFiles) -> StoredWeight:
    num_rows, num_columns = matrix.shape
    quantization = matrix.quantization
    qweight, qzeros, scales = (matrix.required(name) for name in ("qweight", "qzeros", "scales"))
    if _version(quantization) == _GEMV:
        qweight.expect((num_rows, num_columns // _PER_WORD))
        num_words = qzeros.shape[-1] if qzeros.shape else 0
        qzeros.expect((num_rows, num_words))
        scales.expect((num_rows, _PER_WORD * num_words))
        num_groups = -(-num_columns // _group_size(quantization, num_columns))
        if num_groups > _PER_WORD * num_words:
            raise scales.broken(f"expected {num_groups} groups")
        load = partial(_load_gemv, qweight, qzeros, scales, num_groups)
    else:
        num_groups = scales.shape[0] if scales.shape else 0
        scales.expect((num_groups, num_rows))
        qweight.expect((num_columns, num_rows // _PER_WORD))
        qzeros.expect((num_groups, num_rows // _PER_WORD))
        load = partial(_load_gemm, qweight, qzeros, scales)
    groups = column_groups(scales, num_columns, num_groups, _group_size(quantization, num_columns))
    if num_rows % _PER_WORD or num_columns % _PER_WORD:
        raise qweight.broken(f"{num_rows} x {num_columns} weights do not fill its words")
    return affine_weight(_BITS, groups, load, num_groups=num_groups)


def _version(quantization: Fields) -> str:
    default = quantization.text("format", "gemm")
    return quantization.text("version", default).lower()


def _group_size(quantization: Fields, num_columns: int) -> int:
    size = quantization.whole("group_size", quantization.whole("q_group_size", 128, minimum=-1), minimum=-1)
    return size if size > 0 else num_columns


def _load_gemm(qweight: StoredTensor, qzeros: StoredTensor, scales: StoredTensor) -> Affine:
    def outputs_first(tensor: StoredTensor) -> Codes:
        words = np.ascontiguousarray(tensor.words().T)
        codes = np.empty((len(words), _PER_WORD, words.shape[1]), np.uint8)
        for output, nibble in enumerate(_UNSHUFFLED):
            codes[:, output] = words >> _BITS * nibble & 15
        return codes.reshape(-1, words.shape[1])

    return Affine(
        codes=outputs_first(qweight),
        scales=np.ascontiguousarray(scales.floats().T),
        zeros=outputs_first(qzeros).astype(np.float32),
    )


def _load_gemv(qweight: StoredTensor, qzeros: StoredTensor, scales: StoredTensor, num_groups: int) -> Affine:
    return Affine(
        codes=unpack(qweight.words(), _BITS),
        scales=scales.floats()[:, :num_groups],
        zeros=unpack(qzeros.words(), _BITS)[:, :num_groups].astype(np.float32),
    )
