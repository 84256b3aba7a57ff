"""
Tensors of a file that `torch.save` wrote (`pytorch_model.bin`, `.pth`), memory-mapped and without running its code.

The file is a zip archive: `<name>/data.pkl` describes the tensors, `<name>/data/<key>` hold their numbers, stored.
Source: PyTorch `torch/serialization.py`, `caffe2/serialize/inline_container.h`; APPNOTE.TXT (zip).
"""

import mmap
import struct
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.pickle_program import PickledTensor, run_pickle
from headrace.models.stored_tensor import ITEM_BYTES, StoredTensor, make_tensor

_PROGRAM: Final = "data.pkl"
_MAX_PROGRAM_BYTES: Final = 64 << 20
_MAX_ENTRIES: Final = 1_000_000
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 1
_NESTED: Final = ("state_dict", "model", "module")
"""Keys under which trainers keep the tensors."""

Entries = Mapping[str, tuple[int, int]]
"""First byte and length of each entry of the archive, by its name inside its folder."""


def read_pickle(file: Path, content: mmap.mmap) -> tuple[dict[str, StoredTensor], bytes]:
    """
    Return the tensors of a file, and the bytes that describe them.

    Raises:
        BrokenModel: The file is truncated or malformed.
        UnsupportedModel: It holds more than tensors, or was written by PyTorch before 1.6.
    """
    entries, program = _opened(file, content)
    state = run_pickle(program, f"{file}, {_PROGRAM}")
    nested = next(
        (state[key] for key in _NESTED if isinstance(state, dict) and isinstance(state.get(key), dict)), state
    )
    if not isinstance(nested, dict):
        raise UnsupportedModel(f"{file} holds a {type(nested).__name__}; expected a dict of tensors.")
    tensors = {
        name: _place(file, content, entries, name, value)
        for name, value in nested.items()
        if isinstance(name, str) and isinstance(value, PickledTensor)
    }
    return tensors, program


def read_pickled_tensor(file: Path, content: mmap.mmap, name: str) -> tuple[StoredTensor, bytes]:
    """Return the tensor of a file that holds one alone, and the bytes that describe it; raises as `read_pickle`."""
    entries, program = _opened(file, content)
    tensor = run_pickle(program, f"{file}, {_PROGRAM}")
    if not isinstance(tensor, PickledTensor):
        raise UnsupportedModel(f"{file} holds a {type(tensor).__name__}; expected the tensor {name}.")
    return _place(file, content, entries, name, tensor), program


def _opened(file: Path, content: mmap.mmap) -> tuple[Entries, bytes]:
    """Return the entries of a file and the program that describes its tensors."""
    entries = _entries(file, content)
    start, length = entries[_PROGRAM]
    if length > _MAX_PROGRAM_BYTES:
        raise UnsupportedModel(f"{file}: {_PROGRAM} has {length} bytes; expected at most {_MAX_PROGRAM_BYTES}.")
    if "byteorder" in entries and _bytes(content, entries["byteorder"]) != b"little":
        raise UnsupportedModel(f"{file} is not in little-endian order, which is not supported.")
    return entries, content[start : start + length]


def _entries(file: Path, content: mmap.mmap) -> Entries:
    if content[:4] != _LOCAL_MAGIC:
        raise UnsupportedModel(
            f"{file} is not a zip archive; expected one, as torch.save writes since PyTorch 1.6. "
            "Convert it to safetensors."
        )
    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, IndexError) as exc:
        raise BrokenModel(f"{file} is truncated or malformed: {exc}. Download it again.") from exc
    programs = [entry.filename for entry in listed if entry.filename.rpartition("/")[2] == _PROGRAM]
    if len(programs) != 1 or len(listed) > _MAX_ENTRIES:
        raise BrokenModel(f"{file} has {len(programs)} files named {_PROGRAM} among {len(listed)}; expected one.")
    folder = programs[0].removesuffix(_PROGRAM)
    return {
        entry.filename.removeprefix(folder): _locate(file, content, entry)
        for entry in listed
        if entry.filename.startswith(folder)
    }


def _locate(file: Path, content: mmap.mmap, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Return where an entry's bytes lie: an archive of tensors is not compressed."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
        raise UnsupportedModel(f"{file}: {entry.filename!r:.200} is compressed or encrypted; expected it stored.")
    try:
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(content, entry.header_offset)
    except (struct.error, OverflowError) as exc:
        raise BrokenModel(f"{file} is truncated: {entry.filename!r:.200} begins after its end.") from exc
    start = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if (
        entry.header_offset < 0
        or magic != _LOCAL_MAGIC
        or entry.file_size != entry.compress_size
        or start + entry.file_size > len(content)
    ):
        raise BrokenModel(f"{file} is truncated or malformed at {entry.filename!r:.200}. Download it again.")
    return start, entry.file_size


def _bytes(content: mmap.mmap, entry: tuple[int, int]) -> bytes:
    start, length = entry
    return content[start : start + min(length, 16)]


def _place(file: Path, content: mmap.mmap, entries: Entries, name: str, tensor: PickledTensor) -> StoredTensor:
    storage = tensor.storage
    if f"data/{storage.key}" not in entries:
        raise BrokenModel(f"{file} has no data/{storage.key!r:.100}, which tensor {name} needs.", tensor=name)
    start, length = entries[f"data/{storage.key}"]
    item_bytes = ITEM_BYTES[storage.dtype]
    first, num_numbers = tensor.offset * item_bytes, prod(tensor.shape)
    if len(tensor.strides) != len(tensor.shape) or first + num_numbers * item_bytes > length:
        raise BrokenModel(f"{file}: tensor {name} has shape {tensor.shape!r:.100}, which its storage cannot hold.")
    if num_numbers and not _is_contiguous(tensor):
        raise UnsupportedModel(
            f"{file}: tensor {name} has strides {tensor.strides!r:.100}, which is not supported. "
            "Convert it to safetensors."
        )
    data = np.frombuffer(content, np.uint8, num_numbers * item_bytes, start + first)
    return make_tensor(file, name, storage.dtype, tensor.shape, data)


def _is_contiguous(tensor: PickledTensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
