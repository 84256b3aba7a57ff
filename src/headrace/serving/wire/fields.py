"""
Treatment of the fields that a request struct lacks, refused or without effect; conversions of sampling parameters.

A field that would change the answer and is not applied is an error, never ignored. Fields without effect, and unknown
ones, are named in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.constraints import ConstraintFields
from headrace.serving.wire.framing import raw_fields, shortened_names

_decode = msgspec.json.Decoder().decode
_MEANS_NOTHING: tuple[object, ...] = (None, False, [], {}, "")
"""Values that leave an optional feature off."""

LEAVE_IT_OUT = "Leave it out."
_LONGEST_NEUTRAL_BYTES = 64
"""Longer values are not neutral; they may be nested too deep to decode."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is refused because it is not supported."""

    reason: str
    advice: str = LEAVE_IT_OUT
    neutral: object = field(default=None, kw_only=True)
    """The value, besides null, false and empty ones, that asks for the default behaviour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The fields of one JSON object in a request."""

    applied: frozenset[str]
    refused: Mapping[str, Refused] = field(default_factory=dict)
    no_effect: frozenset[str] = frozenset()
    """Accepted fields: they concern tracing, routing, caching or speed, or belong to a refused field."""

    def check(self, body: bytes | msgspec.Raw, *, prefix: str = "") -> tuple[str, ...]:
        """
        Return the names in the object that have no effect, for the log.

        Raises:
            InvalidRequest: a refused field has a value that matters.
        """
        others = {name: raw for name, raw in raw_fields(body).items() if name not in self.applied}
        for name, refused in self.refused.items():
            if name in others and _matters(others[name], refused):
                param = f"{prefix}{name}"
                text = f"'{param}' is not supported: {refused.reason}. {refused.advice}"
                raise InvalidRequest(text, param=param)
        return shortened_names(f"{prefix}{name}" for name in others if name not in self.refused)


def check_nested(
    body: bytes, body_fields: FieldTable, nested_fields: FieldTable, *, name: str = "parameters"
) -> tuple[str, ...]:
    """Check a body with nested parameters, as `FieldTable.check`; return all names without effect."""
    ignored = body_fields.check(body)
    nested = raw_fields(body).get(name)
    return ignored if nested is None else (*ignored, *nested_fields.check(nested, prefix=f"{name}."))


def struct_fields(*structs: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(name for struct in structs for name in struct.__struct_encode_fields__)


def _matters(raw: msgspec.Raw, refused: Refused) -> bool:
    if len(bytes(raw)) > _LONGEST_NEUTRAL_BYTES:
        return True
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):  # it was skipped before, and strings in it were not checked
        return True
    if any(type(value) is type(nothing) and value == nothing for nothing in _MEANS_NOTHING):
        return False
    return refused.neutral is None or value != refused.neutral


MISPLACED_CONSTRAINTS: Mapping[str, Refused] = {
    name: Refused("it would be ignored at this level", "Move it to 'parameters'.")
    for name in struct_fields(ConstraintFields)
}
"""Constraints at the top level of a body that has nested `parameters`."""


class _Section(NamedTuple):
    refused: dict[str, Refused]
    no_effect: set[str]


def _read_sections(text: str) -> dict[str, _Section]:
    """Return the sections of a text as `fields.txt`, which describes its format."""
    sections: dict[str, _Section] = {}
    section = _Section({}, set())
    for line in text.replace("\n    ", " ").splitlines():
        kind, _, rest = line.partition(" ")
        if line.startswith("["):
            section = sections[line.strip("[]")] = _Section({}, set())
        elif kind == "+":
            section.refused.update(sections[rest].refused)
            section.no_effect.update(sections[rest].no_effect)
        elif kind == "!":
            del section.refused[rest]
        elif kind == "~":
            section.no_effect.update(rest.split())
        elif line and kind != "#":
            left, _, right = line.partition(": ")
            names, _, neutral = left.partition(" = ")
            reason, _, advice = right.partition(" | ")
            refused = Refused(reason, advice or LEAVE_IT_OUT, neutral=_decode(neutral) if neutral else None)
            section.refused.update(dict.fromkeys(names.split(), refused))
    return sections


_SECTIONS: Final = _read_sections(Path(__file__).with_name("fields.txt").read_text(encoding="utf-8"))


def field_table(section: str, *structs: type[msgspec.Struct]) -> FieldTable:
    """Return the treatment of an object's fields: those of the structs, and those in a section of `fields.txt`."""
    refused, no_effect = _SECTIONS[section]
    applied = struct_fields(*structs) - refused.keys() - no_effect
    return FieldTable(applied=applied, refused=refused, no_effect=frozenset(no_effect))


def body_table(struct: type[msgspec.Struct]) -> FieldTable:
    """Return the treatment of the fields of a body that has nested `parameters`."""
    return FieldTable(applied=struct_fields(struct), refused=MISPLACED_CONSTRAINTS)


Number = TypeVar("Number", int, float)

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them would overflow. Source: vLLM `_SAMPLING_EPS`."""

LARGEST_SEED = 2**64 - 1
LARGEST_COUNT = 2**31 - 1
"""Larger values of top-k and other counts have the same effect."""


def effective_temperature(temperature: float) -> float:
    """Return the temperature, or 0 (greedy) if it is too low to divide by."""
    return 0.0 if temperature < GREEDY_BELOW else temperature


def clamp_count(value: int) -> int:
    """Return a count that fits into 32 bits."""
    return min(value, LARGEST_COUNT)


def first_given(given: Number | None, default: Number | None, last: Number) -> Number:
    """Return the request's value, else the model's default, else `last`."""
    if given is not None:
        return given
    return last if default is None else default
