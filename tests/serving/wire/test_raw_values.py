"""Arguments that models write without their type get the type of the function's schema."""

import json

import pytest

from headrace.serving.wire.openai.literals import Malformed
from headrace.serving.wire.openai.nested_tags import nested_calls
from headrace.serving.wire.openai.raw_values import argument_json

PARAMETERS = {
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "object": {"$ref": "#/$defs/Inner"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "choice": {"enum": ["1", "2"]},
        "level": {"enum": [1, 2]},
        "fixed": {"const": 5},
        "nullable": {"type": "integer", "nullable": True},
        "both": {"allOf": [{"type": ["string", "number"]}, {"type": ["number", "null"]}]},
        "circle": {"$ref": "#/properties/circle"},
        "any": {},
    },
    "$defs": {"Inner": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("text", "12", "12"),
        ("text", ' "a"\n', ' "a"\n'),
        ("text", "null", "null"),
        ("whole", " 12\n", 12),
        ("whole", "12345678901234567890123", 12345678901234567890123),
        ("whole", "twelve", "twelve"),
        ("whole", "1.5", 1.5),
        ("number", "12", 12),
        ("number", "NaN", "NaN"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("list", '["a", 1]', ["a", 1]),
        ("list", "['a', None]", ["a", None]),
        ("list", "['a', f()]", "['a', f()]"),
        ("object", '{"a": 1}', {"a": 1}),
        ("object", "{'a': True}", {"a": True}),
        ("object", '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ("object", '{"a": 1', '{"a": 1'),
        ("maybe", "None", None),
        ("maybe", "12", "12"),
        ("maybe", '"a"', '"a"'),
        ("either", "12", 12),
        ("either", "[1]", "[1]"),
        ("choice", "1", "1"),
        ("level", "1", 1),
        ("fixed", "5", 5),
        ("nullable", "null", None),
        ("both", "1.5", 1.5),
        ("circle", "1", 1),
        ("any", "1", 1),
        ("any", "True", "True"),
        ("any", "two words", "two words"),
        ("undeclared", "{}", {}),
    ],
)
def test_a_raw_value_has_the_type_of_its_schema(name, written, value):
    read = json.loads(argument_json(written, PARAMETERS, name))
    assert read == value
    assert type(read) is type(value)


NESTED = {
    "f": {
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}},
            "inner": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "$defs": {"Inner": {"type": "object", "properties": {"item": {"type": "integer"}, "code": {"type": "string"}}}},
    }
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("<names><item>1</item><item>x</item></names>", {"names": ["1", "x"]}),
        ("<names></names>", {"names": []}),
        ("<inner><item>1</item><code>2</code></inner>", {"inner": {"item": 1, "code": "2"}}),
        ("<inner>null</inner>", {"inner": None}),
        ("<map><item>1</item></map><map2><item>1</item></map2>", {"map": {"item": "1"}, "map2": [1]}),
        ("<map></map><a></a>", {"map": {}, "a": ""}),
    ],
)
def test_values_in_tags_of_their_own_get_the_types_of_the_schema(written, expected):
    text = f'<invoke name="f">{written}</invoke>'.replace("<", "]<]minimax[>[<")
    (call,) = nested_calls(text, NESTED)
    assert (call.name, json.loads(call.arguments)) == ("f", expected)


@pytest.mark.parametrize(
    "written", ["<a>1</a><a>2</a>", "<a>x<b>1</b></a>", "<a>1</b>", "<a>1", "<a", "<a>" * 70, "</a>"]
)
def test_tags_that_do_not_match_are_no_call(written):
    with pytest.raises(Malformed):
        nested_calls(f'<invoke name="f">{written}</invoke>'.replace("<", "]<]minimax[>[<"), NESTED)
