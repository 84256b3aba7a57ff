"""
Constrained output in every server's spelling, parsed into one `Grammar`.

| origin | fields |
|---|---|
| OpenAI | `response_format`: `json_object`, `json_schema` |
| TGI | `grammar` and `response_format` with a `value`: `json`, `json_object`, `json_schema`, `regex` |
| vLLM | `structured_outputs`; before 0.12 `guided_*` |
| SGLang | `regex`, `json_schema`, `ebnf`, `structural_tag`, `response_format` of type `structural_tag` |
| llama-server | `grammar` (GBNF), `json_schema`, `response_format` with a `schema` |

All dialects accept all of them: their request structs inherit `ConstraintFields`. Two constraints in one request are
refused, as is an empty one: the client expects an effect that it would not have.

Source: OpenAI API reference; TGI `router/src/lib.rs` (GrammarType); vLLM `sampling_params.py`; SGLang
`entrypoints/openai/protocol.py`; llama.cpp `tools/server/README.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar
from headrace.serving.wire.framing import invalid, missing, to_json

_JSON_KINDS = frozenset({"json_schema", "json_object", "structural_tag"})
"""Kinds of grammar that allow white space between tokens."""


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The field `response_format.json_schema`; a schema is enforced whether it is `strict` or not."""

    schema: dict[str, object] | bool | str | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The value of `response_format` and of TGI's `grammar`."""

    type: Literal["text", "json_object", "json_schema", "json", "regex", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, object] | bool | None = None
    value: object = None
    format: dict[str, object] | None = None
    structures: list[dict[str, object]] | None = None
    triggers: list[str] | None = None
    at_least_one: bool | None = None
    stop_after_first: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The value of vLLM's `structured_outputs`: one constraint and the white space of JSON."""

    json: dict[str, object] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, object] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    """No effect: objects are closed unless their schema opens them."""
    disable_fallback: bool | None = None
    """No effect: there is one backend."""
    backend: str | None = msgspec.field(name="_backend", default=None)
    backend_was_auto: bool | None = msgspec.field(name="_backend_was_auto", default=None)


class ConstraintFields(msgspec.Struct, kw_only=True):
    """The fields of a request that constrain its answer; null is the same as an absent field."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: ResponseFormat | str | None = None
    guided_json: dict[str, object] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    regex: str | None = None
    json_schema: dict[str, object] | bool | str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, object] | str | None = None


class TextParameters(ConstraintFields):
    """The parameters that TGI and LMI share; null is the same as an absent field."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    truncate: int | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None


def read_constraint(fields: ConstraintFields, *, prefix: str = "") -> Grammar | None:
    """
    Return the constraint of a request, or None; `prefix` is the path of `fields` in the body (`parameters.`).

    Raises:
        InvalidRequest: a constraint is malformed or empty, or there are two.
    """
    grammar = _only_one(fields, _FIELDS, prefix)
    return _with_white_space(grammar, fields.guided_whitespace_pattern, param=f"{prefix}guided_whitespace_pattern")


def read_schema(schema: object, *, param: str) -> Grammar:
    """Return a JSON schema, given as an object or text, as a grammar. Raises `InvalidRequest`: it is neither."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise invalid(param, f"not valid JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise invalid(param, "a JSON schema must be an object")
    return Grammar("json_schema", to_json(schema).decode(), param=param)


def refuse_two(first: str, second: str) -> InvalidRequest:
    """Return the error for two constraints in one request."""
    return InvalidRequest(f"'{first}' and '{second}' both constrain the answer. Send only one of them.", param=second)


def _only_one(fields: msgspec.Struct, readers: "Mapping[str, _Reader]", prefix: str) -> Grammar | None:
    constraints: list[tuple[str, Grammar]] = []
    for name, read in readers.items():
        value = getattr(fields, name)
        grammar = None if value is None else read(value, f"{prefix}{name}")
        if grammar is not None:
            constraints.append((f"{prefix}{name}", grammar))
    if len(constraints) > 1:
        raise refuse_two(constraints[0][0], constraints[1][0])
    return constraints[0][1] if constraints else None


def _with_white_space(grammar: Grammar | None, pattern: str | None, *, param: str) -> Grammar | None:
    if pattern is None:
        return grammar
    if grammar is None or grammar.kind not in _JSON_KINDS:
        raise invalid(param, "it applies only to JSON, but the request has no JSON schema")
    if grammar.whitespace_pattern is not None:
        raise refuse_two(grammar.param, param)
    return replace(grammar, whitespace_pattern=pattern)


def _response_format(value: ResponseFormat, param: str) -> Grammar | None:
    payload = _payload(value, param)
    if value.type == "structural_tag":
        return Grammar("structural_tag", to_json(value).decode(), param=param)
    if value.type == "text":
        if payload is not None:
            raise invalid(f"{param}.type", f"it is 'text', but '{payload[0]}' constrains the answer")
        return None
    if payload is None:
        if value.type == "json_object":
            return Grammar("json_object", param=param)
        raise missing(f"{param}.json_schema.schema" if value.type == "json_schema" else f"{param}.value")
    where, content = payload
    if value.type == "regex":
        if not isinstance(content, str):
            raise invalid(where, "a regular expression must be a string")
        return _regex(content, where)
    if value.type == "json_schema" and isinstance(content, dict) and "schema" in content:
        where, content = f"{where}.schema", content["schema"]  # TGI: the value is an object with a name and a schema
    return read_schema(content, param=where)


def _payload(value: ResponseFormat, param: str) -> tuple[str, object] | None:
    """Return the path and content of the constraint that accompanies the type."""
    nested = None if value.json_schema is None else value.json_schema.schema
    places = {f"{param}.json_schema.schema": nested, f"{param}.schema": value.schema, f"{param}.value": value.value}
    present = [(where, content) for where, content in places.items() if content is not None]
    if len(present) > 1:
        raise refuse_two(present[0][0], present[1][0])
    return present[0] if present else None


def _structured_outputs(value: StructuredOutputs, param: str) -> Grammar:
    grammar = _only_one(value, _STRUCTURED_OUTPUTS, f"{param}.")
    if grammar is None:
        raise invalid(param, f"it contains no constraint. Expected one of {', '.join(_STRUCTURED_OUTPUTS)}")
    pattern = value.whitespace_pattern
    if value.disable_any_whitespace and grammar.kind in _JSON_KINDS:
        if pattern is not None:
            raise refuse_two(f"{param}.disable_any_whitespace", f"{param}.whitespace_pattern")
        pattern = ""
    return _with_white_space(grammar, pattern, param=f"{param}.whitespace_pattern") or grammar


def _grammar(value: ResponseFormat | str, param: str) -> Grammar | None:
    """Parse TGI's `{"type", "value"}` or llama-server's GBNF."""
    return _context_free(value, param) if isinstance(value, str) else _response_format(value, param)


def _json_object(value: bool, param: str) -> Grammar | None:
    return Grammar("json_object", param=param) if value else None


def _schema(value: object, param: str) -> Grammar:
    return read_schema(value, param=param)


def _regex(value: str, param: str) -> Grammar:
    return Grammar("regex", _not_empty(value, param), param=param)


def _choice(value: list[str], param: str) -> Grammar:
    if not value:
        raise invalid(param, "empty array. Expected at least one string")
    return Grammar("choice", to_json(value).decode(), param=param)


def _context_free(value: str, param: str) -> Grammar:
    return Grammar("ebnf", _not_empty(value, param), param=param)


def _structural_tag(value: dict[str, object] | str, param: str) -> Grammar:
    text = _not_empty(value, param) if isinstance(value, str) else to_json(value).decode()
    return Grammar("structural_tag", text, param=param)


def _not_empty(value: str, param: str) -> str:
    if not value.strip():
        raise invalid(param, "empty string. Leave it out if the answer is not to be constrained")
    return value


_Reader = Callable[[Any, str], Grammar | None]

_FIELDS: Mapping[str, _Reader] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "grammar": _grammar,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _context_free,
    "guided_json_object": _json_object,
    "regex": _regex,
    "json_schema": _schema,
    "ebnf": _context_free,
    "structural_tag": _structural_tag,
}

_STRUCTURED_OUTPUTS: Mapping[str, _Reader] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _context_free,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
