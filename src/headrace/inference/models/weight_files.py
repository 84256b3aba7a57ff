"""
The tensors of a folder: safetensors or else the pickles of PyTorch; one file, or several with an index.

Files are memory-mapped; a tensor is read when a runner loads it.
"""

import hashlib
import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel
from headrace.inference.models.fields import read_whole
from headrace.inference.models.pickle_file import read_pickle, read_pickled_tensor
from headrace.inference.models.stored_tensor import StoredTensor, make_tensor
from headrace_handler.stray_files import listed

SINGLE: Final = "model.safetensors"
_FILES: Final = (
    "model.safetensors.index.json",
    SINGLE,
    "*.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "*.pth",
)
"""File patterns in order of preference: pickles only if there is nothing else."""
_SPLIT: Final = "pytorch_model.bin"
"""If it is a folder, it has a file for each tensor."""
_SPLIT_LISTING: Final = "key_to_filename.json"
_SAFETENSORS: Final = ".safetensors"
_JSON: Final = ".json"
_SHOWN: Final = 5
"""Missing files that an error names."""
_MAX_INDEX_BYTES: Final = 64 << 20
"""Four times the index of a model with 138,000 tensors."""


def open_folder(folder: Path) -> tuple[dict[str, StoredTensor], str]:
    """
    Return the tensors of a folder by their names, and a hash of the sizes, times and headers of its files.

    Raises `BrokenModel`, or `UnsupportedModel` if a pickle holds more than tensors.
    """
    split = folder / _SPLIT
    return _open_split(split) if split.is_dir() else open_files(_weight_files(folder))


def open_files(files: Iterable[Path]) -> tuple[dict[str, StoredTensor], str]:
    """Return the tensors of files, safetensors or pickles, and a hash as `open_folder` does; raises like it."""
    digest = hashlib.blake2b(digest_size=16)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        content = _map(file)
        found, header = (read_safetensors if file.suffix == _SAFETENSORS else read_pickle)(file, content)
        digest.update(_fingerprint(file) + header)
        tensors |= found
    return tensors, digest.hexdigest()


def _open_split(folder: Path) -> tuple[dict[str, StoredTensor], str]:
    """
    Open a folder with a pickle for each tensor, as `save_pretrained_split` of Transformers NeuronX writes it.

    Source: transformers-neuronx `module.py`.
    """
    listing = folder / _SPLIT_LISTING
    try:
        names: dict[str, str] = json.loads(read_whole(listing, max_bytes=_MAX_INDEX_BYTES))
        files = _listed_files(folder, listing, names.values())
    except OSError as exc:
        raise BrokenModel(f"{listing} cannot be read: {exc.strerror or exc}.") from exc
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise BrokenModel(f"{listing} is not a valid list of tensors and their files.") from exc
    digest = hashlib.blake2b(digest_size=16)
    tensors = {}
    for name, file in zip(names, files, strict=True):
        tensors[name], header = read_pickled_tensor(file, _map(file), name)
        digest.update(_fingerprint(file) + header)
    return tensors, digest.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    for pattern in _FILES:
        files = listed(folder, [pattern])
        if files and files[0].suffix == _JSON:
            try:
                names = sorted(set(json.loads(read_whole(files[0], max_bytes=_MAX_INDEX_BYTES))["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
                raise BrokenModel(f"{files[0]} is not a valid index of files with weights.") from exc
            return _listed_files(folder, files[0], names)
        if files:
            return files
    raise BrokenModel(f"{folder} has no weights: expected {SINGLE}, an index of several files, or pytorch_model.bin.")


def _listed_files(folder: Path, listing: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of a folder that a listing names; raises BrokenModel if one is missing or elsewhere."""
    names = list(names)
    if not all(isinstance(name, str) and "/" not in name and name not in {"", ".", ".."} for name in names):
        raise BrokenModel(f"{listing} names files outside its folder.")
    try:
        present = {path.name for path in folder.iterdir()}  # an index may name a million files
        missing = [name for name in names if name not in present or not (folder / name).is_file()]
    except OSError as exc:
        raise BrokenModel(f"{listing} names a file that cannot be read: {exc.strerror or exc}.") from exc
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        names_shown = ", ".join(missing[:_SHOWN])
        raise BrokenModel(f"{folder} has no {names_shown}{more}, which {listing.name} lists. Download it again.")
    return [folder / name for name in names]


def _fingerprint(file: Path) -> bytes:
    stat = file.stat()
    return f"{file.name} {stat.st_size} {stat.st_mtime_ns} ".encode()


def _map(file: Path) -> mmap.mmap:
    try:
        if file.stat().st_size >= LENGTH_BYTES:
            with file.open("rb") as opened:
                return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as exc:
        raise BrokenModel(f"{file} cannot be read: {exc.strerror or exc}.") from exc
    raise BrokenModel(f"{file} is truncated: it has fewer than {LENGTH_BYTES} bytes. Download it again.")


LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_MAX_DIMENSIONS: Final = 8
_MAX_LENGTH: Final = 1 << 63


def read_safetensors(file: Path, content: mmap.mmap) -> tuple[dict[str, StoredTensor], bytes]:
    """Return the tensors of a file, and the bytes that describe them; raises `BrokenModel` if it is malformed."""
    header, start = _header(file, content)
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _place(file, content, start, name, entry) for name, entry in entries.items()}, content[:start]


def _header(file: Path, content: mmap.mmap) -> tuple[dict[str, object], int]:
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > len(content):
        raise BrokenModel(f"{file} is truncated or not a safetensors file: its header has {length} bytes.")
    try:
        header = json.loads(content[LENGTH_BYTES:start])
    except (ValueError, RecursionError) as exc:
        raise BrokenModel(f"{file} has a header that is not JSON: {exc}. Download it again.") from exc
    if not isinstance(header, dict):
        raise BrokenModel(f"{file} has a header that is not a JSON object.")
    return header, start


def _place(file: Path, content: mmap.mmap, start: int, name: str, entry: object) -> StoredTensor:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        lengths_are_whole = all(type(number) is int and 0 <= number < _MAX_LENGTH for number in (*shape, first, last))
    except (KeyError, TypeError, ValueError) as exc:
        raise BrokenModel(f"{file}: the entry of tensor {name} is malformed.", tensor=name) from exc
    if not lengths_are_whole or not isinstance(dtype, str) or first > last or len(shape) > _MAX_DIMENSIONS:
        raise BrokenModel(f"{file}: the entry of tensor {name} is malformed.", tensor=name)
    if start + last > len(content):
        raise BrokenModel(
            f"{file} is truncated: tensor {name} ends at byte {start + last}, the file has {len(content)}. "
            "Download it again.",
            tensor=name,
        )
    num_bytes = last - first
    return make_tensor(file, name, dtype, shape, np.frombuffer(content, np.uint8, num_bytes, start + first))
