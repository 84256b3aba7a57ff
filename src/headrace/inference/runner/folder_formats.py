"""The quantized matrices of a folder by `headrace quantize`: their tensors, and the values that these mean."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.core.errors import UnsupportedModel
from headrace.inference.models.quantized.compressed_tensors import (
    INT4_GROUP,
    PACKED_SUFFIX,
    SCALE_SUFFIX,
    SHAPE_SUFFIX,
    ZERO_SUFFIX,
)
from headrace.inference.models.safetensors_writer import STORED
from headrace.inference.models.shapes import Shape
from headrace.inference.models.weights import Encoding, as_float32
from headrace.inference.runner.smoothing import quantize_rows
from headrace.inference.runner.step import Float32

Bytes = npt.NDArray[np.uint8]
Plan = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of tensors by name."""
_LEAST_SHARE: Final = 0.01
"""The least importance of an input, relative to the mean."""
_WORD_CODES: Final = 8
"""Codes of 4 bits in a word."""


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A quantized matrix: the bytes of its tensors in the order of the plan, and the values that they represent."""

    tensors: dict[str, Bytes]
    values: Float32


class MatrixFormat(Protocol):
    """The rounding and the tensors of a matrix (N, K)."""

    def plan(self, name: str, shape: Shape) -> Plan:
        """Return the tensors of a matrix whose weight is named `name` in a plain checkpoint."""
        ...

    def round(self, name: str, values: Float32, importance: Float32 | None) -> RoundedMatrix:
        """Quantize a matrix; `importance` (K,) is the mean square of each of its inputs, None if it is unknown."""
        ...


class Int8Rows:
    """int-quantized: signed bytes with a scale for each row."""

    def plan(self, name: str, shape: Shape) -> Plan:
        return {name: ("I8", shape), name + SCALE_SUFFIX: ("F32", (shape[0], 1))}

    def round(self, name: str, values: Float32, importance: Float32 | None) -> RoundedMatrix:  # noqa: ARG002
        codes, scales = quantize_rows(values)
        tensors = {name: codes.view(np.uint8).reshape(-1), name + SCALE_SUFFIX: scales.view(np.uint8)}
        return RoundedMatrix(tensors, codes * scales[:, None])


class Int4Groups:
    """pack-quantized: 4 bits with a scale and a zero point for every 32 columns, found by weighted least squares."""

    def __init__(self, scales: Encoding, *, threads: int) -> None:
        self._scales = scales
        self._threads = threads

    def plan(self, name: str, shape: Shape) -> Plan:
        num_rows, num_columns = shape
        if num_columns % INT4_GROUP:
            raise UnsupportedModel(
                f"Matrix {name} has {num_columns} columns; expected a multiple of {INT4_GROUP} for 4 bits. "
                "Quantize it with --bits 8."
            )
        num_groups = num_columns // INT4_GROUP
        return {
            name + PACKED_SUFFIX: ("I32", (num_rows, num_columns // _WORD_CODES)),
            name + SCALE_SUFFIX: (STORED[self._scales], (num_rows, num_groups)),
            name + ZERO_SUFFIX: ("I32", (-(-num_rows // _WORD_CODES), num_groups)),
            name + SHAPE_SUFFIX: ("I64", (2,)),
        }

    def round(self, name: str, values: Float32, importance: Float32 | None) -> RoundedMatrix:
        """Quantize so that the squared error of the outputs is small, assuming uncorrelated inputs."""
        # Other texts use inputs that the calibration does not.
        least = 0.0 if importance is None else _LEAST_SHARE * float(importance.mean()) or 1.0
        codes, scales, zeros = _native.quantize_int4(
            np.ascontiguousarray(values),
            None if importance is None else np.maximum(importance, np.float32(least)),
            bf16_scales=self._scales is Encoding.BF16,
            num_threads=self._threads,
        )
        padded = np.pad(zeros, ((0, -len(zeros) % _WORD_CODES), (0, 0)))
        tensors = {
            name + PACKED_SUFFIX: _words(codes),
            name + SCALE_SUFFIX: scales,
            name + ZERO_SUFFIX: _words(padded.T).T,
            name + SHAPE_SUFFIX: np.array(values.shape, "<i8"),
        }
        steps = codes.reshape(*scales.shape, INT4_GROUP) - zeros[..., None].astype(np.float32)
        stored = {key: np.ascontiguousarray(numbers).view(np.uint8).reshape(-1) for key, numbers in tensors.items()}
        decoded = as_float32(scales.view(np.uint8), self._scales)
        return RoundedMatrix(stored, (steps * decoded[..., None]).reshape(values.shape))


def output_error(values: Float32, rounded: Float32, importance: Float32) -> float:
    """Return the squared error of the outputs relative to their squares, assuming uncorrelated inputs."""
    total = float(np.einsum("nk,nk,k->", values, values, importance, optimize=True))
    difference = values - rounded
    return float(np.einsum("nk,nk,k->", difference, difference, importance, optimize=True)) / max(total, 1e-30)


def _words(codes: Bytes) -> npt.NDArray[np.uint32]:
    """Pack codes of 4 bits along the last axis, the first into the lowest bits of a word."""
    return np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4).view("<u4")
