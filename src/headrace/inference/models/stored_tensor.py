"""A tensor as a file of a Hugging Face folder stores it, with checked access to its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel
from headrace.inference.models.float8 import e4m3_values
from headrace.inference.models.weights import Encoding, as_float32

ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of a number by the names of safetensors."""
PLAIN: Final = {"F32": Encoding.F32, "F16": Encoding.F16, "BF16": Encoding.BF16}
"""The types that runners read without conversion."""
_FLOATS: Final = frozenset({*PLAIN, "F64", "F8_E4M3"})
_INTEGERS: Final = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Name, type, shape and bytes of a tensor in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    """Its bytes, memory-mapped."""

    def floats(self) -> npt.NDArray[np.float32]:
        """Return floating point numbers of any type as float32, in the tensor's shape."""
        if self.dtype not in _FLOATS:
            raise self.broken("expected floating point numbers")
        if self.dtype == "F8_E4M3":
            return e4m3_values(self.data).reshape(self.shape)
        if self.dtype == "F64":
            with np.errstate(over="ignore"):  # numbers that exceed a float32 become infinite, as in other types
                return self.data.view("<f8").astype(np.float32).reshape(self.shape)
        return as_float32(self.data, PLAIN[self.dtype]).reshape(self.shape)

    def integers(self) -> npt.NDArray[np.integer]:
        """Return integers of any type in the tensor's shape."""
        if self.dtype not in _INTEGERS:
            raise self.broken("expected integers")
        return self.data.view(_INTEGERS[self.dtype]).reshape(self.shape)

    def words(self) -> npt.NDArray[np.uint32]:
        """Return the 32-bit words that hold packed numbers."""
        if self.dtype != "I32":
            raise self.broken("expected packed numbers in I32")
        return self.data.view("<u4").reshape(self.shape)

    def as_matrix(self) -> "StoredTensor":
        """Return a stack of matrices as one matrix, and any other tensor as it is."""
        if len(self.shape) <= 2:
            return self
        return replace(self, shape=(prod(self.shape[:-1]), self.shape[-1]))

    def expect(self, *shapes: tuple[int, ...]) -> "StoredTensor":
        """Return the tensor, or raise `BrokenModel` if it has none of these shapes."""
        if self.shape not in shapes:
            raise self.broken(f"expected {' or '.join(str(list(shape)) for shape in shapes)}")
        return self

    def broken(self, problem: str) -> BrokenModel:
        return BrokenModel(
            f"{self.file}: tensor {self.name} is {self.dtype} {list(self.shape)}; {problem}.", tensor=self.name
        )


TensorFiles = Mapping[str, StoredTensor]
"""All tensors of a folder by their names in its files."""


def make_tensor(file: Path, name: str, dtype: str, shape: tuple[int, ...], data: npt.NDArray[np.uint8]) -> StoredTensor:
    """Return a tensor whose bytes have been checked against its type and shape."""
    expected = prod(shape) * ITEM_BYTES.get(dtype, 0)
    if dtype in ITEM_BYTES and data.size != expected:
        raise BrokenModel(
            f"{file}: tensor {name} has {data.size} bytes, which is not its shape {list(shape)}.", tensor=name
        )
    return StoredTensor(file, name, dtype, shape, data)
