"""Merges the parts of a setting that is a JSON object, of which several names of other servers set some keys."""

import json
from collections.abc import Mapping

from headrace.core.errors import SettingsError
from headrace.settings.container_meanings import FillsPart


class FieldParts:
    """The parts found so far; the first name to set a key counts."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, object]] = {}
        self._defaults: dict[str, dict[str, object]] = {}
        self._names: dict[str, list[str]] = {}

    def add(self, name: str, meaning: FillsPart, raw: str) -> dict[str, object]:
        """
        Add the keys that a name sets; return those that no earlier name has set.

        Raises:
            SettingsError: the text is not as expected.
        """
        part = read_part(name, meaning, raw)
        known = self._values.setdefault(meaning.field, {})
        new = _new_keys(part, known)
        if new:
            self._values[meaning.field] = _merged(known, new)
            self._defaults[meaning.field] = {**meaning.defaults, **self._defaults.get(meaning.field, {})}
            self._names.setdefault(meaning.field, []).append(name)
        return new

    def source(self, field: str) -> str:
        """Return the names that set a field."""
        return " and ".join(self._names.get(field, []))

    def merged(self) -> dict[str, tuple[str, str]]:
        """Return each field with the names that set it and its value as JSON."""
        return {
            field: (self.source(field), json.dumps({**self._defaults[field], **self._values[field]}))
            for field in self._names
        }


def read_part(name: str, meaning: FillsPart, raw: str) -> Mapping[str, object]:
    """
    Return the keys that a name sets.

    Raises:
        SettingsError: the text is not as expected.
    """
    try:
        return meaning.convert(raw)
    except ValueError as error:
        raise SettingsError(f"{name} is {raw!r}; expected {error}.", name=name) from None


def _new_keys(part: Mapping[str, object], known: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of a part that are not known yet, and those of objects inside it."""
    new: dict[str, object] = {}
    for key, value in part.items():
        earlier = known.get(key)
        if key not in known:
            new[key] = value
        elif isinstance(value, Mapping) and isinstance(earlier, Mapping) and (inner := _new_keys(value, earlier)):
            new[key] = inner
    return new


def _merged(known: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    merged = dict(known)
    for key, value in new.items():
        earlier = merged.get(key)
        if isinstance(value, Mapping) and isinstance(earlier, Mapping):
            merged[key] = _merged(earlier, value)
        else:
            merged[key] = value
    return merged
