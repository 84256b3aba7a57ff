"""Dequantize raw tensors of a checkpoint. Source of the block formats: ggml `ggml-quants.c`, gguf-py `quants.py`."""

import numpy as np
import numpy.typing as npt

from headrace.inference.models.float8 import E2M1
from headrace.inference.models.gguf_dequantize import dequantize
from headrace.inference.models.ternary import ternary_values
from headrace.inference.models.weights import BLOCKS, Encoding, RawTensor, as_float32, cut_tensor

Float32 = npt.NDArray[np.float32]

SOFTPLUS_PARTS = ("xielu_positive", "xielu_negative")
"""Parts of layers that are the softplus of what checkpoints store."""
BLOCK = 32
"""Numbers that share a scale in the quantized encodings."""
_GGUF_TYPES = {Encoding.Q2_K: 10, Encoding.Q3_K: 11}


def softplus(values: Float32) -> Float32:
    """Return `log(1 + e^x)`."""
    return np.logaddexp(np.float32(0), values).astype(np.float32)


def decode(tensor: RawTensor) -> Float32:
    """Return the values of a tensor as float32, (num_rows, num_columns)."""
    return _decoded(np.ascontiguousarray(tensor.data), tensor.encoding).reshape(tensor.num_rows, tensor.num_columns)


def cut_numbers(tensor: RawTensor, rows: range | None, columns: range | None) -> RawTensor:
    """
    Return some rows and columns of a tensor (None: all of them), in float32 if blocks of 128 or more would be cut.

    Raises `BrokenModel` where smaller blocks would be cut.
    """
    size = BLOCKS[tensor.encoding][0]
    if columns is None or size <= BLOCK or not (columns.start % size or columns.stop % size):
        return cut_tensor(tensor, rows, columns)
    values = decode(cut_tensor(tensor, rows, None))[:, columns.start : columns.stop]
    data = np.ascontiguousarray(values).view(np.uint8)
    return RawTensor(Encoding.F32, len(values), len(columns), data)


def _decoded(data: npt.NDArray[np.uint8], encoding: Encoding) -> Float32:
    if encoding is Encoding.F32:
        return data.view("<f4")  # without a copy
    if encoding in {Encoding.F16, Encoding.BF16}:
        return as_float32(data, encoding)
    if encoding is Encoding.I8:  # rows of a scale (f32) followed by signed bytes
        values: Float32 = data[:, 4:].view(np.int8) * data[:, :4].copy().view("<f4")
        return values
    if encoding in _GGUF_TYPES:
        return dequantize(data, _GGUF_TYPES[encoding])
    if encoding is Encoding.TERNARY:
        return ternary_values(data)
    return _decoded_blocks(data, encoding)


def _decoded_blocks(data: npt.NDArray[np.uint8], encoding: Encoding) -> Float32:
    # Blocks of a scale (f16), with Q4_1 also a minimum, and the codes of 32 numbers.
    head = 4 if encoding is Encoding.Q4_1 else 2
    blocks = data.reshape(-1, head + (BLOCK if encoding is Encoding.Q8_0 else BLOCK // 2))
    halves, codes = blocks[:, :head].copy().view("<f2").astype(np.float32), blocks[:, head:]
    if encoding is Encoding.Q8_0:
        return codes.view(np.int8) * halves
    # The low nibbles of 16 bytes are the first 16 numbers, the high nibbles the rest.
    nibbles = np.concatenate([codes & 15, codes >> 4], axis=1)
    numbers: Float32 = E2M1[nibbles] if encoding is Encoding.FP4 else nibbles.astype(np.float32)
    if encoding is Encoding.Q4_0:
        numbers -= 8
    return numbers * halves[:, :1] + halves[:, 1:] if encoding is Encoding.Q4_1 else numbers * halves
