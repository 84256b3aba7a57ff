"""llguidance's errors, reworded for the author of a grammar."""

_MAX_ERROR_CHARS = 300
_MEANINGS = {
    "NoExtension": "it allows no text at all.",
    "circular references with sibling keys": "a `$ref` that leads back to itself has other keywords beside it. "
    "Move them into the schema that it refers to.",
    "oneOf constraints are not supported": "a value may fit two branches of its `oneOf`. Use `anyOf`.",
    "min/maxProperties only supported": "`minProperties` and `maxProperties` are supported where all `properties` are "
    "`required`, and 1 where none is.",
    "too many expressions constructed": "it is too complex. Use smaller bounds in `{m,n}`, and do not nest them.",
    "lexer precomputation failed": "it is too complex. Use fewer repetitions.",
    "recursion limit exceeded": "it is nested too deeply. Use `$defs` and `$ref` to make it flatter.",
}
"""Explanations of llguidance's errors, by a part of their text."""


def explain_error(error: str) -> str:
    """Return the first sentence of an error, without the parser's state, which is long and quotes the answer."""
    meaning = next((meaning for part, meaning in _MEANINGS.items() if part in error), None)
    return meaning or error.strip().split("\n<state>")[0].split("\n  while processing")[0][:_MAX_ERROR_CHARS]
