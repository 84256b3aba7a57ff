"""A client's JSON schema as a document: its limits and references."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

MAX_DEPTH = 100
"""Levels of nesting; the compiled schema has a few more, and its parser supports 128."""
MAX_SUBSCHEMAS = 3000
"""Compile time is quadratic: 0.6 s for 2,000 properties, 20 s for 10,000."""
MAX_VALUES = 100_000
"""Entries of all lists and objects together."""
MAX_PLACE_CHARACTERS = 20_000_000
"""Length of the pointers to all values together: each has the names of all objects around it."""

Schema = dict[str, Any] | bool


class SchemaError(ValueError):
    """A schema that cannot be enforced; the message names the keyword and its place, not the field."""


@dataclass(frozen=True, slots=True)
class Member:
    """A subschema and its place in the document, as a JSON pointer."""

    schema: Any
    place: str

    def child(self, *keys: str | int) -> "Member":
        """Return the subschema below, by keys that exist."""
        schema, place = self.schema, self.place
        for key in keys:
            schema, place = schema[key], f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}"
        return Member(schema, place)


class SchemaDocument:
    """A whole schema, in which references are resolved."""

    def __init__(self, text: str) -> None:
        self.root = _parse(text)
        self._anchors: dict[str, Member] | None = None

    def resolve(self, reference: object, place: str) -> Member:
        """Return the target of a `$ref`; raise `SchemaError` if it is outside of the document, or nothing."""
        if not isinstance(reference, str):
            raise SchemaError(f"`$ref` at {place} is {show(reference)}; expected a string.")
        base = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        local = reference.removeprefix(base) if isinstance(base, str) and reference.startswith(base) else reference
        if local in ("", "#", "#/"):
            return Member(self.root, "#")
        if local.startswith("#/"):
            return self._follow(local, reference, place)
        member = self._anchored().get(local)
        if member is None:
            raise SchemaError(
                f"`$ref` at {place} is {show(reference)}, which is not in this document; "
                "expected a reference such as #/$defs/name."
            )
        return member

    def _follow(self, local: str, reference: str, place: str) -> Member:
        member = Member(self.root, "#")
        for part in local[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = member.schema
            if isinstance(found, dict) and key in found:
                member = member.child(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                member = member.child(int(key))
            else:
                raise SchemaError(f"`$ref` at {place} is {show(reference)}, but there is nothing at that place.")
        return member

    def _anchored(self) -> dict[str, Member]:
        if self._anchors is None:
            self._anchors = {}
            for member in _walk(self.root):
                for keyword, prefix in (("$anchor", "#"), ("$id", ""), ("id", "")):
                    name = member.schema.get(keyword)
                    if isinstance(name, str):
                        self._anchors.setdefault(prefix + name, member)
        return self._anchors


def show(value: object) -> str:
    """Return a value shortened for an error message."""
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()  # lone surrogates
    return text if len(text) <= 80 else text[:77] + "..."


def _parse(text: str) -> Schema:
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(f"It is not valid JSON: {reason}.") from error
    if not isinstance(root, dict | bool):
        raise SchemaError(f"It is {show(root)}; expected a JSON object.")
    _check_size(root)
    return root


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _check_size(root: Schema) -> None:
    level: list[Any] = [root]
    num_values = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, float) and not math.isfinite(value):
                raise SchemaError("It has a number that is too large.")
        num_values += len(below)
        if num_values > MAX_VALUES:
            raise SchemaError(f"It has more than {MAX_VALUES} values. Use a smaller schema.")
        if not below:
            return
        level = below
    raise SchemaError(f"It is nested deeper than {MAX_DEPTH} levels. Use `$defs` and `$ref` to make it flatter.")


def _walk(root: Schema) -> Iterator[Member]:
    """Yield all objects of a document, schemas or not; raise `SchemaError` if their pointers together are too long."""
    pending = [Member(root, "#")]
    num_characters = 0
    while pending:
        member = pending.pop()
        if isinstance(member.schema, dict):
            yield member
        elif not isinstance(member.schema, list):
            continue
        num_characters += len(member.schema) * len(member.place)
        if num_characters > MAX_PLACE_CHARACTERS:
            raise SchemaError("It has names that are too long for so many values. Use shorter ones.")
        keys = member.schema if isinstance(member.schema, dict) else range(len(member.schema))
        pending += [member.child(key) for key in keys]
