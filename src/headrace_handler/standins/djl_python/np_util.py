"""DJL's NDList: arrays as bytes, for the content type `tensor/ndlist`."""

import struct
from typing import Any

from headrace_handler.arrays import checked_array, npz_to_arrays
from headrace_handler.client_data import InvalidBody

_MAGIC = "NDAR"
_VERSION = 3
_ZIP = b"PK"
_KINDS = frozenset("biufc")
"""Kinds of dtypes: booleans, integers, floating-point and complex numbers."""


def to_nd_list(np_list: Any) -> bytearray:
    """Encode arrays. Raises `ValueError`: an array has a type that an NDList has no name for, such as `object`."""
    arrays = np_list if isinstance(np_list, list) else [np_list]
    encoded = bytearray(struct.pack(">i", len(arrays)))
    for array in arrays:
        _write_array(encoded, array)
    return encoded


def _write_array(encoded: bytearray, array: Any) -> None:
    if array.dtype.kind not in _KINDS:
        raise ValueError(f"The array's dtype is {array.dtype}; expected numbers or booleans.")
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes("C")
    encoded += _text(_MAGIC) + struct.pack(">i", _VERSION)
    encoded.append(0)  # no name follows
    encoded += _text("default") + _text(array.dtype.name.upper())
    encoded += struct.pack(f">i{array.ndim}q", array.ndim, *array.shape)
    encoded += struct.pack(">i", array.ndim) + "?".encode("utf-16-be") * array.ndim  # the layout of the axes
    encoded += b"<" + struct.pack(">i", len(data)) + data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def from_nd_list(encoded: Any) -> list[Any]:
    """Decode the arrays of an NDList, or of an npz. Raises `ValueError`: the bytes are neither."""
    if bytes(encoded[:2]) == _ZIP:
        return from_npz(encoded)
    reader = _Reader(memoryview(encoded))
    try:
        return [_read_array(reader) for _ in range(reader.number(">i"))]
    except (struct.error, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"The bytes are not an NDList: {error}.") from error


def from_npz(encoded: Any) -> list[Any]:
    return list(npz_to_arrays(encoded).values())


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def take(self, length: int) -> memoryview:
        if not 0 <= length <= len(self.data) - self.position:
            raise struct.error(f"{length} bytes expected, {len(self.data) - self.position} left")
        self.position += length
        return self.data[self.position - length : self.position]

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        return str(self.take(self.number(">h")), "utf-8")


def _read_array(reader: _Reader) -> Any:
    import numpy as np

    magic = reader.text()
    if magic != _MAGIC:
        raise AssertionError(f"magic number is not NDAR, actual {magic}")
    version = reader.number(">i")
    if version != _VERSION:
        raise AssertionError(f"require version {_VERSION}, actual {version}")
    if reader.number(">b") == 1:
        reader.text()  # the name
    reader.text()  # the sparse format
    dtype = _dtype(reader.text())
    shape = tuple(reader.number(">q") for _ in range(reader.number(">i")))
    for _ in range(reader.number(">i")):
        reader.number(">h")  # the layout of an axis
    order = chr(reader.number(">B"))
    data = reader.take(reader.number(">i"))
    try:
        array = np.ndarray(shape, dtype.newbyteorder("<" if order == "<" else ">"), data)
    except ValueError as error:
        raise InvalidBody(f"The array cannot be read: {error}.") from error
    return checked_array(array, len(data))


def _dtype(name: str) -> Any:
    """
    Return a type of numbers by its name.

    Raises `InvalidBody`: another type: numpy would take the bytes of objects for addresses of its memory.
    """
    import numpy as np

    codes = np.typecodes
    kinds = {dtype.name: dtype for dtype in map(np.dtype, "?" + codes["AllInteger"] + codes["AllFloat"])}
    if name.lower() not in kinds:
        raise InvalidBody(f"The array's dtype is {name[:40]!r}; expected numbers or booleans.")
    return kinds[name.lower()]
