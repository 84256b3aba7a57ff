"""
The JSON of an argument that a model wrote as raw text, with the type that the schema of its function gives.

Strings are written without quotes, everything else as JSON; some templates write `True` and `{'a': None}` as Python
does. A text that cannot be a value of the schema's types is a string: nothing of it is lost, and the client's error
about its type reaches the model.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.serving.wire.framing import to_json
from headrace.serving.wire.openai.literals import python_json
from headrace.serving.wire.openai.tool_calls import UNREADABLE, refuse_repeated_keys

Parameters = Mapping[str, Mapping[str, object]]
"""The schemas of the arguments, by function."""
_ALL: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_PYTHON_NAMES: Final = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH: Final = 16
"""References and combinations in a row, which may lead in a circle."""
_INTEGER: Final = re.compile(r"-?\d+")


def argument_json(text: str, parameters: Mapping[str, object], name: str) -> str:
    """Return the JSON of the argument `name` of a function with these parameters, a JSON schema."""
    return value_json(text, member_schema(parameters, name), parameters)


def member_schema(schema: Any, name: str) -> Any:
    """Return the schema of a member of an object, or None."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def value_json(text: str, schema: Any, root: Mapping[str, object]) -> str:
    """Return the JSON of a text with the type that a schema gives; references in it are to `root`."""
    types = types_of(schema, root)
    if types == {"string"}:
        return to_json(text).decode()
    written = text.strip()
    if types != _ALL:
        written = _PYTHON_NAMES.get(written, written)
    kind = _type_of(written)
    if kind is None and "string" not in types and (converted := python_json(written)) is not None:
        kind, written = _type_of(converted), converted
    is_number = kind == "integer" and "number" in types
    is_text = kind is None or ("string" in types and (kind == "string" or not (is_number or kind in types)))
    return to_json(text).decode() if is_text else written


def _type_of(written: str) -> str | None:
    """Return the type of a JSON text; None: it is none."""
    try:
        refuse_repeated_keys(written)
        value = msgspec.json.decode(written)
    except UNREADABLE:
        return None
    return "integer" if _INTEGER.fullmatch(written) else _type_name(value)


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def types_of(schema: Any, root: Mapping[str, object]) -> frozenset[str]:
    """Return the types of the values that a schema allows; a schema that cannot be read allows all."""
    return _types(schema, root, _MAX_DEPTH)


def branches_of(schema: Any, root: Mapping[str, object], depth: int = _MAX_DEPTH) -> list[Mapping[str, Any]]:
    """Return a schema and those that it refers to and combines, which describe the members of its values."""
    if not isinstance(schema, Mapping) or depth == 0:
        return []
    found = [schema]
    if isinstance(reference := schema.get("$ref"), str):
        found += branches_of(_referred(reference, root), root, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(key), list):
            found += [inner for branch in branches for inner in branches_of(branch, root, depth - 1)]
    return found


def _types(schema: Any, root: Mapping[str, object], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return _ALL
    allowed = _named_types(schema)
    if isinstance(reference := schema.get("$ref"), str):
        allowed &= _types(_referred(reference, root), root, depth - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            allowed &= frozenset().union(*(_types(branch, root, depth - 1) for branch in branches))
    if isinstance(branches := schema.get("allOf"), list):
        for branch in branches:
            allowed &= _types(branch, root, depth - 1)
    return (allowed or _ALL) | ({"null"} if schema.get("nullable") is True else frozenset())


def _named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        return frozenset([kinds] if isinstance(kinds, str) else [kind for kind in kinds if isinstance(kind, str)])
    if "const" in schema:
        return frozenset({_type_name(schema["const"])})
    values = schema.get("enum")
    return frozenset(map(_type_name, values)) if isinstance(values, list) else _ALL


def _referred(reference: str, root: Any) -> Any:
    """Return the schema to which a pointer within the same document leads, or None."""
    if not reference.startswith("#"):
        return None
    place = root
    for step in filter(None, reference[1:].split("/")):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place
