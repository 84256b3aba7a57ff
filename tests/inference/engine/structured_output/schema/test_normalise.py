"""Texts that a normalised schema allows, matched by llguidance byte by byte."""

import json
from itertools import permutations

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from headrace.core.generation import Grammar
from headrace.inference.engine.structured_output.schema.document import SchemaError
from headrace.inference.engine.structured_output.schema.normalise import normalise_schema
from headrace.inference.engine.structured_output.source import GrammarError, grammar_source
from tests.inference.engine.support import byte_tokenizer

A, B, N = {"type": "null"}, {"type": "boolean"}, {"type": "integer"}


def accepts(schema: object, text: str, **options: str) -> bool:
    """Return whether a whole answer fits, as the engine would enforce it."""
    source = grammar_source(Grammar("json_schema", json.dumps(schema), **options))
    matcher = LLMatcher(byte_tokenizer().grammar_tokenizer(), source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


UNTYPED = {"properties": {"a": A}}
BRANCHES = {
    "properties": {"kind": N},
    "anyOf": [{"properties": {"a": A}, "required": ["a"]}, {"properties": {"b": B}, "required": ["b"]}],
}
ALL_OF = {"allOf": [{"properties": {"a": A}}, {"$ref": "#/$defs/B"}], "$defs": {"B": {"properties": {"b": B}}}}
NESTED = {"allOf": [{"anyOf": BRANCHES["anyOf"]}, {"properties": {"c": A}}]}
TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "properties": {"v": N, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, A]}, "all": {"items": {"$ref": "#"}}},
            "required": ["v"],
        }
    },
}
PETS = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        "Cat": {"properties": {"kind": {"const": "cat"}, "lives": N}, "required": ["kind"]},
        "Dog": {"properties": {"kind": {"const": "dog"}, "good": B}, "required": ["kind"]},
    },
}
PAYMENT = {
    "oneOf": [{"properties": {"card": N}, "required": ["card"]}, {"properties": {"iban": N}, "required": ["iban"]}]
}
NULLABLE = {
    "type": ["object", "null"],
    "properties": {"a": A, "b": A},
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}
MAP = {"type": "object", "additionalProperties": N}


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        (UNTYPED, ['{"a": null}', "{}"], ['"a"', "[]", '{"b": 1}', '{"a": null, "a": null}']),
        ({"required": ["a"]}, ['{"a": [1]}'], ["{}", "1", '{"a": 1, "b": 1}']),
        ({"items": N}, ["[]", "[1]"], ["{}", '"x"', '["x"]']),
        ({"minLength": 2}, ['"ab"'], ["1", '"a"']),
        ({"minimum": 2}, ["2.5"], ['"a"', "1"]),
        ({"type": "object"}, ["{}", '{"a": {"b": [1, 2.5, null, "x"]}}'], ["[]"]),
        ({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
        (
            {"type": "object", "properties": {"a": A}, "additionalProperties": True},
            ['{"a": null, "b": [1]}'],
            ['{"a": 1}'],
        ),
        ({**UNTYPED, "unevaluatedProperties": {"type": "integer"}}, ['{"a": null, "b": 1}'], ['{"b": "x"}']),
        ({**UNTYPED, "unevaluatedProperties": False}, ['{"a": null}'], ['{"b": 1}']),
        (MAP, ['{"x": 1, "y": 2}', "{}"], ['{"x": "y"}']),
        ({"patternProperties": {"^x-": N}}, ['{"x-a": 1}'], ['{"a": 1}', '{"x-a": "b"}']),
        ({**MAP, "propertyNames": {"enum": ["a", "b"]}}, ['{"a": 1, "b": 2}'], ['{"c": 1}', '{"a": 1, "a": 2}']),
        ({**MAP, "propertyNames": {"pattern": "^[a-z]$"}}, ['{"a": 1}'], ['{"A": 1}', '{"a": "b"}']),
        (
            BRANCHES,
            ['{"kind": 1, "a": null}', '{"b": true}'],
            ['{"kind": 1}', '{"a": null, "c": 1}', '{"a": null, "b": true}'],
        ),
        (ALL_OF, ['{"a": null, "b": true}', "{}"], ['{"a": 1}', '{"c": 1}']),
        (NESTED, ['{"a": null, "c": null}', '{"b": true}'], ['{"a": null, "b": true}', '{"a": null, "d": 1}', "{}"]),
        (
            {"allOf": [{**UNTYPED, "additionalProperties": True}, {"properties": {"b": B}}]},
            ['{"a": null, "b": true, "c": 1}'],
            ['{"b": 1}'],
        ),
        (
            TREE,
            ['{"v": 1, "next": {"v": 2, "next": null, "all": [{"v": 3}]}}'],
            ['{"v": 1, "w": 1}', '{"v": 1, "next": {}}'],
        ),
        (
            PETS,
            ['{"kind": "cat", "lives": 9}', '{"kind": "dog"}'],
            ['{"kind": "cat", "good": true}', '{"kind": "cow"}'],
        ),
        (PAYMENT, ['{"card": 1}', '{"iban": 1}'], ['{"card": 1, "iban": 1}', "{}"]),
        (NULLABLE, ["null", '{"a": null}', '{"a": null, "b": null}'], ["{}", '{"c": 1}']),
        ({"prefixItems": [N, B]}, ["[1, true]", "[1]"], ["[1, true, 2]"]),
        ({"prefixItems": [N], "minItems": 2}, ["[1, {}]"], ["[1]"]),
        ({"items": [N], "additionalItems": B}, ["[1, true]"], ["[1, 2]"]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-13-01"', '"0000-01-01"']),
        (
            {"type": "string", "format": "date-time"},
            ['"2024-01-01T10:00:00.5Z"'],
            ['"2024-01-01"', '"2024-01-01T25:00:00Z"'],
        ),
        ({"type": "string", "format": "date", "pattern": "^2024"}, ['"2024-01-01"'], ['"2023-01-01"']),
        ({"type": "string", "format": "password"}, ['"x"'], ["1"]),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"']),
        ({"const": {"x": [1]}}, ['{"x": [1]}'], ["{}", '{"x": [1], "y": 1}']),
        ({"type": "number"}, ["-0.5", "3"], ["0.1234567891", "1e5"]),
        ({"type": "integer", "exclusiveMinimum": True, "minimum": 3}, ["4"], ["3"]),
        ({"type": "number", "multipleOf": 0.25, "maximum": 1}, ["0.75"], ["0.3", "1.25"]),
        (
            {"type": "object", "properties": {"a": A, "b": A}, "minProperties": 1},
            ['{"a": null}', '{"b": null}'],
            ["{}"],
        ),
        (True, ["1", '{"a": []}'], ["", "x"]),
        (
            {"title": "t", "x-note": 1, "nullable": True, "x-guidance": {"lenient": True}, "type": "null"},
            ["null"],
            ["1"],
        ),
    ],
)
def test_a_schema_allows_exactly_its_valid_values(schema, allowed, forbidden) -> None:
    for text in allowed:
        assert accepts(schema, text), text
    for text in forbidden:
        assert not accepts(schema, text), text


def loop(name: str) -> dict[str, object]:
    """An object whose eight properties are such objects again."""
    return {"type": "object", "required": [*"abcdefgh"], "properties": {key: {"$ref": name} for key in "abcdefgh"}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, "`uniqueItems` at #/properties/tags is not"),
        ({"not": {"type": "null"}}, "`not` at # is not supported"),
        ({"if": A, "then": A}, "`if` at #"),
        ({"items": {"type": "text"}}, '`type` at #/items is "text"; expected one of null, boolean'),
        ({"properties": []}, "`properties` at # is []; expected an object of schemas."),
        ({"properties": {"a/b": {"minLength": -1}}}, "`minLength` at #/properties/a~1b is -1; expected a whole number"),
        ({"$ref": "#/$defs/A"}, "there is nothing at that place"),
        ({"$ref": "https://example.com/a.json"}, "which is not in this document"),
        ({"$ref": "#"}, "# refers to itself"),
        ({"anyOf": [{"$ref": "#"}, A]}, "#/anyOf/0 refers to itself"),
        ({"oneOf": [N, {"type": "number"}]}, "`oneOf` at # is not supported where a value may fit two"),
        ({"type": "string", "format": "regex"}, '`format` at # is "regex", which is not supported'),
        ({"enum": []}, "`enum` at # is []; expected a list of at least one value"),
        ({"multipleOf": 99_999_999}, "`multipleOf` at # is 99999999; the digits of all"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}, "`multipleOf` at #/allOf/1 is 9.91"),
        ({"type": "\ud800"}, '`type` at # is "\\ud800"'),
        ({"$ref": "nowhere", "k" * 100_000: {str(number): {} for number in range(1000)}}, "names that are too long"),
        ({"type": "object", "propertyNames": {"enum": 5}}, '`propertyNames` at # is {"enum": 5}'),
        ({"type": "object", "propertyNames": {"pattern": ["a"]}}, "`propertyNames` at # is"),
        (
            {
                "$defs": {"a": loop("#/$defs/a"), "b": loop("#/$defs/b")},
                "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            },
            "comparisons",
        ),
        (3, "It is 3; expected a JSON object."),
    ],
)
def test_unenforceable_keywords_are_refused_with_keyword_and_place(schema, message) -> None:
    with pytest.raises(SchemaError) as refused:
        normalise_schema(json.dumps(schema))
    assert message in str(refused.value)


def test_references_resolve_by_anchor_id_and_escaped_pointer() -> None:
    schema = {
        "$id": "https://example.com/s",
        "prefixItems": [{"$ref": "#here"}, {"$ref": "https://example.com/s#/$defs/a~1b%20c"}],
        "$defs": {"x": {"$anchor": "here", "type": "integer"}, "a/b c": {"type": "boolean"}},
    }
    assert accepts(schema, "[1, true]")
    assert not accepts(schema, "[true, 1]")


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {"properties": {"z": A, "a": A}, "allOf": [{"properties": {"m": A}}], "required": ["z", "a", "m"]}
    assert accepts(schema, '{"z": null, "a": null, "m": null}')


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, "NaN", '{"minimum": 1e999}']
)
def test_invalid_and_deeply_nested_texts_are_refused(text) -> None:
    with pytest.raises(SchemaError):
        normalise_schema(text)


def test_large_schemas_are_refused_early() -> None:
    many = {"properties": {f"p{i}": N for i in range(5000)}}
    with pytest.raises(SchemaError, match="more than 3000 subschemas"):
        normalise_schema(json.dumps(many))
    names = {f"p{i}": N for i in range(1000)}
    with pytest.raises(SchemaError, match="combines too many properties"):
        normalise_schema(json.dumps({"properties": names, "anyOf": [{"required": [f"q{i}"]} for i in range(1000)]}))
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2500)} | {"d2500": N}
    with pytest.raises(SchemaError, match="references are nested too deeply"):
        normalise_schema(json.dumps({"$ref": "#/$defs/d0", "$defs": chain}))


def test_white_space_is_bounded_and_can_be_set() -> None:
    schema = {"properties": {"a": {"items": N}}}
    assert accepts(schema, '{\n    "a": [\n        1,\n        2\n    ]\n}')
    assert accepts(schema, '{"a":[1,2]}')
    assert not accepts(schema, '{  "a": [1]}')
    assert not accepts(schema, '{"a": [\n\n1]}')
    assert accepts(schema, '{"a":[1]}', whitespace_pattern="")
    assert not accepts(schema, '{"a": [1]}', whitespace_pattern="")
    assert accepts(schema, '{"a":\t[1]}', whitespace_pattern="\t")


def test_strings_have_one_spelling_so_that_duplicate_keys_are_found() -> None:
    assert not accepts({**MAP, "properties": {"a": N}}, '{"a": 1, "\\u0061": 2}')
    assert accepts({"type": "string"}, json.dumps('ü"\\\n', ensure_ascii=False))


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([A, B, N, {"type": "string", "maxLength": 3}, {"enum": ["x", 1]}, {"const": None}, True, {}])


def objects(children: st.SearchStrategy) -> st.SearchStrategy:
    keywords = {
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, children, max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": st.booleans(),
        "anyOf": st.lists(children, min_size=1, max_size=2),
        "allOf": st.lists(children, min_size=1, max_size=2),
    }
    arrays = st.fixed_dictionaries({"items": children}, optional={"maxItems": st.integers(0, 3)})
    return st.fixed_dictionaries({}, optional=keywords) | arrays


SCHEMAS = st.recursive(LEAVES, objects, max_leaves=6)
VALUES = st.recursive(
    st.sampled_from([None, True, 1, "x"]),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=5,
)


def closed(schema: dict[str, object], value: object) -> bool:
    """
    Return whether a value fits a schema and has only properties that the schema names (in one level).

    Those of two branches of `anyOf` at once do not count: an enforced object is of one branch.
    """
    wholes = [{**schema, "anyOf": [branch]} for branch in schema.get("anyOf", [{}])]
    validators = (jsonschema.Draft202012Validator({"allOf": [s], "unevaluatedProperties": False}) for s in wholes)
    return any(validator.is_valid(value) for validator in validators)


@given(SCHEMAS, VALUES)
@settings(max_examples=150)
def test_every_value_of_the_enforced_schema_is_valid_by_the_clients_schema(schema, value) -> None:
    text = json.dumps(value)
    try:
        is_accepted = accepts(schema, text)
    except (GrammarError, AssertionError, ValueError):
        return
    if is_accepted:
        assert jsonschema.Draft202012Validator(schema).is_valid(value)


FLAT = st.fixed_dictionaries(
    {"properties": st.dictionaries(NAMES, st.sampled_from([A, B, N]), min_size=1, max_size=3)},
    optional={"required": st.lists(NAMES, max_size=2, unique=True), "type": st.just("object")},
)
COMBINED = FLAT | st.fixed_dictionaries(
    {},
    optional={
        "allOf": st.lists(FLAT, min_size=1, max_size=3),
        "anyOf": st.lists(FLAT, min_size=1, max_size=2),
        "properties": st.dictionaries(NAMES, st.sampled_from([A, B, N]), max_size=2),
        "type": st.just("object"),
    },
)


@given(COMBINED, st.dictionaries(NAMES, st.sampled_from([None, True, 1]), max_size=3))
@settings(max_examples=150)
def test_a_valid_object_without_extra_properties_stays_possible(schema, value) -> None:
    """Closing the parts of a combination must not make the whole impossible."""
    if not schema or not closed(schema, value):
        return
    # A grammar fixes the order of properties, and each branch of `anyOf` has its own.
    texts = [json.dumps(dict(order)) for order in permutations(value.items())]
    try:
        is_accepted = any(accepts(schema, text) for text in texts)
    except (AssertionError, ValueError):
        is_accepted = False
    assert is_accepted, (schema, texts)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from([
                "type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref", "$defs",
                "enum", "const", "pattern", "format", "minItems", "minimum", "propertyNames", "patternProperties",
                "additionalProperties", "unevaluatedProperties", "exclusiveMinimum", "$id", "#", "minProperties",
            ]),
            children | st.sampled_from(["object", "string", "#", "#/$defs/type", "array"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(ANY_JSON)
@settings(max_examples=200)
def test_any_json_is_normalised_or_refused_and_normalising_twice_changes_nothing(value) -> None:
    try:
        once = normalise_schema(json.dumps(value))
    except SchemaError:
        return
    assert json.loads(json.dumps(once)) == once
    twice = normalise_schema(json.dumps(once))
    assert twice == normalise_schema(json.dumps(twice))
