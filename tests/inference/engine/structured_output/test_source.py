"""Constraints other than JSON schemas, read by llguidance byte by byte."""

import json

import pytest
from llguidance import LLMatcher

from headrace.core.generation import Grammar
from headrace.inference.engine.structured_output.source import GrammarError, grammar_source
from tests.inference.engine.support import byte_tokenizer


def accepts(grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(byte_tokenizer().grammar_tokenizer(), grammar_source(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def tag(value: object) -> Grammar:
    return Grammar("structural_tag", json.dumps(value))


SCHEMA = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}


def formatted(value: object) -> Grammar:
    return tag({"type": "structural_tag", "format": value})


@pytest.mark.parametrize(
    ("grammar", "allowed", "forbidden"),
    [
        (Grammar("choice", '["a\\"b", "ü"]'), ['a"b', "ü"], ["a", "üü"]),
        (Grammar("choice", json.dumps([f"{n}" for n in range(10_000)])), ["9999", "1"], ["10000", ""]),
        (Grammar("ebnf", 'root ::= item ("," item)*\nitem ::= [a-c]+ | "/"'), ["a,bc", "/"], ["", "d"]),
        (Grammar("ebnf", 'start: "x"+'), ["xx"], [""]),
        (Grammar("json_object"), ['{"a": [1]}', "{}"], ["[]", '{  "a": 1}', "1"]),
        (Grammar("json_object", whitespace_pattern=""), ['{"a":1}'], ['{"a": 1}']),
        (
            tag({"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}),
            ['so <f>{"a": 1}</f> it is', "no call"],
            ['<f>{"a": 1, "b": 2}</f>', "<f>", "<fx"],
        ),
        (
            formatted(
                {
                    "type": "triggered_tags",
                    "triggers": ["<"],
                    "tags": [CALL],
                    "at_least_one": True,
                    "stop_after_first": True,
                }
            ),
            ['x<f>{"a": 1}</f>'],
            ["x", '<f>{"a": 1}</f>x'],
        ),
        (
            formatted({"type": "tags_with_separator", "separator": ",", "tags": [CALL]}),
            ['<f>{"a": 1}</f>,<f>{"a": 2}</f>', ""],
            ['<f>{"a": 1}</f><f>{"a": 2}</f>'],
        ),
        (
            formatted(
                {
                    "type": "sequence",
                    "elements": [
                        {"type": "const_string", "value": "a\n"},
                        {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]+/x"}, CALL | {"type": "tag"}]},
                    ],
                }
            ),
            ["a\n12/x", 'a\n<f>{"a": 1}</f>'],
            ["a\n", "12/x"],
        ),
        (
            formatted({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": ["</t>", "<eot>"]}),
            ["<t>anything</t>", "<t>\n<eot>"],
            ["<t>x", "<t>a</t>b"],
        ),
    ],
)
def test_a_constraint_allows_exactly_its_texts(grammar, allowed, forbidden) -> None:
    for text in allowed:
        assert accepts(grammar, text), text
    for text in forbidden:
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("choice", "[]"), "It has 0 choices; expected 1 to 10000"),
        (Grammar("choice", "[1]"), "Expected a list of strings"),
        (Grammar("ebnf", "root ::= " + "(" * 20_000), "nested too deeply"),
        (Grammar("ebnf", "root ::= x"), "Rule 'x' not found"),
        (Grammar("lark", "x" * 100_001), "It has 100001 characters; expected at most 100000."),
        (
            Grammar("regex", ".*" * 5001),
            "It is too long to compile; expected a regular expression with at most 5000 of",
        ),
        (Grammar("lark", "start: /" + ".*" * 5001 + "/"), "It is too long to compile"),
        (Grammar("json_schema", json.dumps({"pattern": ".*" * 50_000})), "`pattern` at # is"),
        (Grammar("json_schema", json.dumps({"patternProperties": {".*" * 50_000: {}}})), "`patternProperties` at # is"),
        (Grammar("json_schema", json.dumps({"propertyNames": {"pattern": ".*" * 50_000}})), "`propertyNames` at # is"),
        (formatted({"type": "regex", "pattern": ".*" * 5001}), "expected a regular expression with at most"),
        (Grammar("structural_tag", "["), "It is not valid JSON"),
        (tag([]), "expected an object"),
        (tag({"type": "structural_tag"}), "Expected `structures`"),
        (tag({"structures": [{"begin": "x", "schema": {}}], "triggers": ["<"]}), '`begin` of tag 0 is "x"'),
        (formatted({"type": "qwen_xml_parameter"}), '`format.type` is "qwen_xml_parameter"; expected one of'),
        (formatted({"type": "sequence", "elements": [{"type": "grammar"}]}), '`format.elements[0].type` is "grammar"'),
        (formatted(CALL | {"type": "tag", "begin": None}), "`format.begin` is null"),
        (formatted({"type": "json_schema", "json_schema": {"not": {}}}), "`not` at # is not supported"),
    ],
)
def test_an_invalid_constraint_is_refused_with_the_place(grammar, message) -> None:
    with pytest.raises(GrammarError) as refused:
        grammar_source(grammar)
    assert message in str(refused.value)
