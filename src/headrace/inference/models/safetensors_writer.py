"""Write a safetensors file tensor by tensor, so that a model need not fit in memory. Source: the format's README."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import numpy as np
import numpy.typing as npt

from headrace.inference.models.weights import Encoding

FloatArray = npt.NDArray[np.float32]
_ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "I32": 4, "I64": 8}
_ALIGNMENT: Final = 8
STORED: Final = {Encoding.F32: "F32", Encoding.F16: "F16", Encoding.BF16: "BF16"}
"""The names of safetensors for plain encodings."""


class SafetensorsWriter:
    """
    A safetensors file that is written in the order of its plan.

    Raises OSError if the disk is full; the caller removes the partial file.
    """

    def __init__(self, path: Path, plan: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Open the file and write its header: dtype (`F32`, `I8` …) and shape of each tensor, in their order."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._sizes: dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in plan.items():
            self._sizes[name] = _ITEM_BYTES[dtype] * int(np.prod(shape))
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + self._sizes[name]]}
            end += self._sizes[name]
        self._pending = iter(self._sizes.items())
        self._file: IO[bytes] = path.open("xb")
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._file.write(len(text).to_bytes(_ALIGNMENT, "little") + text)

    def write(self, name: str, data: npt.NDArray[np.uint8]) -> None:
        assert next(self._pending) == (name, data.size), f"{name} is not the next tensor, or has another size"
        self._file.write(np.ascontiguousarray(data).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()
        assert kind is not None or next(self._pending, None) is None, "tensors are missing"


def encode_floats(values: FloatArray, encoding: Encoding) -> npt.NDArray[np.uint8]:
    """Encode values in a plain encoding, rounded to nearest even."""
    if encoding is Encoding.BF16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype("<u2").view(np.uint8)
    return np.ascontiguousarray(values, "<f2" if encoding is Encoding.F16 else "<f4").view(np.uint8)
