"""
The tensors of a safetensors file.

Source: https://huggingface.co/docs/safetensors (format).
"""

import json
import mmap
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel
from headrace.models.stored_tensor import StoredTensor, make_tensor

LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_MAX_DIMENSIONS: Final = 8
_MAX_LENGTH: Final = 1 << 63


def read_safetensors(file: Path, content: mmap.mmap) -> tuple[dict[str, StoredTensor], bytes]:
    """
    Return the tensors of a file, and the bytes that describe them.

    Raises:
        BrokenModel: The file is truncated or malformed.
    """
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
