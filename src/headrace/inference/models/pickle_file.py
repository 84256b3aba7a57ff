"""
Tensors of a file that `torch.save` wrote (`pytorch_model.bin`, `.pth`), memory-mapped and without running its code.

The file is a zip archive: `<name>/data.pkl` describes the tensors, `<name>/data/<key>` hold their numbers, stored.
A pickle is a program for a stack machine. Of its opcodes only those that `torch.save` writes for a state dict are
carried out, on plain values and on the few inert stand-ins below; every other opcode or name is refused.
Source: CPython `pickletools.py`; PyTorch `torch/_weights_only_unpickler.py`, `torch/serialization.py`,
`caffe2/serialize/inline_container.h`; APPNOTE.TXT (zip).
"""

import mmap
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.stored_tensor import ITEM_BYTES, StoredTensor, make_tensor

_Kind = TypeVar("_Kind")
_MAX_OPCODES: Final = 2_000_000
"""A state dict of 1,000 tensors takes about 40,000."""
_MAX_DIMENSIONS: Final = 8
_MAX_SIZE: Final = 1 << 48
_STORAGES: Final = MappingProxyType(
    {
        "FloatStorage": "F32",
        "HalfStorage": "F16",
        "BFloat16Storage": "BF16",
        "DoubleStorage": "F64",
        "LongStorage": "I64",
        "IntStorage": "I32",
        "ShortStorage": "I16",
        "CharStorage": "I8",
        "ByteStorage": "U8",
        "BoolStorage": "BOOL",
    }
)
_FUNCTIONS: Final = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_tensor_v2",
    }
)
_CONSTANTS: Final = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False})
_IMMEDIATE: Final = frozenset({"BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1"})
_TUPLES: Final = MappingProxyType({"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3})
_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_MAX_PROTOCOL: Final = 2


@dataclass(frozen=True, slots=True)
class Name:
    """A global name that the pickle refers to; one of `_FUNCTIONS`, or a storage."""

    text: str
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in an entry of the archive."""

    dtype: str
    key: str
    num_numbers: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def run_pickle(program: bytes, source: str) -> object:
    """
    Return the value that a pickle describes.

    Raises:
        BrokenModel: The program is malformed.
        UnsupportedModel: It has an opcode or a name that a state dict of tensors does not need.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of `pickletools`, for backslashes in names
            machine = _Machine(source)
            for count, (opcode, argument, _) in enumerate(pickletools.genops(program)):
                if count >= _MAX_OPCODES:
                    raise UnsupportedModel(
                        f"{source} has more than {_MAX_OPCODES} opcodes; expected a dict of tensors."
                    )
                if opcode.name == "STOP":
                    return machine.stack.pop()
                machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        raise BrokenModel(f"{source} is not a valid pickle: {exc!r:.200}. Download it again.") from exc
    raise BrokenModel(f"{source} ends without its STOP opcode. Download it again.")


class _Machine:
    """The stack, the memo and the marks of a pickle's program."""

    def __init__(self, source: str) -> None:
        self.stack: list[object] = []
        self._source = source
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def step(self, opcode: str, argument: object) -> None:
        if opcode in _IMMEDIATE:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _PUTS:
            self._memo[_whole(argument)] = self.stack[-1]
        elif opcode in _GETS:
            self.stack.append(self._memo[_whole(argument)])
        elif opcode in _TUPLES:
            self.stack.append(self._pop(_TUPLES[opcode]))
        elif opcode == "MARK":
            self._marks.append(len(self.stack))
        elif opcode == "TUPLE":
            self.stack.append(self._pop_to_mark())
        elif opcode in {"EMPTY_DICT", "EMPTY_LIST"}:
            self.stack.append({} if opcode == "EMPTY_DICT" else [])
        else:
            self._combine(opcode, argument)

    def _combine(self, opcode: str, argument: object) -> None:
        if opcode == "GLOBAL":
            self.stack.append(self._name(str(argument)))
        elif opcode == "BINPERSID":
            self.stack.append(_storage(self.stack.pop()))
        elif opcode == "REDUCE":
            function, arguments = self._pop(2)
            self.stack.append(_reduce(function, arguments))
        elif opcode == "BUILD":
            self._pop(1)  # attributes, such as the versions of a state dict
        elif opcode in {"SETITEM", "SETITEMS"}:
            self._set_items(self._pop(2) if opcode == "SETITEM" else self._pop_to_mark())
        elif opcode in {"APPEND", "APPENDS"}:
            items = self._pop(1) if opcode == "APPEND" else self._pop_to_mark()
            _expect(self.stack[-1], list).extend(items)
        elif opcode != "PROTO" or _whole(argument) > _MAX_PROTOCOL:
            raise UnsupportedModel(
                f"{self._source} has the pickle opcode {opcode} {argument if argument is not None else ''}; "
                "expected a dict of tensors, as torch.save writes it. Convert it to safetensors."
            )

    def _name(self, text: str) -> Name:
        module, _, name = text.partition(" ")
        if text in _FUNCTIONS:
            return Name(text)
        if module == "torch" and name in _STORAGES:
            return Name(text, _STORAGES[name])
        raise UnsupportedModel(
            f"{self._source} refers to {text.replace(' ', '.')!r:.200}; expected nothing but tensors. "
            "It is not loaded, because a pickle can run code. Convert it to safetensors where you trust it."
        )

    def _pop(self, count: int) -> tuple[object, ...]:
        first = len(self.stack) - count
        if first < (self._marks[-1] if self._marks else 0):
            raise ValueError("the stack is empty")
        items = tuple(self.stack[first:])
        del self.stack[first:]
        return items

    def _pop_to_mark(self) -> tuple[object, ...]:
        first = self._marks.pop()
        items = tuple(self.stack[first:])
        del self.stack[first:]
        return items

    def _set_items(self, items: tuple[object, ...]) -> None:
        target = _expect(self.stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Other keys may be tuples nested so deeply that their hash overflows the stack.
            if type(key) not in (str, int):
                raise ValueError(f"a key of type {type(key).__name__}")
            target[key] = value


def _expect(value: object, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_SIZE:
        raise ValueError("expected a whole number")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    sizes = _expect(value, tuple)
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor of {len(sizes)} dimensions")
    return tuple(_whole(size) for size in sizes)


def _storage(identity: object) -> Storage:
    kind, name, key, _, num_numbers = _expect(identity, tuple)
    if kind != "storage" or not _expect(name, Name).dtype:
        raise ValueError("a persistent id that is not a storage")
    return Storage(name.dtype, _expect(key, str), _whole(num_numbers))


def _reduce(function: object, arguments: object) -> object:
    text, values = _expect(function, Name).text, _expect(arguments, tuple)
    if text == "collections OrderedDict" and not values:
        return {}
    if text == "torch Size":
        return _sizes(values[0])
    if text == "torch._utils _rebuild_parameter":
        return _expect(values[0], PickledTensor)
    if text == "torch._utils _rebuild_tensor_v2":
        return PickledTensor(_expect(values[0], Storage), _whole(values[1]), _sizes(values[2]), _sizes(values[3]))
    raise ValueError(f"a call of {text}")


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
    entries = _entries(file, content)
    start, length = entries[_PROGRAM]
    if length > _MAX_PROGRAM_BYTES:
        raise UnsupportedModel(f"{file}: {_PROGRAM} has {length} bytes; expected at most {_MAX_PROGRAM_BYTES}.")
    if "byteorder" in entries:
        first, size = entries["byteorder"]
        if content[first : first + min(size, 16)] != b"little":
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
