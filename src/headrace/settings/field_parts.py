"""Merges the parts of a setting that is a JSON object, of which several names of other servers set some keys."""

import json

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
        try:
            part = meaning.convert(raw)
        except ValueError as error:
            raise SettingsError(f"{name} is {raw!r}; expected {error}.", name=name) from None
        known = self._values.setdefault(meaning.field, {})
        new = {key: value for key, value in part.items() if key not in known}
        if new:
            known |= new
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
