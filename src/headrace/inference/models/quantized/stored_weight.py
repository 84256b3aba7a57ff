"""The result of reading a quantized format: a weight that is converted when a runner loads it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor, TensorFiles
from headrace.inference.models.weights import Encoding, RawTensor

Rows = slice | npt.NDArray[np.intp]
"""Rows of a matrix, or numbers of a vector."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A matrix of a checkpoint whose tensors have been found and checked, but not converted."""

    encoding: Encoding
    """The encoding that `load` returns for all but rare values."""
    bits: int
    """Bits per number in the file, without scales."""
    load: Callable[[], RawTensor]
    loss: str = ""
    """The reason why the weights are rounded a second time; empty if they need not be."""
    format: str = ""
    """The display name of its format; empty if it has none."""
    load_rows: Callable[[Rows], RawTensor] | None = None
    """Converts some rows only, for stacks of experts, which are too large to be converted at once."""


@dataclass(frozen=True, slots=True)
class MatrixFiles:
    """The tensors of one matrix, and what the checkpoint says about its quantization."""

    tensors: TensorFiles
    module: str
    """The stored name without `.weight`."""
    shape: Shape
    quantization: Fields
    """`quantization_config`."""

    def get(self, name: str) -> StoredTensor | None:
        return self.tensors.get(f"{self.module}.{name}")

    def required(self, name: str) -> StoredTensor:
        """Return a tensor, or raise `BrokenModel` if there is none."""
        tensor = self.get(name)
        if tensor is None:
            raise BrokenModel(
                f"The checkpoint has no tensor {self.module}.{name}, which its quantized weights require.",
                tensor=f"{self.module}.{name}",
            )
        return tensor


ReadFormat = Callable[[MatrixFiles], StoredWeight]
"""Find and check the tensors of a matrix; raises `BrokenModel` or `UnsupportedModel`."""


def float_tensor(values: npt.NDArray[np.float32]) -> RawTensor:
    num_rows, num_columns = values.shape
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    return RawTensor(Encoding.F32, num_rows, num_columns, data)


def int8_tensor(scales: npt.NDArray[np.float32], values: npt.NDArray[np.int8]) -> RawTensor:
    """Return a matrix of int8 with one scale for each row (or one for all) as a raw tensor."""
    num_rows, num_columns = values.shape
    column = np.ascontiguousarray(np.broadcast_to(scales.reshape(-1), num_rows), np.float32)
    data = np.concatenate([column.view(np.uint8).reshape(num_rows, 4), values.view(np.uint8)], axis=1)
    return RawTensor(Encoding.I8, num_rows, num_columns, data)
