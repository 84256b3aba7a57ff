"""
Typed access to the values of a `config.json` or of GGUF metadata.

Every getter names the key and the file that are wrong, so that a broken checkpoint gives one clear error.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel

_MAX_NUMBER: Final = 1e15
_LEAST_POSITIVE: Final = 1e-30
_MAX_FILE_BYTES: Final = 16 << 20
"""Ten times the largest config known. Decoded JSON takes up to 20 times its bytes."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The named values of a file. A key with the value None counts as absent, as in Hugging Face configs."""

    values: Mapping[str, object]
    source: str
    """The origin of the values for error messages, e.g. the path of the file."""

    def with_defaults(self, defaults: Mapping[str, object]) -> "Fields":
        """Return the values, and those of `defaults` whose key is absent."""
        present = {key: value for key, value in self.values.items() if value is not None or key not in defaults}
        return Fields({**defaults, **present}, self.source)

    def renamed(self, names: Mapping[str, str]) -> "Fields":
        """Return the values, also under the names that are read: `names` maps each name to the key in the file."""
        others = {name: self.values[other] for name, other in names.items() if other in self.values}
        return Fields({**others, **self.values}, self.source)

    def without(self, *keys: str) -> "Fields":
        return Fields({key: value for key, value in self.values.items() if key not in keys}, self.source)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Return an integer of at least `minimum`, small enough that products of sizes do not overflow."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._wrong(key, value, f"a whole number of at least {minimum}")
        if value > _MAX_NUMBER:
            raise self._wrong(key, value, f"a whole number of at most {_MAX_NUMBER:g}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number whose square and products fit a float."""
        value = self._get(key, default)
        if not _is_number(value):
            raise self._wrong(key, value, f"a number of at most {_MAX_NUMBER:g}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value < _LEAST_POSITIVE:
            raise self._wrong(
                key, value, f"a number of at least {_LEAST_POSITIVE:g}" if value > 0 else "a number above 0"
            )
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty when absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers, which is an array in GGUF metadata; empty when absent."""
        value = self._get(key, [])
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(value, list) or not all(_is_number(item) for item in value):
            raise self._wrong(key, value, "a list of numbers")
        return tuple(float(item) for item in value)

    def wholes(self, key: str, count: int, *, minimum: int = 1) -> tuple[int, ...]:
        """Return a whole number for each of `count` layers, of which a file has a list, or one for all of them."""
        value = self._get(key, None)
        value = value.tolist() if isinstance(value, np.ndarray) else value
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise self._wrong(key, value, f"a whole number for each of the {count} layers")
        return tuple(Fields({key: item}, self.source).whole(key, minimum=minimum) for item in values)

    def sub(self, key: str) -> "Fields":
        """Return the values of a nested object; empty when absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Fields(value, f"{self.source}, {key}")

    def refuse(self, key: str, part: str, *, unless: tuple[object, ...] = ()) -> None:
        """Raise `UnsupportedModel` if the key has a value that is not in `unless`."""
        value = self.values.get(key)
        if value is not None and not any(type(value) is type(fine) and value == fine for fine in unless):
            raise UnsupportedModel(
                f"{self.source}: {part} ({key} = {value!r:.200}) is not supported.", key=key, value=value
            )

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise BrokenModel(f"{self.source} has no {key}, which is required.", key=key)
            return default
        return value

    def _wrong(self, key: str, value: object, expected: str) -> BrokenModel:
        return BrokenModel(f"{self.source}: {key} is {value!r:.200}; expected {expected}.", key=key)


def read_whole(path: Path, *, max_bytes: int = _MAX_FILE_BYTES) -> bytes:
    """Return the content of a file of a model. Raises `BrokenModel`: it is larger, or no file; `OSError`."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise BrokenModel(f"{path} is not a file; expected one of at most {max_bytes} bytes.", path=str(path))
    if found.st_size > max_bytes:
        raise BrokenModel(f"{path} has {found.st_size} bytes; expected at most {max_bytes}.", path=str(path))
    return path.read_bytes()


def json_fields(content: str | bytes, source: str) -> Fields:
    """Return the object in the content of a JSON file; raises `BrokenModel` if there is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise BrokenModel(f"{source} is not valid JSON: {exc}.", path=source) from exc
    if not isinstance(value, dict):
        raise BrokenModel(f"{source} must contain a JSON object.", path=source)
    return Fields(value, source)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER
