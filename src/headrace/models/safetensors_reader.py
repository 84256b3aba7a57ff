"""
Weights of a Hugging Face checkpoint by canonical name: one safetensors file or several with an index.

Files are memory-mapped; a tensor is read when a runner loads it.
Source: https://huggingface.co/docs/safetensors (format), transformers (index).
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.compressed_tensors import SCALE_SUFFIX
from headrace.models.families.family import Family
from headrace.models.places import folder_places
from headrace.models.shapes import Shape, expected_shapes
from headrace.models.spec import ModelSpec
from headrace.models.weights import STORED_BITS, Encoding, RawTensor, as_float32

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_ENCODINGS: Final = {
    "F32": (Encoding.F32, 4),
    "F16": (Encoding.F16, 2),
    "BF16": (Encoding.BF16, 2),
    "I8": (Encoding.I8, 1),
}
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.", "")
"""The two in the middle are checkpoints of networks that also read images, as transformers 4 and 5 write them."""
_NORMS: Final = frozenset(
    {"final_norm", "attn_norm", "mlp_norm", "q_norm", "k_norm", "post_attn_norm", "post_mlp_norm"}
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Name, type, shape and bytes of a tensor in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    """Its bytes, memory-mapped."""


class SafetensorsWeights:
    """A `WeightSource` over the safetensors files of a folder."""

    def __init__(self, folder: Path, family: Family, spec: ModelSpec) -> None:
        self._folder = folder
        self._norm_offset = family.norm_offset
        tensors, self._fingerprint = _open_folder(folder)
        prefix = _network_prefix(tensors, family)
        self._stored = tensors
        self._shapes = expected_shapes(spec)
        self._places = folder_places(family, spec)
        self._tensors = {
            name: self._find(tensors, _prefixed(place.stored, prefix, tensors), place.shape)
            for name, place in self._places.items()
        }

    @property
    def fingerprint(self) -> str:
        """Hash the sizes, modification times and headers of the files."""
        return self._fingerprint

    def stored_bits(self, name: str) -> int:
        """Return the bits of the tensor's type."""
        return STORED_BITS[_ENCODINGS[self._tensors[name].dtype][0]]

    @property
    def dominant_encoding(self) -> Encoding:
        """Return the encoding of most of the weights in layers."""
        weights: dict[Encoding, int] = {}
        for name, tensor in self._tensors.items():
            if name.startswith("layers."):
                encoding, _ = _ENCODINGS[tensor.dtype]
                num_rows, num_columns = self._shapes[name]
                weights[encoding] = weights.get(encoding, 0) + num_rows * num_columns
        return max(weights, key=weights.__getitem__)

    def names(self) -> Iterable[str]:
        """Return the names that the spec requires; the constructor has checked that they exist."""
        return self._tensors.keys()

    def load(self, name: str) -> RawTensor:
        """Return a tensor, or its rows of a fused tensor; norms of Gemma are returned as F32 with their 1 added."""
        if name not in self._tensors:
            raise BrokenModel(f"{self._folder} has no weight {name}.", name=name)
        return self._places[name].select(self._load_stored(name))

    def _load_stored(self, name: str) -> RawTensor:
        tensor = self._tensors[name]
        num_rows, num_columns = self._places[name].shape
        encoding, _ = _ENCODINGS[tensor.dtype]
        if encoding is Encoding.I8:
            return RawTensor(encoding, num_rows, num_columns, self._rows_with_scales(tensor, num_rows))
        if self._norm_offset and name.rpartition(".")[2] in _NORMS:
            values = as_float32(tensor.data, encoding) + np.float32(self._norm_offset)
            return RawTensor(Encoding.F32, num_rows, num_columns, values.view(np.uint8).reshape(num_rows, -1))
        return RawTensor(encoding, num_rows, num_columns, tensor.data.reshape(num_rows, -1))

    def _find(self, tensors: Mapping[str, StoredTensor], stored: str, shape: Shape) -> StoredTensor:
        tensor = tensors.get(stored)
        if tensor is None:
            raise BrokenModel(f"{self._folder} has no tensor {stored}, which this network requires.", tensor=stored)
        expected = shape if len(tensor.shape) > 1 else shape[1:]
        if tensor.shape != expected or (len(tensor.shape) == 1 and shape[0] != 1):
            raise BrokenModel(
                f"{tensor.file}: tensor {stored} has shape {list(tensor.shape)}; expected {list(shape)}.", tensor=stored
            )
        has_scale = stored + SCALE_SUFFIX in tensors
        if tensor.dtype not in _ENCODINGS or (tensor.dtype == "I8" and not has_scale):
            raise UnsupportedModel(
                f"{tensor.file}: tensor {stored} has type {tensor.dtype}; expected BF16, F16 or F32, "
                f"or I8 with a tensor {stored}{SCALE_SUFFIX}.",
                tensor=stored,
            )
        if tensor.dtype == "I8":
            _check_scales(tensors[stored + SCALE_SUFFIX], shape[0])
        return tensor

    def _rows_with_scales(self, tensor: StoredTensor, num_rows: int) -> npt.NDArray[np.uint8]:
        """Return the rows of an int8 matrix in the layout of `Encoding.I8`."""
        scales = self._stored[tensor.name + SCALE_SUFFIX]
        values = as_float32(scales.data, _ENCODINGS[scales.dtype][0])
        column = np.ascontiguousarray(np.broadcast_to(values, num_rows)).view(np.uint8).reshape(num_rows, -1)
        return np.concatenate([column, tensor.data.reshape(num_rows, -1)], axis=1)


def _check_scales(scales: StoredTensor, num_rows: int) -> None:
    """Refuse scales that are neither one per row nor one for the matrix."""
    if (
        scales.dtype not in _ENCODINGS
        or scales.dtype == "I8"
        or scales.shape not in {(num_rows, 1), (num_rows,), (1,), ()}
    ):
        raise BrokenModel(
            f"{scales.file}: tensor {scales.name} is {scales.dtype} {list(scales.shape)}; "
            f"expected one floating point number for each of {num_rows} rows.",
            tensor=scales.name,
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
    if dtype in _ENCODINGS and num_bytes != _product(shape) * _ENCODINGS[dtype][1]:
        raise BrokenModel(f"{file}: tensor {name} has {num_bytes} bytes, which is not its shape {list(shape)}.")
    data = np.frombuffer(content, np.uint8, num_bytes, start + first)
    return StoredTensor(file, name, dtype, shape, data)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product
