"""
Read a whole checkpoint from a GGUF file, or from the parts of one: spec, weights by canonical name, and text.

Formats of weights that runners support are returned unchanged, Q4_K as Q4_1, ternary types with a scale for each 128,
MXFP4 with halves as scales; others are dequantized to F32.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.generation import PoolingMethod
from headrace.inference.models.decoding import SOFTPLUS_PARTS, softplus
from headrace.inference.models.families.family import QKV_INDEX, Family, GgufHeader
from headrace.inference.models.families.registry import from_gguf
from headrace.inference.models.families.rope_config import ROPE_TENSORS
from headrace.inference.models.fields import Fields
from headrace.inference.models.generation_config import gguf_card_name, read_sampling
from headrace.inference.models.gguf_dequantize import dequantize, mxfp4_as_fp4, q4_k_as_q4_1
from headrace.inference.models.gguf_file import GgufFile, GgufTensor, open_all_parts
from headrace.inference.models.gguf_tokenizer import read_gguf_tokenizer
from headrace.inference.models.model import Checkpoint, CheckpointText, GenerationDefaults
from headrace.inference.models.places import Place, gguf_places
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.ternary import GGUF_TYPES as TERNARY_TYPES
from headrace.inference.models.ternary import ternary_rows
from headrace.inference.models.weights import STORED_BITS, Encoding, RawTensor, dominant

RAW_TYPES: Final = {
    0: Encoding.F32,
    1: Encoding.F16,
    2: Encoding.Q4_0,
    3: Encoding.Q4_1,
    8: Encoding.Q8_0,
    10: Encoding.Q2_K,
    11: Encoding.Q3_K,
    30: Encoding.BF16,
}
_F32: Final = 0
_Q4_K: Final = 12
_MXFP4: Final = 39
_MXFP4_BYTES: Final = 17
"""Bytes of a block of 32 numbers."""
_NVFP4: Final = 40
_BITS: Final = {
    6: 5, 7: 5, 9: 8, 12: 4, 13: 5, 14: 6, 15: 8, 16: 2, 17: 2, 18: 3, 19: 1, 20: 4, 21: 3, 22: 2, 23: 4,
    29: 1, 34: 1, 35: 2, 39: 4, 40: 4, 41: 1,
}  # fmt: skip
"""Bits per number of the quantized types that are not in `RAW_TYPES`; all other types count as floats."""
_NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Source: ggml.h, ggml_type."""
_LAYER_KEY: Final = re.compile(r"blk\.(\d{1,5})\.(xielu\.\w+)")
"""Names of numbers that the metadata hold for all layers."""
_TEMPLATE: Final = "tokenizer.chat_template"
_SAMPLING: Final = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Keys below `general.sampling`."""
_POOLING: Final[Mapping[int, PoolingMethod | None]] = {0: None, 1: "mean", 2: "cls", 3: "last"}
"""Values of `pooling_type`; 4 is a reranker."""


def read_gguf_spec(file: GgufFile) -> tuple[Family, ModelSpec]:
    source = str(file.path)
    architecture = Fields(file.metadata, source).text("general.architecture")
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    header = GgufHeader(
        fields=Fields(values, f"{source}, {architecture}"),
        tensor_shapes={name: (tensor.num_rows, tensor.num_columns) for name, tensor in file.tensors.items()},
        rope_tensors=_rope_tensors(file),
    )
    return from_gguf(architecture, header)


class GgufWeights:
    """A `WeightSource` over a GGUF file."""

    def __init__(self, file: GgufFile, family: Family, spec: ModelSpec) -> None:
        self._file = file
        self._shapes = expected_shapes(spec)
        self._places = gguf_places(family, spec, file.tensors)
        self._tensors = {name: self._find(place) for name, place in self._places.items()}

    @property
    def fingerprint(self) -> str:
        return self._file.fingerprint

    @property
    def dominant_encoding(self) -> Encoding:
        return dominant(self.encoding, self._shapes)

    def stored_bits(self, name: str) -> int:
        type_id = self._tensors[name].type_id
        return STORED_BITS[RAW_TYPES[type_id]] if type_id in RAW_TYPES else _BITS.get(type_id, 32)

    def stored_format(self, name: str) -> str:
        type_id = self._tensors[name].type_id
        return _NAMES.get(type_id, f"type {type_id}")

    def encoding(self, name: str) -> Encoding:
        if self._places[name].num_turned:
            return Encoding.F32
        return _handed_out(self._tensors[name].type_id)

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def load(self, name: str) -> RawTensor:
        if name not in self._tensors:
            raise BrokenModel(f"{self._file.path} has no weight {name}.", name=name)
        tensor, place = self._tensors[name], self._places[name]
        data = tensor.rows
        if place.is_matrix:  # before the conversion, whose cost grows with the rows
            data = place.cut(data)
        encoding, data = _converted(self._file, tensor, data)
        if name.endswith(SOFTPLUS_PARTS):
            data = softplus(data.view("<f4")).view(np.uint8)
        if place.is_matrix:
            return place.turn(RawTensor(encoding, len(data), tensor.num_columns, data))
        return place.select(RawTensor(encoding, *place.shape, data.reshape(1, -1)))

    def load_rows(self, name: str, rows: npt.NDArray[np.int32]) -> RawTensor:
        tensor = self._tensors[name]
        encoding, data = _converted(self._file, tensor, tensor.rows[rows])
        return RawTensor(encoding, len(data), tensor.num_columns, data)

    def _find(self, place: Place) -> GgufTensor:
        stored, shape = place.stored, place.shape
        if place.is_ones:
            rows = np.ones(shape, np.float32).view(np.uint8)
            return GgufTensor(name=stored, type_id=_F32, num_rows=shape[0], num_columns=shape[1], rows=rows)
        tensor = self._file.tensors.get(stored) or _number_of_layer(self._file, stored)
        tensor = tensor or _joined_parts(self._file, stored)
        if tensor is None:
            raise BrokenModel(f"{self._file.path} has no tensor {stored}, which this network requires.", tensor=stored)
        found = (tensor.num_rows, tensor.num_columns)
        if found != shape and (shape[0] != 1 or prod(found) != shape[1]):  # norms of heads are matrices in some files
            raise BrokenModel(
                f"{self._file.path}: tensor {stored} is {tensor.num_rows} x {tensor.num_columns}; "
                f"expected {shape[0]} x {shape[1]}.",
                tensor=stored,
            )
        if tensor.type_id == _NVFP4 and stored.removesuffix("weight") + "scale" in self._file.tensors:
            raise UnsupportedModel(
                f"{self._file.path}: tensor {stored} is NVFP4 with a second scale, which is not supported.",
                tensor=stored,
            )
        return tensor


def _joined_parts(file: GgufFile, name: str) -> GgufTensor | None:
    """Return a weight that has a tensor for each of q, k and v, or None."""
    parts = [file.tensors.get(name.replace(QKV_INDEX, part)) for part in "qkv"] if QKV_INDEX in name else []
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts) or len({(part.type_id, part.num_columns) for part in found}) > 1:
        return None
    rows = np.concatenate([part.rows for part in found])
    return replace(found[0], name=name, num_rows=len(rows), rows=rows)


def _number_of_layer(file: GgufFile, name: str) -> GgufTensor | None:
    """Return a number of a layer that the metadata hold for all layers (`xielu.alpha_p`) as a tensor, or None."""
    match = _LAYER_KEY.fullmatch(name)
    values = np.atleast_1d(np.asarray(file.metadata.get(match[2]))) if match is not None else np.empty(0)
    if match is None or values.dtype.kind != "f" or values.ndim != 1:
        return None
    layer = 0 if len(values) == 1 else int(match[1])  # one number is that of all layers
    if layer >= len(values):
        return None
    rows = values[layer : layer + 1].astype("<f4").reshape(1, 1).view(np.uint8)
    return GgufTensor(name=name, type_id=_F32, num_rows=1, num_columns=1, rows=rows)


def _handed_out(type_id: int) -> Encoding:
    if type_id == _MXFP4:
        return Encoding.FP4
    if type_id in TERNARY_TYPES:
        return Encoding.TERNARY
    return Encoding.Q4_1 if type_id == _Q4_K else RAW_TYPES.get(type_id, Encoding.F32)


def _converted(
    file: GgufFile, tensor: GgufTensor, data: npt.NDArray[np.uint8]
) -> tuple[Encoding, npt.NDArray[np.uint8]]:
    """Convert rows of a tensor to an encoding of runners: that of `_handed_out`, unless blocks are malformed."""
    if tensor.type_id in RAW_TYPES:
        return RAW_TYPES[tensor.type_id], data
    if tensor.type_id == _Q4_K:
        return Encoding.Q4_1, q4_k_as_q4_1(data)
    if tensor.type_id in TERNARY_TYPES:
        return Encoding.TERNARY, ternary_rows(data, tensor.type_id)
    if tensor.type_id == _MXFP4 and (fp4 := mxfp4_as_fp4(data.reshape(-1, _MXFP4_BYTES))) is not None:
        return Encoding.FP4, fp4.reshape(len(data), -1)
    try:
        return Encoding.F32, dequantize(data, tensor.type_id).view(np.uint8)
    except (NotImplementedError, ValueError) as exc:
        raise UnsupportedModel(
            f"{file.path}: tensor {tensor.name} has type {tensor.type_id}, which is not supported. "
            "Expected F32, F16, BF16, Q4_0 to Q8_0, K-quants, IQ types, TQ types, Q1_0, MXFP4 or NVFP4.",
            tensor=tensor.name,
        ) from exc


def _rope_tensors(file: GgufFile) -> dict[str, tuple[float, ...]]:
    found = [file.tensors[name] for name in ROPE_TENSORS if name in file.tensors]
    for tensor in found:
        if tensor.type_id != _F32:
            raise UnsupportedModel(f"{file.path}: {tensor.name} is not stored as F32.")
    return {tensor.name: tuple(tensor.rows.view("<f4").ravel().tolist()) for tensor in found}


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Read everything but the weights; raises `BrokenModel` or `UnsupportedModel`."""
    file = open_all_parts(path)
    family, spec = read_gguf_spec(file)
    tokenizer = read_gguf_tokenizer(file, spec.vocab_size)
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or "default": value
        for key, value in file.metadata.items()
        if key.startswith(_TEMPLATE) and isinstance(value, str)
    }
    # llama.cpp's converter copies the recommended sampling from `generation_config.json`.
    sampling = {name: file.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    source = "the GGUF file's metadata"
    return Checkpoint(
        spec=spec,
        weights=GgufWeights(file, family, spec),
        text=CheckpointText(
            tokenizer=tokenizer,
            templates=templates,
            defaults=GenerationDefaults(
                eos_token_ids=tokenizer.eos_token_ids, sampling=read_sampling(Fields(sampling, source), source)
            ),
            card_name=gguf_card_name(file.metadata),
        ),
        pooler=_read_pooler(Fields(file.metadata, str(path))),
        generates=spec.is_causal,
    )


def _read_pooler(metadata: Fields) -> Pooler | None:
    key = f"{metadata.text('general.architecture')}.pooling_type"
    kind = metadata.whole(key, 0, minimum=0)
    if kind not in _POOLING:
        raise UnsupportedModel(
            f"{metadata.source}: {key} is {kind}; expected 0 to 3. Rerankers load from Hugging Face folders.", key=key
        )
    method = _POOLING[kind]
    return None if method is None else Pooler(method=method)
