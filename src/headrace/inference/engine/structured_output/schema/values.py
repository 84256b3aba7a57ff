"""The keywords of single values: numbers of bounded length, arrays, and the number of an object's properties."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.inference.engine.structured_output.schema.document import Member, Schema

MAX_NUMBER = 10**18
MAP_NAME_PATTERN = "(?s:^.{0,64}$)"
"""Bounded, so that names in maps end."""
_STEP = 1e-9
"""Fractions have at most 9 digits: small models continue 0.3333 until `max_tokens`."""


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
    if rest in schema:
        result["items"] = child(member, rest)
    elif closes and "prefixItems" in result and _may_end_after(schema, len(result["prefixItems"])):
        result["items"] = False
    return result


def _may_end_after(schema: dict[str, Any], num_items: int) -> bool:
    return "unevaluatedItems" not in schema and bool(schema.get("minItems", 0) <= num_items)


def object_limits(schema: dict[str, Any], properties: dict[str, Schema], *, is_closed: bool) -> dict[str, int]:
    """Return `minProperties` and `maxProperties` where other keywords do not imply them."""
    result: dict[str, int] = {}
    if schema.get("minProperties", 0) > len(set(schema.get("required", ()))):
        result["minProperties"] = int(schema["minProperties"])
    if "maxProperties" in schema and not (is_closed and len(properties) <= schema["maxProperties"]):
        result["maxProperties"] = int(schema["maxProperties"])
    return result
