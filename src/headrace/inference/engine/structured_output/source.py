"""Conversion of a client's constraint to llguidance's grammar. Pure; large ones take up to a second."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.generation import Grammar, GrammarKind
from headrace.inference.engine.structured_output.schema.document import SchemaError
from headrace.inference.engine.structured_output.schema.normalise import normalise_schema
from headrace.inference.engine.structured_output.structural_tag import structural_tag_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_WHITESPACE = r"\x20?|\n\x20{0,24}"
"""White space between tokens of JSON: a space or an indented line break. Small models fill `max_tokens` with more."""
_ESCAPES = 'nrbtf\\"'
"""No `\\u`: each string has one spelling, so that a key cannot come twice in two spellings."""
_MAX_CHARS: dict[GrammarKind, int] = {"json_schema": 1_000_000, "choice": 1_000_000, "structural_tag": 1_000_000}
_MAX_OTHER_CHARS = 100_000
_MAX_CHOICES = 10_000
_TREE_MARKS = re.compile(r"^[ \t]*[?!]{1,2}(?=\w[^:\n]*:(?!:=))", re.MULTILINE)
"""`?rule:` and `!rule:` of Lark say how a tree is built, not what text is allowed; llguidance knows neither."""


class GrammarError(ValueError):
    """A constraint that cannot be enforced; the message is a sentence without the field's name."""


def grammar_source(grammar: Grammar) -> str:
    """
    Return the constraint as a grammar of llguidance.

    Raises:
        GrammarError: The constraint is not valid or cannot be enforced.
    """
    limit = _MAX_CHARS.get(grammar.kind, _MAX_OTHER_CHARS)
    if len(grammar.text) > limit:
        raise GrammarError(f"It has {len(grammar.text)} characters; expected at most {limit}.")
    try:
        return _SOURCES[grammar.kind](grammar)
    except SchemaError as error:
        raise GrammarError(str(error)) from error
    except RecursionError as error:
        raise GrammarError("It is nested too deeply.") from error


def has_maps(source: str) -> bool:
    """Return whether a JSON grammar allows objects with property names that it does not list."""
    pending: list[Any] = [json.loads(source)]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            is_open = "object" in part.get("type", ()) and "additionalProperties" not in part
            if is_open or "patternProperties" in part or part.get("additionalProperties", False) is not False:
                return True
            pending += part.values()
    return False


def pattern_sources(source: str) -> list[str]:
    """
    Return a separate grammar for each bounded string pattern in the grammar of a JSON schema.

    llguidance reads a pattern only when its string begins, in the middle of an answer. Patterns without `{m,n}` are
    left out: they do not grow beyond their text.
    """
    from llguidance import LLMatcher

    found: dict[str, None] = {}
    pending = [grammar.get("json_schema") for grammar in json.loads(source).get("grammars", ())]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if isinstance(part.get("pattern"), str) and "{" in part["pattern"]:
                bounds = {key: part[key] for key in ("pattern", "minLength", "maxLength") if key in part}
                found[json.dumps({"type": "string", **bounds})] = None
            pending += [value for key, value in part.items() if key not in ("const", "enum")]
    return [str(LLMatcher.grammar_from_json_schema(schema)) for schema in found]


def _json_schema(grammar: Grammar) -> str:
    return _json_source(grammar, json.dumps(normalise_schema(grammar.text)))


def _json_object(grammar: Grammar) -> str:
    return _json_source(grammar, json.dumps(normalise_schema('{"type": "object"}')))


def _json_source(grammar: Grammar, schema: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_json_options(grammar)))


def _json_options(grammar: Grammar) -> "JsonCompileOptions":
    spacing = _WHITESPACE if grammar.whitespace_pattern is None else grammar.whitespace_pattern
    return {"whitespace_pattern": spacing, "json_allowed_escapes": _ESCAPES}


def _regex(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(grammar.text))


def _choice(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    try:
        choices = msgspec.json.decode(grammar.text, type=list[str])
    except msgspec.DecodeError as error:
        raise GrammarError("Expected a list of strings.") from error
    if not any(choices) or len(choices) > _MAX_CHOICES:
        raise GrammarError(f"It has {len(choices)} choices; expected 1 to {_MAX_CHOICES} that are not empty.")
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives}"))


def _lark(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_lark(_TREE_MARKS.sub("", grammar.text)))


def _ebnf(grammar: Grammar) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(LLMatcher.grammar_from_lark(any_to_lark(_TREE_MARKS.sub("", grammar.text))))
    except RecursionError:
        raise
    except Exception as error:  # the converter raises Exception itself
        raise GrammarError(f"{error}.") from error


def _structural_tag(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    def schema_text(schema: object) -> str:
        normalised = normalise_schema(json.dumps(schema))
        wrapped: dict[str, Any] = normalised if isinstance(normalised, dict) else {"allOf": [normalised]}
        return json.dumps({**wrapped, "x-guidance": _json_options(grammar)})

    return str(LLMatcher.grammar_from_lark(structural_tag_lark(grammar.text, schema_text)))


_SOURCES: dict[GrammarKind, Callable[[Grammar], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
