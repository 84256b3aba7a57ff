"""
The container format of GGUF files: metadata and the location of each tensor.

Only the header is read, in one pass over a memory map; the values are not interpreted here.
(The `gguf` package takes seconds for a vocabulary of 50,000 tokens, this takes a few hundredths of a second.)
Of a file in several parts (`name-00001-of-00003.gguf`), as llama.cpp splits large models, the first part has the
metadata and the vocabulary; each part lists and holds its own tensors.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; llama.cpp `tools/gguf-split`, gguf-py `constants.py`.
"""

import hashlib
import mmap
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
_SCALARS: Final = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"
}  # fmt: skip
_MAX_NESTING: Final = 4

# Block size in values and in bytes of every tensor type. Source: ggml.c, `type_traits`.
BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


_Entry = tuple[tuple[int, ...], int, int]
"""Shape (fastest first), type, offset from the start of the data."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Name, type, shape and bytes of a tensor."""

    name: str
    type_id: int
    num_rows: int
    num_columns: int
    rows: npt.NDArray[np.uint8]
    """(num_rows, bytes per row), memory-mapped."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A memory-mapped GGUF file. Strings inside arrays stay bytes, because most of them are never read."""

    path: Path
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]
    fingerprint: str


def open_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file and map the rest; raises `BrokenModel` or `UnsupportedModel`."""
    content = _map(path)
    cursor = _Cursor(path, content)
    try:
        (version,) = cursor.unpack("<I")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{path} is GGUF version {version}; expected one of {VERSIONS}, in little-endian order.",
                version=version,
            )
        num_tensors, num_values = cursor.unpack("<QQ")
        metadata = cursor.table(num_values)
        entries = cursor.directory(num_tensors)
    except (struct.error, OverflowError) as exc:
        raise cursor.broken("ends in the middle of a value") from exc
    except UnicodeDecodeError as exc:
        raise cursor.broken("contains a string that is not UTF-8") from exc
    header = content[: cursor.position]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise cursor.broken(f"has general.alignment {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    mapped = np.frombuffer(content, dtype=np.uint8)
    tensors = {name: _place(path, mapped, start, name, entry) for name, entry in entries.items()}
    stat = path.stat()
    digest = hashlib.blake2b(f"{version} {stat.st_size} {stat.st_mtime_ns}".encode(), digest_size=16)
    digest.update(header)
    return GgufFile(path, metadata, tensors, digest.hexdigest())


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as exc:
        raise BrokenModel(f"{path} cannot be read: {exc.strerror or exc}.", path=str(path)) from exc
    raise BrokenModel(f"{path} is not a GGUF file (its first bytes are not 'GGUF').", path=str(path))


def _place(path: Path, content: npt.NDArray[np.uint8], start: int, name: str, entry: _Entry) -> GgufTensor:
    shape, type_id, offset = entry
    num_columns, num_rows = (shape[0], 1) if shape else (1, 1)
    for extent in shape[1:]:
        num_rows *= extent
    if type_id not in BLOCKS:
        raise UnsupportedModel(
            f"{path}: tensor {name} has type {type_id}, which is not known; expected one of ggml's types up to "
            f"{max(BLOCKS)}. Quantize the model again to such a type, for example Q4_K_M.",
            tensor=name,
        )
    values, num_bytes = BLOCKS[type_id]
    if min(num_columns, num_rows) < 1 or num_columns % values:
        raise BrokenModel(f"{path}: tensor {name} has shape {shape}, which its type cannot have.", tensor=name)
    length = num_rows * (num_columns // values) * num_bytes
    first, last = start + offset, start + offset + length
    if last > content.size:
        raise BrokenModel(
            f"{path} is truncated: tensor {name} ends at byte {last}, the file has {content.size}. Download it again.",
            tensor=name,
        )
    return GgufTensor(name, type_id, num_rows, num_columns, content[first:last].reshape(num_rows, -1))


class _Cursor:
    """Reads consecutive values; error messages name its position."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.position = len(MAGIC)
        self._content = content

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._content, self.position)
        self.position += struct.calcsize(layout)
        return values

    def table(self, num_values: int) -> dict[str, object]:
        self._expect(num_values, 12)
        values: dict[str, object] = {}
        for _ in range(num_values):
            key = self._string().decode()
            if key in values:
                raise self.broken(f"has the key {key} twice")
            (kind,) = self.unpack("<I")
            values[key] = self._value(kind)
        return values

    def directory(self, num_tensors: int) -> dict[str, _Entry]:
        self._expect(num_tensors, 24)
        entries: dict[str, _Entry] = {}
        for _ in range(num_tensors):
            name = self._string().decode()
            if name in entries:
                raise self.broken(f"has the tensor {name} twice")
            (num_dimensions,) = self.unpack("<I")
            if num_dimensions > MAX_DIMENSIONS:
                raise self.broken(f"gives tensor {name} {num_dimensions} dimensions")
            shape = self.unpack(f"<{num_dimensions}Q")
            type_id, offset = self.unpack("<IQ")
            entries[name] = (shape, type_id, offset)
        return entries

    def broken(self, problem: str) -> BrokenModel:
        return BrokenModel(
            f"{self.path} {problem} (near byte {self.position}). Download it again.", path=str(self.path)
        )

    def _value(self, kind: int, depth: int = 0) -> object:
        if kind == STRING:
            return self._string().decode()
        if kind == ARRAY:
            return self._array(depth)
        if kind not in _SCALARS:
            raise self.broken(f"has a value of unknown type {kind}")
        value = self._numbers(kind, 1)[0].item()
        return bool(value) if kind == BOOL else value

    def _array(self, depth: int) -> object:
        kind, length = self.unpack("<IQ")
        if kind == STRING:
            return self._strings(length)
        if kind == ARRAY:
            if depth >= _MAX_NESTING:
                raise self.broken("nests arrays too deeply")
            self._expect(length, 12)
            return [self._array(depth + 1) for _ in range(length)]
        if kind not in _SCALARS:
            raise self.broken(f"has an array of unknown type {kind}")
        return self._numbers(kind, length)

    def _numbers(self, kind: int, length: int) -> npt.NDArray[np.generic]:
        dtype = np.dtype(_SCALARS[kind])
        self._expect(length, dtype.itemsize)
        values = np.frombuffer(self._content, dtype, length, self.position)
        self.position += length * dtype.itemsize
        return values

    def _string(self) -> bytes:
        (length,) = self.unpack("<Q")
        self._expect(length, 1)
        value = self._content[self.position : self.position + length]
        self.position += length
        return value

    def _strings(self, length: int) -> list[bytes]:
        """Read an array of strings; local names, because a vocabulary takes a hundred thousand iterations."""
        self._expect(length, 8)
        content, position = self._content, self.position
        read_length = struct.Struct("<Q").unpack_from
        strings: list[bytes] = []
        append = strings.append
        for _ in range(length):
            start = position + 8
            position = start + read_length(content, position)[0]
            append(content[start:position])
        self.position = position
        self._expect(0, 1)
        return strings

    def _expect(self, count: int, item_bytes: int) -> None:
        if self.position + count * item_bytes > len(self._content):
            raise self.broken(f"is truncated: {count} items do not fit into the rest of the file")


_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_COUNT: Final = "split.count"
_NUMBER: Final = "split.no"
_NUM_TENSORS: Final = "split.tensors.count"


def split_parts(path: Path) -> list[Path]:
    """Return the paths of all parts that belong to the name of one; the file alone if its name is not of that form."""
    match = _PART.fullmatch(path.name)
    count = int(match[3]) if match else 0
    if match is None or not 0 < int(match[2]) <= count:
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def open_all_parts(path: Path) -> GgufFile:
    """Open a GGUF file, with all other parts if it is one of several; raises as `open_gguf`, also if one is missing."""
    file = open_gguf(path)
    count = Fields(file.metadata, str(path)).whole(_COUNT, 1, minimum=0)
    if count <= 1:
        return file
    paths = split_parts(path)
    if len(paths) != count:
        raise BrokenModel(
            f"{path} is a part of a GGUF file in {count} parts; "
            f"expected a name that ends in -00001-of-{count:05}.gguf, as it was downloaded.",
            path=str(path),
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise BrokenModel(
            f"{path.parent} has {len(missing)} of {count} parts of {path.name} missing: {missing[0]}. "
            "Download all parts into one folder.",
            path=str(path),
        )
    return _joined([open_gguf(part) for part in paths])


def _joined(parts: list[GgufFile]) -> GgufFile:
    tensors: dict[str, GgufTensor] = {}
    digest = hashlib.blake2b(digest_size=16)
    for number, part in enumerate(parts):
        fields = Fields(part.metadata, str(part.path))
        found, count = fields.whole(_NUMBER, minimum=0), fields.whole(_COUNT)
        if (found, count) != (number, len(parts)):
            raise BrokenModel(
                f"{part.path} is part {found} of {count}; "
                f"expected part {number} (counted from 0) of {len(parts)}. Download it again.",
                path=str(part.path),
            )
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise BrokenModel(f"{part.path} has the tensor {min(twice)}, which another part has too.")
        tensors |= part.tensors
        digest.update(part.fingerprint.encode())
    expected = Fields(parts[0].metadata, str(parts[0].path)).whole(_NUM_TENSORS, len(tensors), minimum=0)
    if expected != len(tensors):
        raise BrokenModel(f"{parts[0].path}: all parts have {len(tensors)} tensors; expected {expected}.")
    return replace(parts[0], tensors=tensors, fingerprint=digest.hexdigest())
