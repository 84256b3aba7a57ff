"""
Weights of a checkpoint as a runner asks for them: canonical name in, raw bytes with their encoding out.

Readers (`safetensors_reader`, `gguf_reader`) implement `WeightSource`; runners pack what they get into
their own layout. Nothing is decoded here that a runner can take as it is: a Q4_1 tensor stays Q4_1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt


class Encoding(StrEnum):
    """How the numbers of a tensor are stored. Those with a `q` hold blocks of 32 along a row, as GGUF does."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    I8 = "i8"
    """A row is its scale (f32), then a signed byte for each number: the int8 of compressed-tensors."""


STORED_BITS: Final = {
    Encoding.F32: 32,
    Encoding.F16: 16,
    Encoding.BF16: 16,
    Encoding.Q8_0: 8,
    Encoding.Q4_0: 4,
    Encoding.Q4_1: 4,
    Encoding.I8: 8,
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A matrix (or vector: one row) in one encoding."""

    encoding: Encoding
    num_rows: int
    num_columns: int
    data: npt.NDArray[np.uint8]
    """(num_rows, bytes per row), C-contiguous."""


class WeightSource(Protocol):
    """The weights of one checkpoint, by canonical name (see `spec`)."""

    @property
    def fingerprint(self) -> str:
        """Changes when the content does; cheap (sizes, times and headers, not a hash of gigabytes)."""
        ...

    @property
    def dominant_encoding(self) -> Encoding:
        """The encoding that most of the layers' weights have; picks the default weight format."""
        ...

    def stored_bits(self, name: str) -> int:
        """Bits that the file spends on each number of a tensor, scales left out: 4 for Q4_K, 16 for BF16."""
        ...

    def names(self) -> Iterable[str]:
        """Canonical names that are there."""
        ...

    def load(self, name: str) -> RawTensor:
        """
        One tensor. Encodings that a runner does not know are handed out as F32.

        Raises:
            BrokenModel: the tensor is missing, truncated or of the wrong shape.
        """
        ...


def dominant_bits(weights: WeightSource, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the bits in which most numbers of the layers are stored."""
    numbers: Counter[int] = Counter()
    for name, (num_rows, num_columns) in shapes.items():
        if name.startswith("layers."):
            numbers[weights.stored_bits(name)] += num_rows * num_columns
    return max(numbers, key=numbers.__getitem__)
