"""The keywords of JSON Schema: their valid values, the types that they imply, and the form that llguidance reads."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeGuard

from headrace.inference.engine.structured_output.schema.document import Member, Schema, SchemaError, show

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


MAX_NUMBER = 10**18
MAP_NAME_PATTERN = "(?s:^.{0,64}$)"
"""Bounded, so that names in maps end."""
_STEP = 1e-9
"""Fractions have at most 9 digits: small models continue 0.3333 until `max_tokens`."""


def check_keywords(schema: dict[str, Any], place: str) -> None:
    """Raise `SchemaError` for the first keyword of one schema that has no valid value, or cannot be enforced."""
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


def implied_types(schema: dict[str, Any]) -> list[str]:
    return [name for name, keywords in IMPLIED_TYPES.items() if any(keyword in schema for keyword in keywords)]


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator,call-overload]


MAX_QUANTIFIERS: Final = 5000
"""Of a regular expression: `(.*){5000}` written out compiles in 2 s, 20,000 of them in 40 s."""
_QUANTIFIERS: Final = re.compile(r"[*+?{]")
PATTERN: Final = f"a regular expression with at most {MAX_QUANTIFIERS} of `*`, `+`, `?` and `{{`"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def is_pattern(value: object) -> TypeGuard[str]:
    """Return whether a value is a regular expression that compiles soon: the time grows by the square of its length."""
    return isinstance(value, str) and len(_QUANTIFIERS.findall(value)) <= MAX_QUANTIFIERS


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in TYPES


def _is_list(value: object, is_item: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


_Check = tuple[Callable[[object], bool], str]
_SCHEMA: _Check = (_is_schema, "a schema")
_COUNT: _Check = (_is_count, "a whole number of 0 or more")
_VALUES: Final[dict[str, _Check]] = {
    "type": (
        lambda value: _is_type(value) or (value != [] and _is_list(value, _is_type)),
        f"one of {', '.join(TYPES)}, or a list of them",
    ),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    **dict.fromkeys(
        ("anyOf", "oneOf", "allOf"),
        (lambda value: value != [] and _is_list(value, _is_schema), "a list of at least one schema"),
    ),
    **dict.fromkeys(
        ("$defs", "definitions", "properties"),
        (lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())), "an object of schemas"),
    ),
    "patternProperties": (
        lambda value: isinstance(value, dict) and all(map(is_pattern, value)) and all(map(_is_schema, value.values())),
        f"an object of schemas, by {PATTERN}",
    ),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), _SCHEMA),
    "required": (lambda value: _is_list(value, _is_text), "a list of strings"),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    "items": (lambda value: _is_schema(value) or _is_list(value, _is_schema), "a schema"),
    "prefixItems": (lambda value: _is_list(value, _is_schema), "a list of schemas"),
    "additionalItems": _SCHEMA,
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
    "pattern": (is_pattern, PATTERN),
    "format": (_is_text, "a string"),
    **dict.fromkeys(("minimum", "maximum"), (_is_number, "a number")),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        (lambda value: _is_number(value) or isinstance(value, bool), "a number"),
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),  # type: ignore[operator]
}
"""By keyword: the check of its value, and what is expected."""


def any_value(reference: str) -> dict[str, Any]:
    """Return the schema of any JSON value; `reference` points to it."""
    return {
        "anyOf": [
            {"type": ["null", "boolean", "string"]},
            {"type": "number", **number_keywords({"type": "number"}, has_type=False)},
            {"type": "array", "items": {"$ref": reference}},
            {
                "type": "object",
                "patternProperties": {MAP_NAME_PATTERN: {"$ref": reference}},
                "additionalProperties": False,
            },
        ]
    }


def number_keywords(schema: dict[str, Any], *, has_type: bool) -> dict[str, Any]:
    """Return the bounds of a number, limited to what llguidance supports."""
    result: dict[str, Any] = {key: schema[key] for key in ("minimum", "maximum", "multipleOf") if key in schema}
    for keyword, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        bound = schema.get(keyword)
        if bound is True and inclusive in result:  # draft 4
            result[keyword] = result.pop(inclusive)
        elif bound is not None and not isinstance(bound, bool):
            result[keyword] = bound
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if "number" in types or "integer" in types or (result and not types and not has_type):
        if result.get("exclusiveMinimum", -MAX_NUMBER) <= -MAX_NUMBER:
            result["minimum"] = max(result.get("minimum", -MAX_NUMBER), -MAX_NUMBER)
            result.pop("exclusiveMinimum", None)
        if result.get("exclusiveMaximum", MAX_NUMBER) >= MAX_NUMBER:
            result["maximum"] = min(result.get("maximum", MAX_NUMBER), MAX_NUMBER)
            result.pop("exclusiveMaximum", None)
        if "integer" not in types or "number" in types:
            result.setdefault("multipleOf", _STEP)
    return result


def step_digits(step: float) -> int:
    """Return the digits of a `multipleOf` without the point: 25 for 2.5 and 0.25."""
    number = Decimal(repr(step)) if isinstance(step, float) else Decimal(step)
    return int(number.scaleb(max(0, -int(number.normalize().as_tuple().exponent))))


def array_keywords(member: Member, child: Callable[..., Schema], *, closes: bool) -> dict[str, Any]:
    """Return the keywords of an array in the form of draft 2020-12; a tuple is closed unless it says otherwise."""
    schema = member.schema
    result: dict[str, Any] = {key: int(schema[key]) for key in ("minItems", "maxItems") if key in schema}
    items = schema.get("items")
    prefix, rest = ("items", "additionalItems") if isinstance(items, list) else ("prefixItems", "items")
    if schema.get(prefix):
        result["prefixItems"] = [child(member, prefix, index) for index in range(len(schema[prefix]))]
    num_fixed = len(result.get("prefixItems", ()))
    if rest in schema:
        result["items"] = child(member, rest)
    elif closes and num_fixed and "unevaluatedItems" not in schema and schema.get("minItems", 0) <= num_fixed:
        result["items"] = False
    return result


def object_limits(schema: dict[str, Any], properties: dict[str, Schema], *, is_closed: bool) -> dict[str, int]:
    """Return `minProperties` and `maxProperties` where other keywords do not imply them."""
    result: dict[str, int] = {}
    if schema.get("minProperties", 0) > len(set(schema.get("required", ()))):
        result["minProperties"] = int(schema["minProperties"])
    if "maxProperties" in schema and not (is_closed and len(properties) <= schema["maxProperties"]):
        result["maxProperties"] = int(schema["maxProperties"])
    return result
