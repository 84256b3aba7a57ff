"""Constraints are understood in every spelling, in every dialect, and never dropped."""

import json

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.registry import DIALECT_NAMES, get_dialect
from tests.serving.wire.samples import parse
from tests.tables import check_rows

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA)
GBNF = 'root ::= "a" | "b"'
LARK = 'start: "a" | "b"'
TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}

JSON_SCHEMA = Grammar("json_schema", '{"type":"object","properties":{"a":{"type":"integer"}}}')
SPACED = Grammar("json_schema", JSON_SCHEMA.text, whitespace_pattern="[ ]?")
COMPACT = Grammar("json_schema", JSON_SCHEMA.text, whitespace_pattern="")
JSON_OBJECT = Grammar("json_object")
REGEX = Grammar("regex", "a+")
CHOICE = Grammar("choice", '["a","b"]')
EBNF = Grammar("ebnf", GBNF)

SPELLINGS = [
    # OpenAI
    ({"response_format": {"type": "text"}}, None, None),
    ({"response_format": {"type": "json_object"}}, JSON_OBJECT, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        JSON_SCHEMA,
        "response_format.json_schema.schema",
    ),
    # TGI; the second is what huggingface_hub makes of OpenAI's json_schema
    ({"response_format": {"type": "json", "value": SCHEMA}}, JSON_SCHEMA, "response_format.value"),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, JSON_SCHEMA, "response_format.value"),
    ({"response_format": {"type": "regex", "value": "a+"}}, REGEX, "response_format.value"),
    (
        {"response_format": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}},
        JSON_SCHEMA,
        "response_format.value.schema",
    ),
    ({"grammar": {"type": "json", "value": SCHEMA}}, JSON_SCHEMA, "grammar.value"),
    ({"grammar": {"type": "json", "value": TEXT}}, JSON_SCHEMA, "grammar.value"),
    ({"grammar": {"type": "json_object", "value": SCHEMA}}, JSON_SCHEMA, "grammar.value"),
    (
        {"grammar": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}},
        JSON_SCHEMA,
        "grammar.value.schema",
    ),
    ({"grammar": {"type": "regex", "value": "a+"}}, REGEX, "grammar.value"),
    # llama-server
    ({"grammar": GBNF}, EBNF, "grammar"),
    ({"json_schema": SCHEMA}, JSON_SCHEMA, "json_schema"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON_SCHEMA, "response_format.schema"),
    # vLLM
    ({"structured_outputs": {"json": SCHEMA}}, JSON_SCHEMA, "structured_outputs.json"),
    ({"structured_outputs": {"json": TEXT}}, JSON_SCHEMA, "structured_outputs.json"),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?"}}, SPACED, "structured_outputs.json"),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, COMPACT, "structured_outputs.json"),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True, "_backend": "xgrammar"}},
        JSON_SCHEMA,
        "structured_outputs.json",
    ),
    ({"structured_outputs": {"regex": "a+"}}, REGEX, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}}, REGEX, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, CHOICE, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": GBNF, "json": None}}, EBNF, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": LARK}}, Grammar("ebnf", LARK), "structured_outputs.grammar"),
    ({"structured_outputs": {"json_object": True}}, JSON_OBJECT, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "tag", "structured_outputs.structural_tag"),
    ({"guided_json": SCHEMA}, JSON_SCHEMA, "guided_json"),
    ({"guided_json": TEXT, "guided_decoding_backend": "outlines"}, JSON_SCHEMA, "guided_json"),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"}, SPACED, "guided_json"),
    ({"guided_regex": "a+"}, REGEX, "guided_regex"),
    ({"guided_choice": ["a", "b"]}, CHOICE, "guided_choice"),
    ({"guided_grammar": GBNF}, EBNF, "guided_grammar"),
    ({"guided_json_object": True}, JSON_OBJECT, "guided_json_object"),
    ({"guided_json_object": False, "guided_json": None}, None, None),
    # SGLang
    ({"regex": "a+"}, REGEX, "regex"),
    ({"json_schema": TEXT}, JSON_SCHEMA, "json_schema"),
    ({"ebnf": GBNF}, EBNF, "ebnf"),
    ({"structural_tag": TAG}, "tag", "structural_tag"),
    ({"response_format": {"type": "structural_tag", **TAG}}, "tag", "response_format"),
]

DIALECTS = {
    **{name: get_dialect(name) for name in DIALECT_NAMES if name not in {"openai", "tei"}},
    "chat": OpenAIChat(),
    "completions": OpenAICompletions(),
}


def constraint(name, fields):
    """The grammar of a request in this dialect, and the path of `fields` in its body."""
    if name == "chat":
        parsed, prefix = parse(DIALECTS[name], messages=[{"role": "user", "content": "hi"}], **fields), ""
    elif name == "completions":
        parsed, prefix = parse(DIALECTS[name], prompt="hi", **fields), ""
    else:
        parsed, prefix = parse(DIALECTS[name], inputs="hi", parameters=fields), "parameters."
    return parsed.requests[0].sampling.grammar, prefix


@pytest.mark.parametrize("name", DIALECTS)
def test_every_spelling_means_the_same_in_every_dialect(name):
    check_rows(((json.dumps(row[0]), (name, *row)) for row in SPELLINGS), check_spelling)


def check_spelling(name, fields, wanted, param):
    grammar, prefix = constraint(name, fields)
    if wanted == "tag":
        assert grammar.kind == "structural_tag"
        assert json.loads(grammar.text).items() >= TAG.items()
    else:
        assert grammar == wanted
    if grammar is not None:
        assert grammar.param == prefix + param


BROKEN = [
    ({"regex": "a", "guided_json": {}}, "'guided_json' and 'regex' both constrain the answer"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "'response_format' and 'structured_outputs' both",
    ),
    (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "'structured_outputs.regex' and 'structured_outputs.choice' both",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "value": {}}},
        "'response_format.json_schema.schema' and 'response_format.value' both",
    ),
    ({"response_format": {"type": "text", "value": {}}}, "it is 'text', but 'response_format.value'"),
    ({"response_format": {"type": "json"}}, "Missing required parameter: 'response_format.value'"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "'response_format.json_schema.schema'"),
    ({"response_format": {"type": "json_object", "pattern": "a"}}, "unknown field `pattern`"),
    ({"response_format": {"type": "regex", "value": {}}}, "a regular expression must be a string"),
    ({"structured_outputs": {}}, "contains no constraint. Expected one of json, regex, choice"),
    ({"structured_outputs": {"json_object": False}}, "contains no constraint"),
    ({"structured_outputs": {"jsn": {}}}, "unknown field `jsn`"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "it applies only to JSON"),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
        "'structured_outputs.disable_any_whitespace' and 'structured_outputs.whitespace_pattern' both",
    ),
    ({"guided_whitespace_pattern": " "}, "it applies only to JSON"),
    (
        {"guided_whitespace_pattern": " ", "structured_outputs": {"json": {}, "whitespace_pattern": ""}},
        "'structured_outputs.json' and 'guided_whitespace_pattern' both",
    ),
    ({"guided_choice": []}, "at least one string"),
    ({"regex": ""}, "empty string"),
    ({"ebnf": " "}, "empty string"),
    ({"json_schema": "{"}, "not valid JSON"),
    ({"json_schema": "[]"}, "a JSON schema must be an object"),
]


@pytest.mark.parametrize("name", DIALECTS)
def test_anything_but_one_valid_constraint_is_refused(name):
    check_rows(((json.dumps(row[0]), (name, *row)) for row in BROKEN), check_refusal)


def check_refusal(name, fields, text):
    with pytest.raises(InvalidRequest) as caught:
        constraint(name, fields)
    if name not in {"chat", "completions"}:
        for field in fields:
            text = text.replace(f"'{field}", f"'parameters.{field}")
    assert text in caught.value.message
    assert caught.value.param is not None


@pytest.mark.parametrize("name", [name for name in DIALECTS if name not in {"chat", "completions"}])
def test_a_constraint_outside_of_the_parameters_is_refused(name):
    with pytest.raises(InvalidRequest, match="Move it to 'parameters'"):
        parse(DIALECTS[name], inputs="hi", response_format={"type": "json_object"})
