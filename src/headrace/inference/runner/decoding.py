"""Dequantize raw tensors of a checkpoint. Source of the block formats: ggml `ggml-quants.c`, gguf-py `quants.py`."""

import numpy as np
import numpy.typing as npt

from headrace.inference.models.float8 import E2M1
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.step import Float32

BLOCK = 32
"""Numbers that share a scale in the quantized encodings."""


def decode(tensor: RawTensor) -> Float32:
    """Return the values of a tensor as float32, (num_rows, num_columns)."""
    decoded = _DECODERS[tensor.encoding](np.ascontiguousarray(tensor.data))
    return decoded.reshape(tensor.num_rows, tensor.num_columns)


def _decode_f32(data: npt.NDArray[np.uint8]) -> Float32:
    return data.view("<f4")


def _decode_f16(data: npt.NDArray[np.uint8]) -> Float32:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: npt.NDArray[np.uint8]) -> Float32:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _decode_q8_0(data: npt.NDArray[np.uint8]) -> Float32:
    """Decode blocks of a scale (f16) and 32 signed bytes."""
    blocks = data.reshape(-1, 2 + BLOCK)
    return blocks[:, 2:].view(np.int8) * _decode_f16(blocks[:, :2].copy())


def _decode_q4_0(data: npt.NDArray[np.uint8]) -> Float32:
    """Decode blocks of a scale (f16) and 32 nibbles with an offset of 8."""
    blocks = data.reshape(-1, 2 + BLOCK // 2)
    return (_nibbles(blocks[:, 2:]) - 8) * _decode_f16(blocks[:, :2].copy())


def _decode_q4_1(data: npt.NDArray[np.uint8]) -> Float32:
    """Decode blocks of a scale and a minimum (f16 each) and 32 nibbles."""
    blocks = data.reshape(-1, 4 + BLOCK // 2)
    return _nibbles(blocks[:, 4:]) * _decode_f16(blocks[:, :2].copy()) + _decode_f16(blocks[:, 2:4].copy())


def _decode_fp4(data: npt.NDArray[np.uint8]) -> Float32:
    """Decode blocks of a scale (f16) and 32 numbers of e2m1."""
    blocks = data.reshape(-1, 2 + BLOCK // 2)
    return E2M1[_nibbles(blocks[:, 2:]).astype(np.uint8)] * _decode_f16(blocks[:, :2].copy())


def _nibbles(packed: npt.NDArray[np.uint8]) -> Float32:
    """Unpack 16 bytes: the low nibbles are the first 16 values, the high nibbles the rest."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _decode_i8(data: npt.NDArray[np.uint8]) -> Float32:
    """Decode rows of a scale (f32) followed by signed bytes."""
    decoded: Float32 = data[:, 4:].view(np.int8) * data[:, :4].copy().view("<f4")
    return decoded


_DECODERS = {
    Encoding.F32: _decode_f32,
    Encoding.F16: _decode_f16,
    Encoding.BF16: _decode_bf16,
    Encoding.Q8_0: _decode_q8_0,
    Encoding.Q4_0: _decode_q4_0,
    Encoding.Q4_1: _decode_q4_1,
    Encoding.I8: _decode_i8,
    Encoding.FP4: _decode_fp4,
}
