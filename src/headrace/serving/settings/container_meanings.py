"""
Meanings of foreign settings: what a name sets, or why it has no effect.

A name sets a field (`Fills`) or a part of one (`FillsPart`), has no effect (`NoEffect`, with the reason), is refused
unless its value asks for the default behaviour (`Requires`), or is read by a library (`UsedElsewhere`). Its meaning may
differ between backends (`ForBackends`) and between hosts with and without a GPU (`OnGpu`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.core.errors import SettingsError

Converted = tuple[str | None, str]
"""The text for the field (None: leave the field unset) and a remark for the notice, which may be empty."""


@dataclass(frozen=True, slots=True)
class Fills:
    """The name sets a field of `ServerSettings`."""

    field: str
    convert: Callable[[str], Converted] = lambda raw: (raw, "")
    vllm: Callable[[str], Mapping[str, object]] | None = None
    """Returns the arguments of vLLM's engine that the text means, which count in place of the field if vLLM serves."""


@dataclass(frozen=True, slots=True)
class FillsPart:
    """The name sets some keys of a field that is a JSON object; several names may set keys of the same one."""

    field: str
    convert: Callable[[str], Mapping[str, object]]
    """Raises `ValueError` with what is expected."""
    defaults: Mapping[str, object]
    """Keys that no other name needs to set."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The name is accepted without effect; `quiet` values, which ask for the default behaviour, get no notice."""

    why: str
    quiet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requires:
    """The name is accepted with values that ask for the default behaviour; any other value stops the start."""

    values: tuple[str, ...]
    """In lower case."""
    why: str
    """A sentence that says what the server does, and what to do instead."""


@dataclass(frozen=True, slots=True)
class UsedElsewhere:
    """A library reads the name itself."""

    by: str


@dataclass(frozen=True, slots=True)
class ForBackends:
    """The name counts if one of some backends serves, and has no effect otherwise."""

    backends: tuple[str, ...]
    meaning: Fills | FillsPart
    otherwise: NoEffect


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The name has one meaning on a GPU and another on a CPU."""

    gpu: "Meaning"
    cpu: "Meaning"


Meaning = Fills | FillsPart | NoEffect | Requires | UsedElsewhere | ForBackends | OnGpu


def parts_of(meaning: Meaning) -> Iterator[Fills | FillsPart]:
    """Yield the fields that a name sets, on any host and for any backend."""
    match meaning:
        case OnGpu():
            yield from parts_of(meaning.gpu)
            yield from parts_of(meaning.cpu)
        case ForBackends():
            yield meaning.meaning
        case Fills() | FillsPart():
            yield meaning


def sets_model(meaning: Meaning) -> bool:
    return isinstance(meaning, Fills) and meaning.field == "model"


def by_value(rows: Mapping[str, str | Converted], expected: str = "") -> Callable[[str], Converted]:
    """
    Return a converter that looks up the value; its error for an unknown one is `expected`, or the list of values.

    Args:
        rows: spellings separated by spaces → the text for the field, if need be with a remark.
        expected: ends the sentence "expected …".
    """
    values = {spelling: value for spellings, value in rows.items() for spelling in spellings.split()}

    def convert(raw: str) -> Converted:
        converted = values.get(raw.lower())
        if converted is None:
            raise ValueError(expected or f"one of {', '.join(values)}")
        return (converted, "") if isinstance(converted, str) else converted

    return convert


class FieldParts:
    """The parts found so far of fields that are JSON objects; the first name to set a key counts."""

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
        known = self._values.setdefault(meaning.field, {})
        new = _new_keys(read_part(name, meaning, raw), known)
        if new:
            self._values[meaning.field] = _merged(known, new)
            self._defaults[meaning.field] = {**meaning.defaults, **self._defaults.get(meaning.field, {})}
            self._names.setdefault(meaning.field, []).append(name)
        return new

    def source(self, field: str) -> str:
        return " and ".join(self._names.get(field, []))

    def merged(self) -> dict[str, tuple[str, str]]:
        """Return each field with the names that set it and its value as JSON."""
        return {
            field: (self.source(field), json.dumps({**self._defaults[field], **self._values[field]}))
            for field in self._names
        }


def read_part(name: str, meaning: FillsPart, raw: str) -> Mapping[str, object]:
    """Return the keys that a name sets. Raises `SettingsError`: the text is not as expected."""
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
        both = isinstance(value, Mapping) and isinstance(earlier, Mapping)
        merged[key] = _merged(earlier, value) if both else value  # type: ignore[arg-type]
    return merged
