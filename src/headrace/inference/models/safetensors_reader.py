"""
Weights of a Hugging Face checkpoint by canonical name, whatever their files and their format.

Experts may be stacked in one tensor: bf16 with the inputs as rows, or MXFP4 as `_blocks` and `_scales` (gpt-oss). A
stack takes gigabytes in float32, so it is converted one expert at a time.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count as count_up
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.telemetry import get_logger
from headrace.inference.models.decoding import SOFTPLUS_PARTS, softplus
from headrace.inference.models.families.family import HEAD_INDEX, QKV_INDEX, Family
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import Place, folder_places
from headrace.inference.models.quantized.fp4 import MXFP4_BLOCK, mxfp4_tensor
from headrace.inference.models.quantized.registry import FORMATS, WEIGHT, find_quantized
from headrace.inference.models.quantized.stored_weight import Rows, StoredWeight, float_tensor
from headrace.inference.models.shapes import Shape, expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.stored_tensor import PLAIN, StoredTensor, TensorFiles
from headrace.inference.models.weight_files import open_folder
from headrace.inference.models.weights import STORED_BITS, Encoding, RawTensor, as_float32, dominant

_PREFIXES: Final = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "transformer.",
    "gpt_neox.",
    "backbone.",
    "model.decoder.",
    "decoder.",
    "bert.",
    "roberta.",
    "",
)
"""
The second and third are checkpoints of networks that also read images, as transformers 4 and 5 write them; the next are
names of older families.
"""
_MXFP4_BITS: Final = 4
_EXPERT: Final = re.compile(r"(.+\.experts\.)(\d+)\.((?:gate|up|down)_proj)\.weight")
_Part = tuple[int, slice]
"""An expert, and rows of its matrix."""


class SafetensorsWeights:
    """A `WeightSource` over the safetensors files of a folder."""

    def __init__(self, folder: Path, family: Family, spec: ModelSpec, quantization: Fields | None = None) -> None:
        self._folder = folder
        self._offset_of = family.offset_of
        self._quantization = quantization or Fields({}, str(folder))
        tensors, self._fingerprint = open_folder(folder)
        # Names of the bare network (`AutoModel`) have no prefix.
        embed = family.tensors["embed"].removeprefix("model.")
        prefix = next((prefix for prefix in _PREFIXES if prefix + embed in tensors), "model.")
        self._shapes = expected_shapes(spec)
        self._places = folder_places(family, spec)
        stored = {
            name: _renamed(_prefixed(place.stored, prefix, tensors), family.other_names, tensors)
            for name, place in self._places.items()
        }
        tensors = tensors | _joined_parts(tensors, stored.values()) | _cut_experts(tensors, stored.values())
        self._weights = {name: self._find(tensors, stored[name], place) for name, place in self._places.items()}
        _refuse_unknown_biases(tensors, set(stored.values()))
        # Matrices that lose precision beyond their format, by the reason.
        for loss, count in Counter(weight.loss for weight in self._weights.values() if weight.loss).items():
            message = f"{folder.name}: 4 bits round {count} matrices again: {loss}."
            get_logger().warning("weights.rounded_again", message=message)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def stored_bits(self, name: str) -> int:
        return self._weights[name].bits

    def stored_format(self, name: str) -> str:
        weight = self._weights[name]
        return weight.format or f"{weight.bits} bits"

    @property
    def dominant_encoding(self) -> Encoding:
        return dominant(self.encoding, self._shapes)

    def encoding(self, name: str) -> Encoding:
        if self._places[name].is_converted:
            return Encoding.F32
        return self._weights[name].encoding

    def names(self) -> Iterable[str]:
        return self._weights.keys()

    def load(self, name: str) -> RawTensor:
        """Return a tensor, or its rows of a fused tensor; norms of Gemma are returned as F32 with their 1 added."""
        if name not in self._weights:
            raise BrokenModel(f"{self._folder} has no weight {name}.", name=name)
        weight, place = self._weights[name], self._places[name]
        if weight.load_rows is not None and place.rows is not None:
            return place.turn(weight.load_rows(place.rows))
        tensor = weight.load()
        if offset := self._offset_of(name):
            values = as_float32(tensor.data.ravel(), tensor.encoding) + np.float32(offset)
            tensor = float_tensor(values.reshape(tensor.num_rows, -1))
        if name.endswith(".mix_decay"):  # checkpoints store its logarithm
            tensor = float_tensor(-np.exp(as_float32(tensor.data.ravel(), tensor.encoding)).reshape(1, -1))
        if name.endswith(SOFTPLUS_PARTS):
            tensor = float_tensor(softplus(as_float32(tensor.data.ravel(), tensor.encoding)).reshape(1, -1))
        return place.select(tensor)

    def load_rows(self, name: str, rows: npt.NDArray[np.int32]) -> RawTensor:
        tensor = self._weights[name].load()  # a view of the mapped file
        return RawTensor(tensor.encoding, len(rows), tensor.num_columns, tensor.data[rows])

    def _find(self, tensors: TensorFiles, stored: str, place: Place) -> StoredWeight:
        shape = place.shape
        if place.is_ones:
            ones = float_tensor(np.ones(shape, np.float32))
            return StoredWeight(Encoding.F32, STORED_BITS[Encoding.F32], lambda: ones)
        if place.num_stacked > 1 and (experts := find_experts(tensors, stored, shape, place.num_stacked)) is not None:
            return experts
        quantized = find_quantized(tensors, stored, shape, self._quantization)
        if quantized is not None:
            return quantized
        tensor = tensors.get(stored)
        if tensor is None:
            raise BrokenModel(f"{self._folder} has no tensor {stored}, which this network requires.", tensor=stored)
        tensor = tensor.as_matrix()
        expected = shape[::-1] if place.transposed else shape
        if tensor.shape != expected and (shape[0] != 1 or prod(tensor.shape) != shape[1]):
            raise BrokenModel(
                f"{tensor.file}: tensor {stored} has shape {list(tensor.shape)}; expected {list(expected)}.",
                tensor=stored,
            )
        if tensor.dtype not in {*PLAIN, "F64"}:
            raise UnsupportedModel(
                f"{tensor.file}: tensor {stored} has type {tensor.dtype}; expected BF16, F16 or F32, "
                f"or a quantized format ({', '.join(kind.name for kind in FORMATS)}) with all of its tensors.",
                tensor=stored,
            )
        return _plain(tensor, shape, transposed=place.transposed)


def _plain(tensor: StoredTensor, shape: Shape, *, transposed: bool) -> StoredWeight:
    """Return a matrix or vector of floats, unchanged but for F64 and for the order of its numbers."""
    encoding = PLAIN.get(tensor.dtype, Encoding.F32)
    data = tensor.data.reshape(shape[0], -1)

    def load() -> RawTensor:
        if tensor.dtype == "F64":
            values = tensor.floats()
            return float_tensor(np.ascontiguousarray(values.T) if transposed else values.reshape(shape))
        if not transposed:
            return RawTensor(encoding, *shape, data)
        numbers = data.reshape(shape[1], shape[0], -1).transpose(1, 0, 2)
        return RawTensor(encoding, *shape, np.ascontiguousarray(numbers).reshape(shape[0], -1))

    return StoredWeight(encoding, STORED_BITS[encoding], load, format=tensor.dtype)


def _joined_parts(tensors: TensorFiles, names: Iterable[str]) -> dict[str, StoredTensor]:
    """Return the weights that are stored in a tensor for each head, or for each of q, k and v, each joined to one."""
    joined = {}
    for name in names:
        found = takewhile(tensors.__contains__, _names_of_parts(name))
        parts = [tensors[part] for part in found]
        if len({(part.dtype, part.shape[1:]) for part in parts}) == 1:
            data = np.concatenate([part.data.reshape(-1) for part in parts])
            shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            joined[name] = replace(parts[0], name=name, shape=shape, data=data)
    return joined


def _names_of_parts(name: str) -> Iterable[str]:
    if HEAD_INDEX in name:
        return (name.replace(HEAD_INDEX, str(head)) for head in count_up())
    return (name.replace(QKV_INDEX, part) for part in "qkv") if QKV_INDEX in name else ()


def _cut_experts(tensors: TensorFiles, names: Iterable[str]) -> dict[str, StoredTensor]:
    """Return the matrices of experts that are stacked in one tensor (Qwen 3.5), by the names that they have apart."""
    cut: dict[str, StoredTensor] = {}
    for name in names:
        match = None if name in tensors else _EXPERT.fullmatch(name)
        if match is None:
            continue
        prefix, expert, part = match[1], int(match[2]), match[3]
        stack = tensors.get(prefix + ("down_proj" if part == "down_proj" else "gate_up_proj"))
        if stack is None or len(stack.shape) != 3 or expert >= stack.shape[0]:
            continue
        data, rows = stack.data.reshape(stack.shape[0], -1)[expert], stack.shape[1]
        if part != "down_proj":
            halves, rows = data.reshape(2, -1), rows // 2
            data = halves[int(part == "up_proj")]
        cut[name] = replace(stack, name=name, shape=(rows, stack.shape[2]), data=data)
    return cut


def _refuse_unknown_biases(tensors: TensorFiles, known: set[str]) -> None:
    """Refuse biases that the network does not have: writers of GPTQ store zeros for them."""
    for name in known:
        bias = f"{name.removesuffix(WEIGHT)}.bias"
        if bias not in known and bias in tensors and tensors[bias].floats().any():
            raise UnsupportedModel(
                f"{tensors[bias].file}: tensor {bias} is not zero, but this network has no such bias.", tensor=bias
            )


def _prefixed(stored: str, prefix: str, tensors: Mapping[str, StoredTensor]) -> str:
    """Return the name of a tensor in this checkpoint; the LM head lies beside the network or beside its parent."""
    if stored.startswith("model."):
        return prefix + stored.removeprefix("model.")
    parent = prefix.removesuffix("model.")
    return parent + stored if parent + stored in tensors else stored


def _renamed(stored: str, others: Mapping[str, str], tensors: TensorFiles) -> str:
    """Return the name of a tensor, or another one if only that is in this checkpoint."""
    names = (stored.replace(part, other) for part, other in others.items() if part in stored)
    return stored if stored in tensors else next((name for name in names if name in tensors), stored)


def find_experts(tensors: TensorFiles, name: str, shape: Shape, num_experts: int) -> StoredWeight | None:
    """
    Return a stack whose matrices together have a shape, or None if there is no such tensor.

    Raises `BrokenModel` if a tensor has the wrong type or shape.
    """
    rows, columns = shape[0] // num_experts, shape[1]
    blocks, scales = tensors.get(f"{name}_blocks"), tensors.get(f"{name}_scales")
    if blocks is not None and scales is not None:
        return _find_mxfp4(blocks, scales, (num_experts, rows, columns))
    stack = tensors.get(name)
    if stack is None:
        return None
    stack.expect((num_experts, columns, rows))
    if stack.dtype not in PLAIN:
        raise stack.broken(f"expected {', '.join(PLAIN)}")
    encoding = PLAIN[stack.dtype]
    numbers = stack.data.reshape(num_experts, columns, rows, -1)

    def load(part: _Part) -> RawTensor:
        expert, chosen = part
        matrix = np.ascontiguousarray(numbers[expert][:, chosen].transpose(1, 0, 2))
        return RawTensor(encoding, len(matrix), columns, matrix.reshape(len(matrix), -1))

    return _stack(encoding, STORED_BITS[encoding], load, (num_experts, rows))


def _find_mxfp4(blocks: StoredTensor, scales: StoredTensor, shape: tuple[int, int, int]) -> StoredWeight:
    num_experts, rows, columns = shape
    if columns % MXFP4_BLOCK:
        raise blocks.broken(f"{columns} columns are not a multiple of {MXFP4_BLOCK}")
    groups = (num_experts, rows, columns // MXFP4_BLOCK)
    for tensor, expected in ((blocks, (*groups, MXFP4_BLOCK // 2)), (scales, groups)):
        if tensor.dtype not in {"U8", "F8_E8M0"}:
            raise tensor.broken("expected bytes (U8)")
        tensor.expect(expected)
    codes, exponents = blocks.data.reshape(blocks.shape), scales.data.reshape(groups)

    def load(part: _Part) -> RawTensor:
        expert, chosen = part
        with np.errstate(over="ignore", invalid="ignore"):
            tensor = mxfp4_tensor(codes[expert][chosen], exponents[expert][chosen])
        if tensor.encoding is not Encoding.FP4:
            raise scales.broken("a scale is above 2^15 or not finite: the scales of its quantization are damaged")
        return tensor

    return _stack(Encoding.FP4, _MXFP4_BITS, load, (num_experts, rows))


def _stack(encoding: Encoding, bits: int, load: Callable[[_Part], RawTensor], shape: Shape) -> StoredWeight:
    """Return a stack of `shape` (experts, rows), of which the rows of one expert are loaded at a time."""
    num_experts, rows = shape

    def load_rows(chosen: Rows) -> RawTensor:
        if not isinstance(chosen, slice):
            raise TypeError("the rows of an expert are a slice")
        expert, first = divmod(chosen.start, rows)
        return load((expert, slice(first, chosen.stop - expert * rows, chosen.step)))

    def load_all() -> RawTensor:
        parts = [load((expert, slice(None))) for expert in range(num_experts)]
        data: npt.NDArray[np.uint8] = np.concatenate([part.data for part in parts])
        return RawTensor(encoding, len(data), parts[0].num_columns, data)

    return StoredWeight(encoding, bits, load_all, load_rows=load_rows)
