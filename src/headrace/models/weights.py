"""
Weights of a checkpoint as a runner asks for them: canonical name in, raw bytes with their encoding out.

Readers (`safetensors_reader`, `gguf_reader`) implement `WeightSource`; runners pack what they get into
their own layout. Nothing is decoded here that a runner can take as it is: a Q4_1 tensor stays Q4_1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

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
