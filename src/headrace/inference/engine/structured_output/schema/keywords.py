"""The keywords of JSON Schema: valid values, implied types, and keywords that cannot be enforced."""

from collections.abc import Callable
from typing import Any, Final

from headrace.inference.engine.structured_output.schema.document import SchemaError, show

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")

IMPLIED_TYPES: Final = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
               "minProperties", "maxProperties", "unevaluatedProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
"""Types implied by keywords where a schema has no `type`."""

_REMEDIES: Final = {
    "not": "Describe what is allowed instead.",
    "if": "Use `anyOf` with one complete schema for each case.",
    "contains": "Use `items` or `prefixItems`.",
    "uniqueItems": "Remove it, and drop repeated items yourself.",
    "unevaluatedItems": "Use `items`.",
    "dependentRequired": "Use `anyOf` with one complete schema for each case.",
    "dependentSchemas": "Use `anyOf` with one complete schema for each case.",
    "dependencies": "Use `anyOf` with one complete schema for each case.",
    "$dynamicRef": "Use `$ref`.",
    "$recursiveRef": "Use `$ref`.",
}
"""Keywords that cannot be enforced, with their alternatives."""

_HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
"""Values of those keywords that do not constrain anything."""

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

FORMAT_PATTERNS: Final = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Formats enforced by our own patterns: only valid dates, and fractions of bounded length."""
NATIVE_FORMATS: Final = ("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Formats that llguidance enforces."""
_UNENFORCED_FORMATS: Final = (
    "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "regex",
)  # fmt: skip
"""The specification's other formats; further names (`password`, `int64`) are notes to the reader, as it says."""


def check_keywords(schema: dict[str, Any], place: str) -> None:
    """
    Check the values of all known keywords of one schema.

    Raises:
        SchemaError: A value is not valid, or the keyword cannot be enforced.
    """
    for keyword, remedy in _REMEDIES.items():
        if keyword in schema and not any(schema[keyword] == value for value in _HARMLESS.get(keyword, ())):
            raise SchemaError(f"`{keyword}` at {place} is not supported. {remedy}")
    for keyword, (is_valid, expected) in _VALUES.items():
        if keyword in schema and not is_valid(schema[keyword]):
            raise SchemaError(f"`{keyword}` at {place} is {show(schema[keyword])}; expected {expected}.")
    if schema.get("format") in _UNENFORCED_FORMATS:
        supported = ", ".join(sorted((*FORMAT_PATTERNS, *NATIVE_FORMATS)))
        raise SchemaError(
            f"`format` at {place} is {show(schema['format'])}, which is not supported; expected one of {supported}. "
            "Or use `pattern`."
        )


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator,call-overload]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in TYPES


def _is_types(value: object) -> bool:
    return _is_type(value) or (isinstance(value, list) and bool(value) and all(map(_is_type, value)))


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


Check = tuple[Callable[[object], bool], str]
_SCHEMA: Check = (_is_schema, "a schema")
_SCHEMAS: Check = (_is_schemas, "a list of at least one schema")
_SCHEMA_MAP: Check = (_is_schema_map, "an object of schemas")
_COUNT: Check = (_is_count, "a whole number of 0 or more")
_NUMBER: Check = (_is_number, "a number")
_BOUND: Check = (lambda value: _is_number(value) or isinstance(value, bool), "a number")
_VALUES: Final[dict[str, Check]] = {
    "type": (_is_types, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "allOf": _SCHEMAS,
    "$defs": _SCHEMA_MAP,
    "definitions": _SCHEMA_MAP,
    "properties": _SCHEMA_MAP,
    "patternProperties": _SCHEMA_MAP,
    "additionalProperties": _SCHEMA,
    "unevaluatedProperties": _SCHEMA,
    "propertyNames": _SCHEMA,
    "required": (_is_names, "a list of strings"),
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "items": (lambda value: _is_schema(value) or value == [] or _is_schemas(value), "a schema"),
    "prefixItems": (lambda value: value == [] or _is_schemas(value), "a list of schemas"),
    "additionalItems": _SCHEMA,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": (_is_text, "a regular expression"),
    "format": (_is_text, "a string"),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _BOUND,
    "exclusiveMaximum": _BOUND,
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),  # type: ignore[operator]
}
