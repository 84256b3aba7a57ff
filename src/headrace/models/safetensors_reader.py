"""
Weights of a Hugging Face checkpoint by canonical name: one safetensors file or several with an index.

Files are memory-mapped; a tensor is read when a runner loads it.
Source: https://huggingface.co/docs/safetensors (format), transformers (index).
"""

import hashlib
import json
import mmap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.telemetry import get_logger
from headrace.models.families.family import Family
from headrace.models.fields import Fields
from headrace.models.places import folder_places
from headrace.models.quantized.registry import FORMATS, WEIGHT, find_quantized
from headrace.models.quantized.stored_weight import StoredWeight, float_tensor
from headrace.models.shapes import Shape, expected_shapes
from headrace.models.spec import ModelSpec
from headrace.models.stored_tensor import PLAIN, StoredTensor, TensorFiles, make_tensor
from headrace.models.weights import STORED_BITS, Encoding, RawTensor, as_float32

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.", "")
"""The two in the middle are checkpoints of networks that also read images, as transformers 4 and 5 write them."""
_NORMS: Final = frozenset(
    {"final_norm", "attn_norm", "mlp_norm", "q_norm", "k_norm", "post_attn_norm", "post_mlp_norm"}
)


class SafetensorsWeights:
    """A `WeightSource` over the safetensors files of a folder."""

    def __init__(self, folder: Path, family: Family, spec: ModelSpec, quantization: Fields | None = None) -> None:
        self._folder = folder
        self._norm_offset = family.norm_offset
        self._quantization = quantization or Fields({}, str(folder))
        tensors, self._fingerprint = _open_folder(folder)
        prefix = _network_prefix(tensors, family)
        self._shapes = expected_shapes(spec)
        self._places = folder_places(family, spec)
        stored = {name: _prefixed(place.stored, prefix, tensors) for name, place in self._places.items()}
        self._weights = {name: self._find(tensors, stored[name], place.shape) for name, place in self._places.items()}
        _refuse_unknown_biases(tensors, set(stored.values()))
        _log_losses(folder, self._weights.values())

    @property
    def fingerprint(self) -> str:
        """Hash the sizes, modification times and headers of the files."""
        return self._fingerprint

    def stored_bits(self, name: str) -> int:
        """Return the bits of the tensor's type, or of its quantized format."""
        return self._weights[name].bits

    @property
    def dominant_encoding(self) -> Encoding:
        """Return the encoding of most of the weights in layers."""
        numbers: Counter[Encoding] = Counter()
        for name, (num_rows, num_columns) in self._shapes.items():
            if name.startswith("layers."):
                numbers[self._weights[name].encoding] += num_rows * num_columns
        return max(numbers, key=numbers.__getitem__)

    def names(self) -> Iterable[str]:
        """Return the names that the spec requires; the constructor has checked that they exist."""
        return self._weights.keys()

    def load(self, name: str) -> RawTensor:
        """Return a tensor, or its rows of a fused tensor; norms of Gemma are returned as F32 with their 1 added."""
        if name not in self._weights:
            raise BrokenModel(f"{self._folder} has no weight {name}.", name=name)
        return self._places[name].select(self._load_stored(name))

    def _load_stored(self, name: str) -> RawTensor:
        tensor = self._weights[name].load()
        if self._norm_offset and name.rpartition(".")[2] in _NORMS:
            values = as_float32(tensor.data.ravel(), tensor.encoding) + np.float32(self._norm_offset)
            return float_tensor(values.reshape(tensor.num_rows, -1))
        return tensor

    def _find(self, tensors: TensorFiles, stored: str, shape: Shape) -> StoredWeight:
        quantized = find_quantized(tensors, stored, shape, self._quantization)
        if quantized is not None:
            return quantized
        tensor = tensors.get(stored)
        if tensor is None:
            raise BrokenModel(f"{self._folder} has no tensor {stored}, which this network requires.", tensor=stored)
        expected = shape if len(tensor.shape) > 1 else shape[1:]
        if tensor.shape != expected or (len(tensor.shape) == 1 and shape[0] != 1):
            raise BrokenModel(
                f"{tensor.file}: tensor {stored} has shape {list(tensor.shape)}; expected {list(shape)}.", tensor=stored
            )
        if tensor.dtype not in {*PLAIN, "F64"}:
            raise UnsupportedModel(
                f"{tensor.file}: tensor {stored} has type {tensor.dtype}; expected BF16, F16 or F32, "
                f"or a quantized format ({', '.join(kind.name for kind in FORMATS)}) with all of its tensors.",
                tensor=stored,
            )
        return _plain(tensor, shape)


def _plain(tensor: StoredTensor, shape: Shape) -> StoredWeight:
    """Return a matrix or vector of floats, unchanged but for F64."""
    if tensor.dtype == "F64":
        return StoredWeight(
            Encoding.F32, STORED_BITS[Encoding.F32], lambda: float_tensor(tensor.floats().reshape(shape))
        )
    encoding = PLAIN[tensor.dtype]
    data = tensor.data.reshape(shape[0], -1)
    return StoredWeight(encoding, STORED_BITS[encoding], lambda: RawTensor(encoding, *shape, data))


def _refuse_unknown_biases(tensors: TensorFiles, known: set[str]) -> None:
    """Refuse biases that the network does not have: writers of GPTQ store zeros for them."""
    for name in known:
        bias = f"{name.removesuffix(WEIGHT)}.bias"
        if bias not in known and bias in tensors and tensors[bias].floats().any():
            raise UnsupportedModel(
                f"{tensors[bias].file}: tensor {bias} is not zero, but this network has no such bias.", tensor=bias
            )


def _log_losses(folder: Path, weights: Iterable[StoredWeight]) -> None:
    """Say how many matrices lose precision beyond their format, and why."""
    for loss, count in Counter(weight.loss for weight in weights if weight.loss).items():
        get_logger().warning(
            "weights.rounded_again", message=f"{folder.name}: 4 bits round {count} matrices again: {loss}."
        )


def _network_prefix(tensors: Mapping[str, StoredTensor], family: Family) -> str:
    """Return what precedes the names of the network: those of the bare network (`AutoModel`) have no `model.`."""
    embed = family.tensors["embed"].removeprefix("model.")
    return next((prefix for prefix in _PREFIXES if prefix + embed in tensors), "model.")


def _prefixed(stored: str, prefix: str, tensors: Mapping[str, StoredTensor]) -> str:
    """Return the name of a tensor in this checkpoint; the LM head lies beside the network or beside its parent."""
    if stored.startswith("model."):
        return prefix + stored.removeprefix("model.")
    parent = prefix.removesuffix("model.")
    return parent + stored if parent + stored in tensors else stored


def _open_folder(folder: Path) -> tuple[dict[str, StoredTensor], str]:
    digest = hashlib.blake2b(digest_size=16)
    tensors: dict[str, StoredTensor] = {}
    for file in _files(folder):
        content = _map(file)
        header, start = _header(file, content)
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns} ".encode() + content[:start])
        for name, entry in header.items():
            if name != "__metadata__":
                tensors[name] = _place(file, content, start, name, entry)
    return tensors, digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        names = _indexed_files(index)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise BrokenModel(f"{folder} has no {', '.join(missing)}, which {INDEX} lists. Download it again.")
        return [folder / name for name in names]
    single = folder / SINGLE
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files:
        return files
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise UnsupportedModel(
            f"{folder} has weights as Python pickles (.bin or .pth), which can execute code when they are loaded. "
            "Convert them to safetensors."
        )
    raise BrokenModel(f"{folder} has no weights: neither {INDEX} nor {SINGLE} exists.")


def _indexed_files(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BrokenModel(f"{index} is not a valid index of safetensors files.") from exc
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise BrokenModel(f"{index} names files outside its folder.")
    return names


def _map(file: Path) -> mmap.mmap:
    try:
        if file.stat().st_size >= _LENGTH_BYTES:
            with file.open("rb") as opened:
                return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as exc:
        raise BrokenModel(f"{file} cannot be read: {exc.strerror or exc}.") from exc
    raise BrokenModel(f"{file} is truncated: it has fewer than {_LENGTH_BYTES} bytes. Download it again.")


def _header(file: Path, content: mmap.mmap) -> tuple[dict[str, object], int]:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > len(content):
        raise BrokenModel(f"{file} is truncated or not a safetensors file: its header has {length} bytes.")
    try:
        header = json.loads(content[_LENGTH_BYTES:start])
    except (ValueError, RecursionError) as exc:
        raise BrokenModel(f"{file} has a header that is not JSON: {exc}. Download it again.") from exc
    if not isinstance(header, dict):
        raise BrokenModel(f"{file} has a header that is not a JSON object.")
    return header, start


def _place(file: Path, content: mmap.mmap, start: int, name: str, entry: object) -> StoredTensor:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        lengths_are_whole = all(type(number) is int and number >= 0 for number in (*shape, first, last))
    except (KeyError, TypeError, ValueError) as exc:
        raise BrokenModel(f"{file}: the entry of tensor {name} is malformed.", tensor=name) from exc
    if not lengths_are_whole or not isinstance(dtype, str) or first > last:
        raise BrokenModel(f"{file}: the entry of tensor {name} is malformed.", tensor=name)
    if start + last > len(content):
        raise BrokenModel(
            f"{file} is truncated: tensor {name} ends at byte {start + last}, the file has {len(content)}. "
            "Download it again.",
            tensor=name,
        )
    num_bytes = last - first
    return make_tensor(file, name, dtype, shape, np.frombuffer(content, np.uint8, num_bytes, start + first))
