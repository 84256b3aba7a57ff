"""
Forty JSON schemas with the shapes that real projects send: API payloads, extraction, tool arguments, configuration.

Each has the bounds that make an answer end (`maxLength`, `maxItems`), as schemas in production do. `SCHEMAS` maps
names to schemas; `RECURSIVE` are more, without a bound on nesting. `problem` returns the defect of an
answer, by the rules of docs/structured-output.md.
"""

import json
from decimal import Decimal
from typing import Any

import jsonschema

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "minLength": 1, "maxLength": 12}
TEXT: Schema = {"type": "string", "maxLength": 30}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}


def _object(properties: Schema, required: list[str] | None = None, **more: object) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        **more,
    }


def _string(**keywords: object) -> Schema:
    return {"type": "string", **keywords}


def _array(items: object, max_items: int = 2, **keywords: object) -> Schema:
    return {"type": "array", "items": items, "maxItems": max_items, **keywords}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _enum(*values: object) -> Schema:
    return {"enum": list(values)}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "default": None}


ADDRESS = _object({"street": TEXT, "city": WORD, "zip": _string(pattern="^[0-9]{5}(-[0-9]{4})?$")})

SCHEMAS: dict[str, Schema] = {
    # Extraction with pydantic: titles, defaults, $defs, nullable fields
    "user": {
        "title": "User",
        **_object({"name": {**WORD, "title": "Name"}, "age": {**COUNT, "title": "Age"}}),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
    "person with address": {
        "$defs": {"Address": ADDRESS},
        **_object({"name": WORD, "address": _ref("Address"), "work": _nullable(_ref("Address"))}, ["name", "address"]),
    },
    "invoice": _object(
        {
            "number": _string(pattern=r"^INV-\d{4}$"),
            "date": _string(format="date"),
            "lines": _array(
                _object(
                    {
                        "item": WORD,
                        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                        "price": {"type": "number", "minimum": 0, "maximum": 10_000, "multipleOf": 0.01},
                    }
                ),
                minItems=1,
            ),
            "total": {"type": "number", "exclusiveMinimum": 0, "maximum": 100_000},
        }
    ),
    "meeting": _object(
        {
            "title": TEXT,
            "start": _string(format="date-time"),
            "duration_minutes": {"type": "integer", "minimum": 5, "maximum": 480, "multipleOf": 5},
            "attendees": _array(_string(format="email", maxLength=24)),
            "location": _nullable(TEXT),
        },
        ["title", "start", "duration_minutes"],
    ),
    "resume": _object(
        {
            "name": WORD,
            "skills": _array(_enum("python", "rust", "sql", "kubernetes"), 3),
            "jobs": _array(
                _object({"company": WORD, "years": {"type": "integer", "minimum": 0, "maximum": 50}}, ["company"])
            ),
            "remote": {"type": "boolean"},
        }
    ),
    "sentiment": _object(
        {"label": _enum("positive", "negative", "neutral"), "score": {"type": "number", "minimum": 0, "maximum": 1}}
    ),
    "classification list": _array(_object({"label": _enum("spam", "ham"), "id": COUNT}), minItems=1),
    "entities": _object(
        {"entities": _array(_object({"text": WORD, "type": _enum("PER", "LOC", "ORG"), "start": COUNT}), 3)}
    ),
    "quiz": _object(
        {
            "question": TEXT,
            "options": _array(WORD, 4, minItems=2),
            "answer": {"type": "integer", "minimum": 0, "maximum": 3},
            "explanation": _nullable(TEXT),
        },
        ["question", "options", "answer"],
    ),
    "steps": _object(
        {"steps": _array(_object({"explanation": TEXT, "output": TEXT})), "final_answer": TEXT},
        additionalProperties=False,
    ),
    # Without `type`, without `additionalProperties`: written by hand
    "no type": {"properties": {"city": WORD, "population": {"type": "integer", "minimum": 0}}, "required": ["city"]},
    "nested without type": {
        "properties": {"a": {"properties": {"b": {"items": COUNT, "maxItems": 3}}, "required": ["b"]}},
        "required": ["a"],
    },
    "all optional": _object({"limit": COUNT, "offset": COUNT, "order": _enum("asc", "desc")}, []),
    "empty": {"type": "object", "properties": {}},
    # Nesting by reference
    "tree": {
        "$defs": {
            "Node": _object({"name": WORD, "children": _array(_ref("Leaf"))}, ["name"]),
            "Leaf": _object({"name": WORD}),
        },
        "$ref": "#/$defs/Node",
    },
    "linked list": {
        "$defs": {"Last": _object({"value": COUNT, "next": {"type": "null"}})},
        **_object({"value": COUNT, "next": {"anyOf": [_ref("Last"), {"type": "null"}]}}),
    },
    "comments": {
        "$defs": {"Comment": _object({"author": WORD, "text": TEXT, "replies": _array(TEXT)})},
        **_object({"post": TEXT, "comments": _array(_ref("Comment"), 1)}),
    },
    "expression": {
        "$defs": {
            "Expr": {"oneOf": [_ref("Number"), _ref("Sum")]},
            "Number": _object({"kind": {"const": "number"}, "value": COUNT}),
            "Sum": _object({"kind": {"const": "sum"}, "left": _ref("Number"), "right": _ref("Number")}),
        },
        "$ref": "#/$defs/Expr",
    },
    # Unions
    "discriminated pets": {
        "$defs": {
            "Cat": _object({"kind": {"const": "cat", "type": "string"}, "lives": COUNT}, ["kind"]),
            "Dog": _object({"kind": {"const": "dog", "type": "string"}, "breed": WORD}, ["kind"]),
        },
        **_object({"pet": {"oneOf": [_ref("Cat"), _ref("Dog")], "discriminator": {"propertyName": "kind"}}}),
    },
    "payment": {
        "type": "object",
        "properties": {"amount": {"type": "number", "minimum": 1, "maximum": 1000}},
        "required": ["amount"],
        "oneOf": [
            {"properties": {"card": _string(pattern="^[0-9]{16}$")}, "required": ["card"]},
            {"properties": {"iban": _string(pattern="^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,20}$")}, "required": ["iban"]},
        ],
    },
    "contact": {
        "properties": {
            "name": WORD,
            "phone": _string(pattern=r"^\+[0-9]{7,12}$"),
            "email": _string(format="email", maxLength=24),
        },
        "required": ["name"],
        "anyOf": [{"required": ["phone"]}, {"required": ["email"]}],
    },
    "string or number": _object({"value": {"anyOf": [WORD, {"type": "integer"}, {"type": "boolean"}]}}),
    "types in a list": _object(
        {"id": {"type": ["integer", "string"], "maxLength": 8}, "note": {"type": ["string", "null"], "maxLength": 20}}
    ),
    "agent action": {
        "anyOf": [
            _object({"action": {"const": "search"}, "query": TEXT}),
            _object({"action": {"const": "open"}, "url": _string(format="uri", maxLength=30)}),
            _object({"action": {"const": "finish"}, "answer": TEXT}),
        ]
    },
    # allOf
    "base and extension": {
        "$defs": {"Base": _object({"id": COUNT, "created": _string(format="date")})},
        "allOf": [_ref("Base"), _object({"name": WORD})],
    },
    "allOf with siblings": {
        "type": "object",
        "properties": {"kind": _enum("a", "b")},
        "required": ["kind"],
        "allOf": [{"properties": {"x": COUNT}, "required": ["x"]}, {"properties": {"y": COUNT}}],
    },
    "pydantic v1 reference": {
        "definitions": {"Color": {"title": "Color", "enum": ["red", "green"], "type": "string"}},
        **_object({"color": {"title": "Color", "allOf": [{"$ref": "#/definitions/Color"}], "default": "red"}}),
    },
    # Maps and tuples
    "labels": _object({"labels": {"type": "object", "additionalProperties": COUNT, "maxProperties": 2}}),
    "environment": {
        "type": "object",
        "patternProperties": {"^[A-Z]{2,6}$": WORD},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "scores by language": {
        "type": "object",
        "propertyNames": {"enum": ["en", "de", "fr"]},
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "tuple": {
        "type": "array",
        "prefixItems": [
            {"type": "number", "minimum": -90, "maximum": 90},
            {"type": "number", "minimum": -180, "maximum": 180},
        ],
        "minItems": 2,
    },
    "draft 7 tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [WORD, COUNT],
        "additionalItems": False,
        "minItems": 2,
    },
    "matrix": _object({"rows": _array(_array(COUNT, 3, minItems=3), 2, minItems=2)}),
    "geojson point": _object(
        {
            "type": {"const": "Point"},
            "coordinates": _array({"type": "number", "minimum": -180, "maximum": 180}, 2, minItems=2),
        }
    ),
    # Formats, patterns and bounds
    "formats": _object(
        {
            "id": _string(format="uuid"),
            "ip": _string(format="ipv4"),
            "at": _string(format="time"),
            "host": _string(format="hostname", maxLength=16),
            "url": _string(format="uri", maxLength=30),
        }
    ),
    "patterns": _object(
        {
            "sku": _string(pattern="^[A-Z]{3}-[0-9]{3,5}$"),
            "slug": _string(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", maxLength=20),
            "hex": _string(pattern="^#[0-9a-f]{6}$"),
        }
    ),
    "numbers": _object(
        {
            "int": {"type": "integer"},
            "number": {"type": "number"},
            "even": {"type": "integer", "multipleOf": 2, "minimum": -10, "maximum": 10},
            "open": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        }
    ),
    # Tool arguments
    "weather tool": _object(
        {"location": {**TEXT, "description": "City and country"}, "unit": _enum("celsius", "fahrenheit")},
        ["location"],
        additionalProperties=False,
    ),
    "parallel calls": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {
            "anyOf": [
                _object({"name": {"const": "get_time"}, "arguments": {"type": "object", "properties": {}}}),
                _object(
                    {
                        "name": {"const": "send"},
                        "arguments": _object({"to": _string(format="email", maxLength=24), "body": TEXT}),
                    }
                ),
            ]
        },
    },
    "deployment": _object(
        {
            "kind": {"const": "Deployment"},
            "metadata": _object(
                {
                    "name": _string(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", maxLength=16),
                    "labels": {"type": "object", "additionalProperties": WORD, "maxProperties": 1},
                },
                ["name"],
            ),
            "spec": _object(
                {
                    "replicas": {"type": "integer", "minimum": 1, "maximum": 9},
                    "ports": _array({"type": "integer", "minimum": 1, "maximum": 65535}, 2),
                }
            ),
        }
    ),
}

RECURSIVE: dict[str, Schema] = {
    "tree": {
        "$defs": {"Node": _object({"name": WORD, "children": _array(_ref("Node"), 1)}, ["name"])},
        "$ref": "#/$defs/Node",
    },
    "list": _object({"value": COUNT, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "expression": {
        "$defs": {
            "Number": _object({"kind": {"const": "number"}, "value": COUNT}),
            "Sum": _object({"kind": {"const": "sum"}, "left": {"$ref": "#"}, "right": _ref("Number")}),
        },
        "oneOf": [_ref("Number"), _ref("Sum")],
    },
}
"""End where the model ends them."""


def problem(schema: Schema, text: str) -> str | None:
    """
    Return the defect of an answer: not JSON, a repeated key, not valid, or a property that the schema does not name.

    Numbers are read as decimals: 16.47 is a multiple of 0.01, but not in binary.
    """
    twice: list[str] = []

    def note_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        twice.extend(name for name in set(names) if names.count(name) > 1)
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=note_twice, parse_float=Decimal)
    except ValueError as error:
        return str(error)
    known, has_map = _known_names(schema)
    if twice:
        return f"a key comes twice: {twice}"
    schema = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    closed = schema if validator is not jsonschema.Draft202012Validator else {**schema, "unevaluatedProperties": False}
    for error in validator(closed, format_checker=validator.FORMAT_CHECKER).iter_errors(value):
        return f"{error.json_path}: {error.message}"
    extra = _names(value) - known
    return f"no schema names {sorted(extra)}" if extra and not has_map else None


def _names(value: object) -> set[str]:
    """Yield the names of all properties at any depth."""
    if isinstance(value, list):
        return set().union(*map(_names, value))
    return set(value).union(*map(_names, value.values())) if isinstance(value, dict) else set()


def _known_names(schema: object) -> tuple[set[str], bool]:
    """Return all property names in a schema, and whether a part of it is a map."""
    found: set[str] = set()
    has_map = False
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            has_map = has_map or isinstance(part.get("additionalProperties"), dict) or "patternProperties" in part
            found |= set(part.get("properties", ()))
            pending += part.values()
    return found, has_map
