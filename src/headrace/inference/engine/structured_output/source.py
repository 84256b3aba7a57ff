"""Conversion of a client's constraint to llguidance's grammar. Pure; large ones take up to a second."""

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.generation import Grammar, GrammarKind
from headrace.inference.engine.structured_output.schema.document import SchemaError
from headrace.inference.engine.structured_output.schema.keywords import PATTERN, is_pattern
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
_PATTERNS: frozenset[GrammarKind] = frozenset({"regex", "lark", "ebnf", "json_object"})
_TREE_MARKS = re.compile(r"^[ \t]*[?!]{1,2}(?=\w[^:\n]*:(?!:=))", re.MULTILINE)
"""`?rule:` and `!rule:` of Lark say how a tree is built, not what text is allowed; llguidance knows neither."""

UNFORCED: frozenset[GrammarKind] = frozenset({"lark", "ebnf", "structural_tag"})
"""The kinds in which llguidance must not look for the only text that can follow: after `/a+/ /a/` that has no end."""
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Source: llguidance 1.0 to 1.9.1, `docs/syntax.md`."""


class GrammarError(ValueError):
    """A constraint that cannot be enforced; the message is a sentence without the field's name."""


def grammar_source(grammar: Grammar) -> str:
    """Return a constraint as a grammar of llguidance; raise `GrammarError` if it is not valid or cannot be enforced."""
    limit = _MAX_CHARS.get(grammar.kind, _MAX_OTHER_CHARS)
    if len(grammar.text) > limit:
        raise GrammarError(f"It has {len(grammar.text)} characters; expected at most {limit}.")
    if grammar.kind in _PATTERNS and not is_pattern(grammar.text):
        raise GrammarError(f"It is too long to compile; expected {PATTERN}.")
    try:
        return _source(grammar)
    except SchemaError as error:
        raise GrammarError(str(error)) from error
    except RecursionError as error:
        raise GrammarError("It is nested too deeply.") from error


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher  # imported by the first request with a grammar

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind in _LARK:
        options = _NO_FORCING if grammar.kind in UNFORCED else ""
        return LLMatcher.grammar_from_lark(options + _LARK[grammar.kind](grammar))
    schema = grammar.text if grammar.kind == "json_schema" else '{"type": "object"}'
    return LLMatcher.grammar_from_json_schema(json.dumps(normalise_schema(schema)), overrides=_json_options(grammar))


def has_maps(source: str) -> bool:
    """Return whether a JSON grammar allows objects with property names that it does not list."""
    return any(
        (_says_object(part.get("type")) and "additionalProperties" not in part)
        or "patternProperties" in part
        or part.get("additionalProperties", False) is not False
        for part in _objects(json.loads(source))
    )


def _says_object(types: object) -> bool:
    # Of a property that is called `type`, or in a constant, this may be anything.
    return types == "object" or (isinstance(types, list) and "object" in types)


def pattern_sources(source: str) -> list[str]:
    """
    Return a separate grammar for each bounded string pattern in the grammar of a JSON schema.

    llguidance reads a pattern only when its string begins, in the middle of an answer. Patterns without `{m,n}` are
    left out: they do not grow beyond their text.
    """
    from llguidance import LLMatcher

    found: dict[str, None] = {}
    schemas = [grammar.get("json_schema") for grammar in json.loads(source).get("grammars", ())]
    for part in _objects(schemas, skipped=("const", "enum")):
        if isinstance(part.get("pattern"), str) and "{" in part["pattern"]:
            bounds = {key: part[key] for key in ("pattern", "minLength", "maxLength") if key in part}
            found[json.dumps({"type": "string", **bounds})] = None
    return [LLMatcher.grammar_from_json_schema(schema) for schema in found]


def _objects(root: object, *, skipped: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value, but for those below the keys in `skipped`."""
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            pending += [value for key, value in part.items() if key not in skipped]


def _json_options(grammar: Grammar) -> "JsonCompileOptions":
    spacing = _WHITESPACE if grammar.whitespace_pattern is None else grammar.whitespace_pattern
    return {"whitespace_pattern": spacing, "json_allowed_escapes": _ESCAPES}


def _choice_lark(grammar: Grammar) -> str:
    try:
        choices = msgspec.json.decode(grammar.text, type=list[str])
    except msgspec.DecodeError as error:
        raise GrammarError("Expected a list of strings.") from error
    if not any(choices) or len(choices) > _MAX_CHOICES:
        raise GrammarError(f"It has {len(choices)} choices; expected 1 to {_MAX_CHOICES} that are not empty.")
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return f"start: CHOICE\nCHOICE: {alternatives}"


def _plain_lark(grammar: Grammar) -> str:
    return _TREE_MARKS.sub("", grammar.text)


def _ebnf_lark(grammar: Grammar) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(_plain_lark(grammar))
    except RecursionError:
        raise
    except Exception as error:  # the converter raises Exception itself
        raise GrammarError(f"{error}.") from error


def _tag_lark(grammar: Grammar) -> str:
    def schema_text(schema: object) -> str:
        normalised = normalise_schema(json.dumps(schema))
        wrapped: dict[str, Any] = normalised if isinstance(normalised, dict) else {"allOf": [normalised]}
        return json.dumps({**wrapped, "x-guidance": _json_options(grammar)})

    return structural_tag_lark(grammar.text, schema_text)


_LARK: dict[GrammarKind, Callable[[Grammar], str]] = {
    "choice": _choice_lark,
    "lark": _plain_lark,
    "ebnf": _ebnf_lark,
    "structural_tag": _tag_lark,
}
"""The kinds that become a Lark grammar."""
