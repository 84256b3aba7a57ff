"""The response that a handler returns."""

import datetime as dt
import io
import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .inputs import PairList
from .np_util import to_nd_list

logger = logging.getLogger(__name__)


class _Encoder(json.JSONEncoder):
    """Encodes dates and numpy's numbers and arrays, too."""

    def default(self, o: Any) -> Any:
        if isinstance(o, dt.datetime):
            return str(o)
        # numpy's scalars and arrays; no import, so that a handler without numpy needs none.
        if type(o).__module__ == "numpy" and hasattr(o, "tolist"):
            return o.tolist()
        return super().default(o)


def format_outputs(item: Any) -> bytearray:
    """Return an item of a stream as DJL does by default: a line of JSON with the member `outputs`."""
    return bytearray(json.dumps({"outputs": item}).encode() + b"\n")


class Output:
    """A response, or those of a batch under keys such as `batch_0.data`."""

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, Any] = {}
        self.content = PairList()
        self.stream_content: Iterator[Any] | None = None
        self.stream_output_formatter: Callable[[Any], Any] | None = None
        self.finalize_function: Callable[..., Any] | None = None
        self.finalize_args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        types = {key: f"type: {type(self.content.get(key))}" for key in self.content.get_keys()}
        shown = {"code": self.code, "message": self.message, "properties": self.properties, "content": types}
        return json.dumps(shown, indent=2)

    def set_code(self, code: int) -> "Output":
        self.code = code
        return self

    def set_message(self, message: str) -> "Output":
        self.message = message
        return self

    def error(self, error: str, code: int = 424, message: str = "invoke handler failure") -> "Output":
        """Make this an error; `error` tells the client what failed."""
        self.code = code
        self.message = message
        self.add_property("content-type", "application/json")
        return self.add_as_json({"code": code, "message": message, "error": error})

    def add_property(self, key: str, val: Any) -> "Output":
        self.properties[key] = val
        return self

    def get_properties(self) -> dict[str, Any]:
        return self.properties

    def get_property(self, key: str) -> Any:
        return self.properties.get(key)

    def add(self, value: Any, key: Any = None, batch_index: int | None = None) -> "Output":
        """Add content: text and bytes as they are, anything else as JSON."""
        if key is not None and not isinstance(key, str):
            logger.warning("Output key should be str type, got %s", type(key))
            key = str(key)
        if batch_index is not None:
            key = f"batch_{batch_index}.{key or ''}"
        self.content.add(key, encode_content(value))
        return self

    def add_as_json(self, val: Any, key: Any = None, batch_index: int | None = None) -> "Output":
        return self.add(_encode_json(val), key, batch_index)

    def add_as_string(self, val: str, key: Any = None, batch_index: int | None = None) -> "Output":
        return self.add(val, key, batch_index)

    def add_as_numpy(self, np_list: Any, key: Any = None, batch_index: int | None = None) -> "Output":
        return self.add(to_nd_list(np_list), key, batch_index)

    def add_as_npz(self, np_list: Any, key: Any = None, batch_index: int | None = None) -> "Output":
        import numpy as np

        file = io.BytesIO()
        np.savez(file, *np_list)
        return self.add(file.getvalue(), key, batch_index)

    def add_stream_content(
        self, stream_content: Iterator[Any], output_formatter: Callable[[Any], Any] | None = format_outputs
    ) -> "Output":
        """
        Answer with a stream: each item of the iterator is sent when it is produced.

        Args:
            stream_content: an iterator, such as a generator; `next` is called, so that a list fails.
            output_formatter: converts an item to text, bytes or JSON; None: the item is one already.
        """
        self.stream_content = stream_content
        self.stream_output_formatter = output_formatter
        return self

    @staticmethod
    def binary_encode(data: Mapping[str, Any]) -> bytearray:
        """Encode pairs of text, as asynchronous and rolling batch handlers answer."""
        encoded = bytearray(struct.pack(">h", len(data)))
        for key, value in data.items():
            Output.write_utf8(encoded, key)
            Output.write_utf8(encoded, str(value))
        return encoded

    @staticmethod
    def write_utf8(msg: bytearray, val: str | None) -> None:
        text = None if val is None else val.encode()
        msg += struct.pack(">i", -1 if text is None else len(text)) + (text or b"")

    def finalize(self, finalize_function: Callable[..., Any], *args: Any) -> "Output":
        """Set what is called once the response has been sent."""
        self.finalize_function = finalize_function
        self.finalize_args = args
        return self

    def execute_finalize(self) -> Any:
        return self.finalize_function(*self.finalize_args) if self.finalize_function else None


def encode_content(value: Any) -> bytearray:
    """Return text and bytes as they are, anything else as JSON."""
    if isinstance(value, str):
        return bytearray(value.encode())
    if isinstance(value, bytes | bytearray):
        return value if isinstance(value, bytearray) else bytearray(value)
    return _encode_json(value)


def _encode_json(value: Any) -> bytearray:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, cls=_Encoder, separators=(",", ":"))
    return bytearray(text.encode())
