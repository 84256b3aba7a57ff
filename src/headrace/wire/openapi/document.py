"""
The OpenAPI document of a list of operations.

Source: OpenAPI Specification 3.1.1, whose schemas are those of JSON Schema 2020-12.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.wire.fields import FieldTable
from headrace.wire.framing import JSON_CONTENT_TYPE, to_json
from headrace.wire.openapi.operations import AnswerType, Api, Operation

_Object = dict[str, object]

_TEXT: _Object = {"type": "string"}
ERRORS: dict[str, _Object] = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
        },
    },
    "TextError": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
    "TypedError": {
        "type": "object",
        "required": ["error", "error_type"],
        "properties": {"error": _TEXT, "error_type": _TEXT},
    },
    "AwsError": {"type": "object", "properties": {"message": _TEXT, "Message": _TEXT}},
}
"""The formats of errors, by the name of their schema."""

_PATH_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_MODULE_PREFIX = b"headrace.wire."
"""Schemas of structs with the same name are distinguished by their modules."""
_STREAMED = "The response. The schema of a stream is that of the `data` of each event, or of each line."
_TEMPLATE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInfo:
    """The title, version and introduction of a document."""

    title: str
    version: str
    description: str


def render_openapi(operations: Sequence[Operation], info: DocumentInfo) -> bytes:
    """Render the document as JSON."""
    types = list(dict.fromkeys(kind for operation in operations for kind in _types_of(operation)))
    found, components = msgspec.json.schema_components(types, schema_hook=_any_value, ref_template=_TEMPLATE)
    references = dict(zip(types, found, strict=True))
    paths: dict[str, _Object] = {}
    for operation in operations:
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, references)
    document = to_json(
        {
            "openapi": "3.1.1",
            "info": {"title": info.title, "version": info.version, "description": info.description},
            "tags": [{"name": api.name, "description": api.about} for api in _apis(operations)],
            "security": [{"key": []}, {}],
            "paths": paths,
            "components": {
                "schemas": {**ERRORS, **components},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The server's key."}},
            },
        }
    )
    return document.replace(_MODULE_PREFIX, b"")


def _types_of(operation: Operation) -> tuple[AnswerType, ...]:
    return (*operation.bodies, *operation.answers, *operation.events)


def _any_value(kind: type) -> _Object:
    """Return the schema of values that a struct accepts unchecked: any JSON value."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _apis(operations: Iterable[Operation]) -> Iterable[Api]:
    return dict.fromkeys(operation.api for operation in operations)


def _operation(operation: Operation, references: Mapping[AnswerType, _Object]) -> _Object:
    described: _Object = {
        "tags": [operation.api.name],
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "responses": _responses(operation, references),
    }
    description = "\n\n".join(_field_notes(operation))
    if description:
        described["description"] = description
    parameters = [*_path_parameters(operation.path), *_query_parameters(operation)]
    if parameters:
        described["parameters"] = parameters
    if operation.bodies:
        described["requestBody"] = _request_body(operation, [references[body] for body in operation.bodies])
    if operation.is_open:
        described["security"] = []
    return described


def _identifier(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path) or ["root"]
    return "_".join((operation.method.lower(), *words))


def _path_parameters(path: str) -> Iterator[_Object]:
    for name in _PATH_PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": _TEXT}


def _query_parameters(operation: Operation) -> Iterator[_Object]:
    for name, description in operation.query.items():
        yield {"name": name, "in": "query", "required": False, "description": description, "schema": _TEXT}


def _request_body(operation: Operation, schemas: Sequence[_Object]) -> _Object:
    content: _Object = {"schema": _any_of(schemas)}
    if operation.example:
        content["example"] = operation.example
    return {"required": not operation.query, "content": {JSON_CONTENT_TYPE: content}}


def _any_of(schemas: Sequence[_Object]) -> _Object:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _responses(operation: Operation, references: Mapping[AnswerType, _Object]) -> _Object:
    content = {kind: {"schema": _response_schema(operation, kind, references)} for kind in operation.produces}
    success: _Object = {"description": _STREAMED if operation.events else "The response."}
    if content:
        success["content"] = content
    error = {"schema": {"$ref": _TEMPLATE.format(name=operation.api.error)}}
    refusal = {
        "description": "An error. Its text names the value, what was expected, and the fix.",
        "content": {JSON_CONTENT_TYPE: error},
    }
    return {"200": success, "default": refusal}


def _response_schema(operation: Operation, kind: str, references: Mapping[AnswerType, _Object]) -> _Object:
    """Return the schema of a response; that of a stream describes one event, as in OpenAI's own document."""
    types = operation.answers if kind == JSON_CONTENT_TYPE else operation.events
    if types:
        return _any_of([references[kind] for kind in types])
    return {} if kind == JSON_CONTENT_TYPE else _TEXT


def _field_notes(operation: Operation) -> Iterator[str]:
    """Yield notes on the fields that the schema lacks."""
    for prefix, table in operation.fields.items():
        yield from _table_notes(prefix, table)


def _table_notes(prefix: str, table: FieldTable) -> Iterator[str]:
    if table.no_effect:
        yield f"Accepted without effect: {_names(prefix, table.no_effect)}."
    if table.refused:
        yield f"Refused unless null, false or empty: {_names(prefix, table.refused)}."


def _names(prefix: str, names: Iterable[str]) -> str:
    return ", ".join(f"`{prefix}{name}`" for name in sorted(names))
