"""
RecordIO files of SageMaker's `Record` messages: arrays with labels, in Protocol Buffers' wire format.

A `Record` maps names to tensors: field 1 features, field 2 label. A tensor is a float32 (field 2), float64 (3) or
int32 (7) message of packed values (1), and for a sparse row of packed keys (2) and the shape (3).
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAGIC = 0xCED7230A
_FEATURES, _LABEL = 1, 2
_VALUES, _KEYS, _SHAPE = 1, 2, 3
_FLOAT32, _FLOAT64, _INT32 = 2, 3, 7
_DTYPES = {_FLOAT32: "<f4", _FLOAT64: "<f8", _INT32: "<i4"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Tensor:
    values: Any
    keys: list[int] | None = None
    """Columns of the values; None: the row is dense."""
    num_columns: int | None = None


def read_records(data: bytes) -> Iterator[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]:
    """
    Yield features and labels of each record.

    Raises `ValueError`: the bytes are not RecordIO, are cut short, or hold no valid message.
    """
    at = 0
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError(f"Truncated record at offset {at}")
        magic, length = struct.unpack_from("<II", data, at)
        if magic != _MAGIC:
            raise ValueError(f"Invalid RecordIO magic at offset {at}")
        at += 8
        if at + length > len(data):
            raise ValueError(f"Truncated record at offset {at}")
        yield _read_record(data[at : at + length])
        at += length + -length % 4


def _read_record(message: bytes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    maps: dict[int, dict[str, Tensor]] = {_FEATURES: {}, _LABEL: {}}
    for number, entry in _fields(message):
        if number in maps:
            parts = dict(_fields(entry))
            maps[number][parts.get(1, b"").decode()] = _read_tensor(parts.get(2, b""))
    return maps[_FEATURES], maps[_LABEL]


def _read_tensor(message: bytes) -> Tensor:
    import numpy as np

    for number, tensor in _fields(message):
        if number not in _DTYPES:
            continue
        packed = defaultdict[int, bytearray](bytearray)
        for part, content in _fields(tensor):
            packed[part] += content
        if number == _INT32:  # varints of 64 bits: negative numbers are sign-extended
            integers = [value - (1 << 64) if value >> 63 else value for value in _varints(packed[_VALUES])]
            if any(not -(1 << 31) <= value < 1 << 31 for value in integers):
                raise ValueError("Integers of a record must have 32 bits")
            values = np.array(integers, dtype=np.int32)
        else:
            values = np.frombuffer(packed[_VALUES], dtype=_DTYPES[number])
        shape = list(_varints(packed[_SHAPE]))
        keys = list(_varints(packed[_KEYS]))
        if any(column >= 1 << 31 for column in (*shape, *keys)):
            raise ValueError("Columns of a record must have 31 bits")
        return Tensor(values, keys if keys or shape else None, shape[0] if shape else None)
    return Tensor(np.array([], dtype=np.float32))


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field; an unpacked number of a repeated field counts as packed."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == _VARINT:
            _, end = _varint(message, at)
        elif wire in {_FIXED32, _FIXED64}:
            end = at + (4 if wire == _FIXED32 else 8)
        elif wire == _BYTES:
            length, at = _varint(message, at)
            end = at + length
        else:
            raise ValueError(f"Wire type {wire} is not supported")
        if end > len(message):
            raise ValueError("Truncated message")
        yield tag >> 3, message[at:end]
        at = end


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("Truncated message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at


def _varints(data: bytes | bytearray) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def write_matrix(matrix: Any, labels: Any = None) -> bytes:
    """
    Return a record for each row of a dense or scipy sparse matrix.

    Raises `ValueError`: the matrix has not two axes, a label for each row, or a type of numbers that records hold.
    """
    if len(matrix.shape) != 2:
        raise ValueError("Array must be a Matrix")
    if labels is not None and labels.shape != (matrix.shape[0],):
        raise ValueError(f"Label shape {labels.shape} not compatible with array shape {matrix.shape}")
    rows = matrix.tocsr() if hasattr(matrix, "tocsr") else matrix
    records = []
    for index in range(matrix.shape[0]):
        row = rows[[index]] if hasattr(matrix, "tocsr") else rows[index]
        tensor = Tensor(row.data, row.indices.tolist(), matrix.shape[1]) if hasattr(matrix, "tocsr") else Tensor(row)
        label = {} if labels is None else {"values": Tensor(labels[index : index + 1])}
        records.append(write_record({"values": tensor}, label))
    return b"".join(records)


def write_record(features: Mapping[str, Tensor], label: Mapping[str, Tensor]) -> bytes:
    """Return one record with RecordIO's frame."""
    maps = ((_FEATURES, features), (_LABEL, label))
    message = b"".join(
        _field(number, _field(1, name.encode()) + _field(2, _write_tensor(tensor)))
        for number, tensors in maps
        for name, tensor in tensors.items()
    )
    return struct.pack("<II", _MAGIC, len(message)) + message + bytes(-len(message) % 4)


def _write_tensor(tensor: Tensor) -> bytes:
    import numpy as np

    values = np.asarray(tensor.values)
    kinds = {np.dtype("f4"): _FLOAT32, np.dtype("f8"): _FLOAT64, np.dtype("i4"): _INT32, np.dtype("i8"): _INT32}
    if values.dtype not in kinds:
        raise ValueError(f"Unsupported dtype {values.dtype} on array")
    number = kinds[values.dtype]
    if number == _INT32:
        packed = b"".join(_encode_varint(int(value) & 0xFFFFFFFFFFFFFFFF) for value in values)
    else:
        packed = values.astype(_DTYPES[number]).tobytes()
    message = _field(_VALUES, packed) if packed else b""
    if tensor.keys:
        message += _field(_KEYS, b"".join(map(_encode_varint, tensor.keys)))
    if tensor.num_columns is not None:
        message += _field(_SHAPE, _encode_varint(tensor.num_columns))
    return _field(number, message)


def _field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
