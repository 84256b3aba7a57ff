"""
Weights of a GGUF file by canonical name.

Formats that runners support are returned unchanged, Q4_K as Q4_1; others are dequantized to F32.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.families.family import GGUF_TENSORS, Family, GgufHeader
from headrace.models.families.registry import from_gguf
from headrace.models.fields import Fields
from headrace.models.gguf_file import GgufFile, GgufTensor
from headrace.models.gguf_kquants import q4_k_as_q4_1
from headrace.models.shapes import Shape, expected_shapes
from headrace.models.spec import ModelSpec
from headrace.models.weights import STORED_BITS, Encoding, RawTensor

RAW_TYPES: Final = {
    0: Encoding.F32,
    1: Encoding.F16,
    2: Encoding.Q4_0,
    3: Encoding.Q4_1,
    8: Encoding.Q8_0,
    30: Encoding.BF16,
}
_F32: Final = 0
_Q4_K: Final = 12
_BITS: Final = {
    6: 5, 7: 5, 9: 8, 10: 2, 11: 3, 12: 4, 13: 5, 14: 6, 15: 8, 16: 2, 17: 2, 18: 3, 19: 1, 20: 4, 21: 3, 22: 2, 23: 4,
    29: 1, 34: 1, 35: 2, 39: 4,
}  # fmt: skip
"""Bits per number of the quantized types that are not in `RAW_TYPES`; all other types count as floats."""
_ROTARY_PARTS: Final = frozenset({"q", "k", "q_bias", "k_bias"})


def read_gguf_spec(file: GgufFile) -> tuple[Family, ModelSpec]:
    """Return the family and the spec of a GGUF file."""
    source = str(file.path)
    architecture = Fields(file.metadata, source).text("general.architecture")
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    header = GgufHeader(
        fields=Fields(values, f"{source}, {architecture}"),
        tensor_shapes={name: (tensor.num_rows, tensor.num_columns) for name, tensor in file.tensors.items()},
        rope_divisors=_rope_divisors(file),
    )
    return from_gguf(architecture, header)


class GgufWeights:
    """A `WeightSource` over a GGUF file."""

    def __init__(self, file: GgufFile, family: Family, spec: ModelSpec) -> None:
        self._file = file
        self._spec = spec
        self._interleaved = family.interleaved_gguf_rope
        self._shapes = expected_shapes(spec)
        self._tensors = {name: self._find(name, shape) for name, shape in self._shapes.items()}

    @property
    def fingerprint(self) -> str:
        """Hash the size, the modification time and the header of the file."""
        return self._file.fingerprint

    @property
    def dominant_encoding(self) -> Encoding:
        """Return the encoding of most of the weights in layers, after conversion."""
        weights: dict[Encoding, int] = {}
        for name, tensor in self._tensors.items():
            if name.startswith("layers."):
                encoding = _handed_out(tensor.type_id)
                weights[encoding] = weights.get(encoding, 0) + tensor.num_rows * tensor.num_columns
        return max(weights, key=weights.__getitem__)

    def stored_bits(self, name: str) -> int:
        """Return the bits of the tensor's type."""
        type_id = self._tensors[name].type_id
        return STORED_BITS[RAW_TYPES[type_id]] if type_id in RAW_TYPES else _BITS.get(type_id, 32)

    def names(self) -> Iterable[str]:
        """Return the names that the spec requires; the constructor has checked that they exist."""
        return self._tensors.keys()

    def load(self, name: str) -> RawTensor:
        """Return a tensor; q and k have their rotary halves in NeoX order."""
        if name not in self._tensors:
            raise BrokenModel(f"{self._file.path} has no weight {name}.", name=name)
        tensor = self._tensors[name]
        encoding = _handed_out(tensor.type_id)
        data = self._file.rows(tensor)
        if tensor.type_id == _Q4_K:
            data = q4_k_as_q4_1(data)
        elif tensor.type_id not in RAW_TYPES:
            data = _dequantized(self._file, tensor)
        part = name.rpartition(".")[2]
        if self._interleaved and part in _ROTARY_PARTS:
            data = self._neox_order(data, part)
        return RawTensor(encoding, tensor.num_rows, tensor.num_columns, data)

    def _find(self, name: str, shape: Shape) -> GgufTensor:
        stored = gguf_name(name)
        tensor = self._file.tensors.get(stored)
        if tensor is None:
            raise BrokenModel(f"{self._file.path} has no tensor {stored}, which this network requires.", tensor=stored)
        if (tensor.num_rows, tensor.num_columns) != shape:
            raise BrokenModel(
                f"{self._file.path}: tensor {stored} is {tensor.num_rows} x {tensor.num_columns}; "
                f"expected {shape[0]} x {shape[1]}.",
                tensor=stored,
            )
        return tensor

    def _neox_order(self, data: npt.NDArray[np.uint8], part: str) -> npt.NDArray[np.uint8]:
        """Permute rows, which are whole blocks and need no decoding; a bias is one row of F32 or F16."""
        num_heads = self._spec.num_heads if part.startswith("q") else self._spec.num_kv_heads
        half = self._spec.head_dim // 2
        pairs = data.reshape(num_heads, half, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(data.shape)


def _handed_out(type_id: int) -> Encoding:
    return Encoding.Q4_1 if type_id == _Q4_K else RAW_TYPES.get(type_id, Encoding.F32)


def gguf_name(name: str) -> str:
    """Return the name that GGUF files use for a canonical name."""
    prefix, _, part = name.rpartition(".")
    return f"{prefix.replace('layers.', 'blk.')}.{GGUF_TENSORS[part]}" if prefix else GGUF_TENSORS[part]


def _rope_divisors(file: GgufFile) -> tuple[float, ...] | None:
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.type_id != _F32:
        raise UnsupportedModel(f"{file.path}: rope_freqs.weight is not stored as F32.")
    return tuple(file.rows(tensor).view("<f4").ravel().tolist())


def _dequantized(file: GgufFile, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
    from gguf import GGMLQuantizationType, quants

    try:
        values = quants.dequantize(file.rows(tensor), GGMLQuantizationType(tensor.type_id))
    except (NotImplementedError, ValueError) as exc:
        raise UnsupportedModel(
            f"{file.path}: tensor {tensor.name} has type {tensor.type_id}, which is not supported. "
            "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, K-quants, F16, BF16 and F32 are.",
            tensor=tensor.name,
        ) from exc
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint8).reshape(tensor.num_rows, -1)
