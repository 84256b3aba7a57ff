"""
The interface to the weights of a checkpoint: canonical name in, raw bytes with their encoding out.

Readers (`safetensors_reader`, `gguf_reader`) implement `WeightSource`; runners pack the tensors into their own layout.
An encoding that a runner supports is not decoded: a Q4_1 tensor stays Q4_1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel

_Key = TypeVar("_Key")


class Encoding(StrEnum):
    """The storage format of a tensor. Names with a `q` are blocks along a row, of 32 unless stated, as in GGUF."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    I8 = "i8"
    """Rows of a scale (f32) followed by signed bytes: the int8 of compressed-tensors."""
    FP4 = "fp4"
    """Blocks of a scale (f16) and 32 numbers of e2m1 in the order of Q4_0's nibbles: MXFP4."""
    TERNARY = "ternary"
    """Blocks of 128 codes of 2 bits in the order of TQ2_0, and a scale (f16), which multiplies code - 1."""
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    """Blocks of 256 numbers, as in GGUF."""


STORED_BITS: Final = {
    Encoding.F32: 32,
    **dict.fromkeys((Encoding.F16, Encoding.BF16), 16),
    **dict.fromkeys((Encoding.Q8_0, Encoding.I8), 8),
    **dict.fromkeys((Encoding.Q4_0, Encoding.Q4_1, Encoding.FP4), 4),
    Encoding.Q3_K: 3,
    **dict.fromkeys((Encoding.Q2_K, Encoding.TERNARY), 2),
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A matrix (or a vector: one row) in its encoding."""

    encoding: Encoding
    num_rows: int
    num_columns: int
    data: npt.NDArray[np.uint8]
    """(num_rows, bytes per row), C-contiguous."""


BLOCKS: Final = {
    Encoding.F32: (1, 4),
    Encoding.F16: (1, 2),
    Encoding.BF16: (1, 2),
    Encoding.Q8_0: (32, 34),
    Encoding.Q4_0: (32, 18),
    Encoding.Q4_1: (32, 20),
    Encoding.I8: (1, 1),
    Encoding.FP4: (32, 18),
    Encoding.TERNARY: (128, 34),
    Encoding.Q2_K: (256, 84),
    Encoding.Q3_K: (256, 110),
}
"""Numbers and bytes of a block."""
_I8_SCALE_BYTES: Final = 4


def cut_tensor(tensor: RawTensor, rows: range | None, columns: range | None) -> RawTensor:
    """
    Return some rows and columns of a tensor (None: all of them) in the same encoding.

    Raises `BrokenModel` where a block of numbers that share a scale would be cut in two.
    """
    data = tensor.data if rows is None else tensor.data[rows.start : rows.stop]
    if columns is None:
        return RawTensor(tensor.encoding, len(data), tensor.num_columns, data)
    first, stop = columns.start, columns.stop
    block, block_bytes = BLOCKS[tensor.encoding]
    if first % block or stop % block:
        raise BrokenModel(
            f"Columns {first} to {stop} of a matrix in {tensor.encoding} are needed; expected multiples of {block}."
        )
    start = _I8_SCALE_BYTES if tensor.encoding is Encoding.I8 else 0
    cut = data[:, start + first // block * block_bytes : start + stop // block * block_bytes]
    return RawTensor(tensor.encoding, len(data), stop - first, np.concatenate([data[:, :start], cut], axis=1))


class WeightSource(Protocol):
    """The weights of one checkpoint, by canonical name (see `spec`)."""

    @property
    def fingerprint(self) -> str:
        """Return a key that changes with the content; cheap (sizes, times and headers, not a hash of gigabytes)."""
        ...

    @property
    def dominant_encoding(self) -> Encoding:
        """Return the encoding of most of the weights in layers; it decides the default weight format."""
        ...

    def stored_bits(self, name: str) -> int:
        """Return the bits per number of a tensor in the file, without scales: 4 for Q4_K, 16 for BF16."""
        ...

    def stored_format(self, name: str) -> str:
        """Return the format of a tensor in the file, as its authors name it: `Q4_K`, `BF16`, `GPTQ W4A16`."""
        ...

    def encoding(self, name: str) -> Encoding:
        """Return the encoding that `load` returns for all but rare values of a tensor."""
        ...

    def names(self) -> Iterable[str]: ...

    def load(self, name: str) -> RawTensor:
        """
        Return a tensor. Encodings that runners do not support are returned as F32.

        Raises:
            BrokenModel: the tensor is missing, truncated or of the wrong shape.
        """
        ...

    def load_rows(self, name: str, rows: npt.NDArray[np.int32]) -> RawTensor:
        """Return some rows of a matrix, without reading or converting the others."""
        ...


def as_float32(data: npt.NDArray[np.uint8], encoding: Encoding) -> npt.NDArray[np.float32]:
    if encoding is Encoding.BF16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view("<f2" if encoding is Encoding.F16 else "<f4").astype(np.float32)


def count_numbers(key: Callable[[str], _Key], shapes: Mapping[str, tuple[int, int]]) -> Counter[_Key]:
    """Return how many numbers of the layers are in weights with each key."""
    numbers: Counter[_Key] = Counter()
    for name, (num_rows, num_columns) in shapes.items():
        if name.startswith("layers."):
            numbers[key(name)] += num_rows * num_columns
    return numbers


def dominant(key: Callable[[str], _Key], shapes: Mapping[str, tuple[int, int]]) -> _Key:
    """Return the key that most numbers of the layers have."""
    numbers = count_numbers(key, shapes)
    return max(numbers, key=numbers.__getitem__)


def dominant_bits(weights: WeightSource, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the bits per number that most weights of the layers are stored with."""
    return dominant(weights.stored_bits, shapes)


_LEAST_SHARE: Final = 0.05
"""Share of the weights from which a format is worth naming: norms and biases are floats in every file."""


def stored_formats(weights: WeightSource, shapes: Mapping[str, tuple[int, int]]) -> str:
    """Return the formats that the weights of the layers are stored in, most common first: `Q4_K and Q6_K`."""
    numbers = count_numbers(weights.stored_format, shapes)
    common = [name for name, count in numbers.most_common() if count >= _LEAST_SHARE * numbers.total()]
    return " and ".join(filter(None, (", ".join(common[:-1]), *common[-1:])))
