"""An ordered list of keys and values."""

from collections.abc import Mapping, Sequence
from typing import Any


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
