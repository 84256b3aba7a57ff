"""The request that a handler gets."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_handler.client_data import decode_text, open_image

from .np_util import from_nd_list, from_npz

_INDEX = slice(6, 9)
_NAME = slice(10, None)
"""The parts of a key of a batch, `batch_007.data` or `batch_007_data`."""
_MAX_BATCH_SIZE = 1000
"""The index in a key has three digits."""


class PairList:
    """Keys with values in the order in which they were added; a key may be None or occur more than once."""

    def __init__(
        self,
        keys: list[Any] | None = None,
        values: list[Any] | None = None,
        pair_list: Sequence[tuple[Any, Any]] | None = None,
        pair_map: Mapping[Any, Any] | None = None,
    ) -> None:
        if keys and values and len(keys) != len(values):
            raise ValueError("key value size mismatch.")
        pairs = list(pair_list or (pair_map or {}).items())
        self.keys: list[Any] = keys if keys and values else [key for key, _ in pairs]
        self.values: list[Any] = values if keys and values else [value for _, value in pairs]

    def __str__(self) -> str:
        return str(list(zip(self.keys, self.values, strict=True)))

    def add(
        self, key: Any = None, value: Any = None, index: int | None = None, pair: tuple[Any, Any] | None = None
    ) -> None:
        """Append or insert a pair; a value of None is dropped."""
        if pair is not None and (index is None or value is None):
            key, value = pair
            index = None
        if value is None:
            return
        at = len(self.keys) if index is None else index
        self.keys.insert(at, key)
        self.values.insert(at, value)

    def add_all(self, other: "PairList | None") -> None:
        if other is not None:
            self.keys.extend(other.get_keys())
            self.values.extend(other.get_values())

    def size(self) -> int:
        return len(self.keys)

    def is_empty(self) -> bool:
        return not self.keys

    def contains(self, key: Any) -> bool:
        return key in self.keys

    def get(self, key: Any) -> Any:
        """Return the first value of a key; None if it is absent."""
        return self.values[self.keys.index(key)] if key in self.keys else None

    def key_at(self, index: int) -> Any:
        return self.keys[index]

    def value_at(self, index: int) -> Any:
        return self.values[index]

    def get_keys(self) -> list[Any]:
        return self.keys

    def get_values(self) -> list[Any]:
        return self.values


class Input:
    """
    A request, or a batch of them; without content in the call that lets the handler load its model.

    Values of the content are `bytearray`s; of the properties, which are the request's headers, strings.
    """

    def __init__(self) -> None:
        self.function_name: str | None = None
        self.properties: dict[str, Any] = {}
        self.content = PairList()

    def __str__(self) -> str:
        contents = (f"\n{key}: {self.get_data(key)}" for key in self.content.get_keys())
        return f"properties: {self.properties}" + "".join(contents)

    def is_empty(self) -> bool:
        return self.content.is_empty()

    def is_batch(self) -> bool:
        return "batch_size" in self.properties

    def get_batch_size(self) -> int:
        """Return the number of requests. Raises `ValueError`: a client's header `batch_size` is no such number."""
        size = int(self.properties.get("batch_size", "1"))
        if not 1 <= size <= _MAX_BATCH_SIZE:
            raise ValueError(f"batch_size is {size}; expected 1 to {_MAX_BATCH_SIZE}. Send no header of that name.")
        return size

    def get_batches(self) -> list["Input"]:
        """Return the requests of a batch; of a single request, the request itself."""
        if not self.is_batch():
            return [self]
        batch = [Input() for _ in range(self.get_batch_size())]
        for key, value in self.properties.items():
            if key.startswith("batch_") and key != "batch_size":
                batch[int(key[_INDEX])].properties[key[_NAME]] = value
        for key, value in zip(self.content.get_keys(), self.content.get_values(), strict=True):
            batch[int(key[_INDEX])].content.add(key[_NAME], value)
        return batch

    def get_function_name(self) -> str | None:
        return self.function_name

    def get_properties(self) -> dict[str, Any]:
        """Return the headers under the names that the client sent."""
        return self.properties

    def get_property(self, key: str) -> Any:
        """Return a header whatever the case of its name; None if it is absent."""
        return next((value for name, value in self.properties.items() if name.lower() == key.lower()), None)

    def get_content(self) -> PairList:
        return self.content

    def contains_key(self, key: str) -> bool:
        return self.content.get(key) is not None

    def get_data(self, key: str | None = None) -> Any:
        """Return the content as its `Content-Type` says."""
        content_type = self.get_property("content-type") or ""
        if content_type == "tensor/ndlist":
            return self.get_as_numpy(key)
        if content_type == "tensor/npz":
            return self.get_as_npz(key)
        if content_type.startswith("application/json"):
            return self.get_as_json(key)
        if content_type.startswith("text/"):
            return self.get_as_string(key)
        if content_type.startswith("image/"):
            return self.get_as_image(key)
        return self.get_as_bytes(key)

    def get_as_bytes(self, key: str | None = None) -> Any:
        """
        Return a content; without a key `data`, else the first one. None if there is no content.

        Raises `KeyError`: there is content, but not under `key`.
        """
        if self.content.is_empty():
            return None
        if key:
            value = self.content.get(key)
            if value is None:
                raise KeyError(f"requested data for key:{key} is not found!")
            return value
        data = self.content.get("data")
        return self.content.value_at(0) if data is None else data

    def get_as_string(self, key: str | None = None) -> str:
        """Return text in the character set of the `Content-Type`."""
        return decode_text(self.get_as_bytes(key), self.get_property("content-type"))

    def get_as_json(self, key: str | None = None) -> Any:
        return json.loads(self.get_as_string(key))

    def get_as_image(self, key: str | None = None) -> Any:
        return open_image(self.get_as_bytes(key))

    def get_as_numpy(self, key: str | None = None) -> list[Any]:
        """Return the arrays of an NDList or npz."""
        return from_nd_list(self.get_as_bytes(key))

    def get_as_npz(self, key: str | None = None) -> list[Any]:
        return from_npz(self.get_as_bytes(key))

    def get_as_csv(self, key: str | None = None) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.get_as_string(key))))
