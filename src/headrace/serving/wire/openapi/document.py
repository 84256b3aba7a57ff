"""
The OpenAPI document of a list of operations.

The schemas of responses and events come from the interfaces of `answers.ts`. The renderers write dicts and byte
templates for speed; `tests/serving/server/test_openapi.py` holds their output against these schemas, in which no
unnamed member is allowed.

Source: OpenAPI Specification 3.1.1, whose schemas are those of JSON Schema 2020-12.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from headrace.serving.wire.fields import FieldTable
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, SSE_CONTENT_TYPE, to_json

_Object = dict[str, object]

_TEXT: _Object = {"type": "string"}
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_MODULE_PREFIX = b"headrace.serving.wire."
"""Schemas of structs with the same name are distinguished by their modules."""
_STREAMED = "The response. The schema of a stream is that of the `data` of each event, or of each line."


@dataclass(frozen=True, slots=True)
class Api:
    """A group of routes that share clients and a format of errors."""

    name: str
    about: str
    error: str
    """The type of its errors in `answers.ts`."""
    stream: str = SSE_CONTENT_TYPE
    """The content type of its streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    api: Api
    method: str
    path: str
    """As the router has it; parameters are `{name}` or `{name:path}`."""
    summary: str
    answer: str
    """The type of a JSON response in `answers.ts`, or the content type of another one; empty: none."""
    event: str = ""
    """The type of the `data` of a stream's events, or of its lines; empty: it does not stream."""
    bodies: tuple[type, ...] = ()
    """The structs that parse the body, one of which it must match; empty: it has no body."""
    example: Mapping[str, object] = field(default_factory=dict)
    """A body that works as it is."""
    fields: Mapping[str, FieldTable] = field(default_factory=dict)
    """The tables of the fields that the structs lack, by the prefix of their names."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Optional parameters of the query, each with a description."""
    is_open: bool = False
    """True if no key is required."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of its responses, events and errors."""
        return tuple(kind for kind in (self.answer, self.event, self.api.error) if kind and "/" not in kind)

    @property
    def produces(self) -> tuple[str, ...]:
        """The content types of a successful response."""
        whole = self.answer if "/" in self.answer else JSON_CONTENT_TYPE
        return (*((whole,) if self.answer else ()), *((self.api.stream,) if self.event else ()))


def render_openapi(operations: Sequence[Operation], *, title: str, version: str, description: str) -> bytes:
    """Render the document as JSON; `description` is its introduction."""
    bodies = list(dict.fromkeys(body for operation in operations for body in operation.bodies))
    found, components = msgspec.json.schema_components(bodies, schema_hook=_any_value, ref_template=_REFERENCE)
    references = dict(zip(bodies, found, strict=True))
    answers = _answer_types().components(kind for operation in operations for kind in operation.kinds)
    assert not answers.keys() & components.keys(), "an interface of answers.ts has the name of a request's struct"
    paths: dict[str, _Object] = {}
    for operation in operations:
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, references)
    apis = dict.fromkeys(operation.api for operation in operations)
    document = to_json(
        {
            "openapi": "3.1.1",
            "info": {"title": title, "version": version, "description": description},
            "tags": [{"name": api.name, "description": api.about} for api in apis],
            "security": [{"key": []}, {}],
            "paths": paths,
            "components": {
                "schemas": {**components, **answers},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The server's key."}},
            },
        }
    )
    return document.replace(_MODULE_PREFIX, b"")


def _any_value(kind: type) -> _Object:
    """Return the schema of values that a struct accepts unchecked: any JSON value."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _operation(operation: Operation, references: Mapping[type, _Object]) -> _Object:
    words = re.findall(r"\w+", operation.path) or ["root"]
    described: _Object = {
        "tags": [operation.api.name],
        "summary": operation.summary,
        "operationId": "_".join((operation.method.lower(), *words)),
        "responses": _responses(operation),
    }
    description = "\n\n".join(
        note for prefix, table in operation.fields.items() for note in _field_notes(prefix, table)
    )
    if description:
        described["description"] = description
    in_path = [{"name": name, "in": "path", "required": True} for name in _PATH_PARAMETER.findall(operation.path)]
    in_query = [
        {"name": name, "in": "query", "required": False, "description": about}
        for name, about in operation.query.items()
    ]
    if in_path or in_query:
        described["parameters"] = [{**parameter, "schema": _TEXT} for parameter in (*in_path, *in_query)]
    if operation.bodies:
        schemas = [references[body] for body in operation.bodies]
        content: _Object = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
        if operation.example:
            content["example"] = operation.example
        described["requestBody"] = {"required": not operation.query, "content": {JSON_CONTENT_TYPE: content}}
    if operation.is_open:
        described["security"] = []
    return described


def _responses(operation: Operation) -> _Object:
    content = {kind: {"schema": _response_schema(operation, kind)} for kind in operation.produces}
    success: _Object = {"description": _STREAMED if operation.event else "The response."}
    if content:
        success["content"] = content
    error = {"schema": {"$ref": _REFERENCE.format(name=operation.api.error)}}
    refusal = {
        "description": "An error. Its text names the value, what was expected, and the fix.",
        "content": {JSON_CONTENT_TYPE: error},
    }
    return {"200": success, "default": refusal}


def _response_schema(operation: Operation, kind: str) -> _Object:
    """Return the schema of a response; that of a stream describes one event, as in OpenAI's own document."""
    if kind == operation.answer:
        return _TEXT
    return _answer_types().schema(operation.answer if kind == JSON_CONTENT_TYPE else operation.event)


def _field_notes(prefix: str, table: FieldTable) -> Iterator[str]:
    if table.no_effect:
        yield f"Accepted without effect: {_names(prefix, table.no_effect)}."
    if table.refused:
        yield f"Refused unless null, false or empty: {_names(prefix, table.refused)}."


def _names(prefix: str, names: Iterable[str]) -> str:
    return ", ".join(f"`{prefix}{name}`" for name in sorted(names))


_REFERENCE = "#/components/schemas/{name}"

_ALIAS = re.compile(r"^type (\w+) = (.+)$", re.MULTILINE)
_INTERFACE = re.compile(
    r"^/\*\* (?P<about>.+) \*/\ninterface (?P<name>\w+)(?: extends (?P<base>\w+))? \{(?P<members>[^}]*)\}",
    re.MULTILINE,
)
_MEMBER = re.compile(r"(?P<name>\w+)(?P<is_optional>\??): (?P<type>[^;\n]*[^;\s])")
_CONTINUED = re.compile(r"\|\n\s+")
_OR = re.compile(r" \| (?![^(]*\))")
"""Between the members of a union, not inside of parentheses."""
_RECORD = "Record<string, "
_BASIC: Mapping[str, _Object] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "null")},
    "unknown": {"description": "Any JSON value."},
}


@dataclass(frozen=True, slots=True)
class _AnswerTypes:
    """The declarations of a file of interfaces."""

    aliases: Mapping[str, str]
    interfaces: Mapping[str, re.Match[str]]

    def schema(self, kind: str) -> _Object:
        """Return the schema of a type; interfaces are referred to."""
        options = _OR.split(self.aliases.get(kind, kind))
        literals = [option.strip('"') for option in options if option.startswith('"')]
        schemas: list[_Object] = [{"enum": literals}] if literals else []
        schemas += [self._single(option) for option in options if not option.startswith('"')]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def components(self, kinds: Iterable[str]) -> dict[str, _Object]:
        """Return the schemas of all interfaces that the types refer to, directly or not."""
        found: dict[str, _Object] = {}
        pending = [self.schema(kind) for kind in kinds]
        while pending:
            for name in re.findall(rb'"#/components/schemas/(\w+)"', to_json(pending.pop())):
                if name.decode() not in found:
                    found[name.decode()] = self._interface(self.interfaces[name.decode()])
                    pending.append(found[name.decode()])
        return found

    def _single(self, kind: str) -> _Object:
        if kind in self.aliases:
            return self.schema(kind)
        if kind.endswith("[]"):
            return {"type": "array", "items": self.schema(kind[:-2].removeprefix("(").removesuffix(")"))}
        if kind.startswith(_RECORD):
            return {"type": "object", "additionalProperties": self.schema(kind[len(_RECORD) : -1])}
        return _BASIC.get(kind) or {"$ref": _REFERENCE.format(name=kind)}

    def _interface(self, declared: re.Match[str]) -> _Object:
        texts = [declared["members"]]
        if declared["base"] is not None:
            texts.insert(0, self.interfaces[declared["base"]]["members"])
        members = [member for text in texts for member in _MEMBER.finditer(text)]
        return {
            "title": declared["name"],
            "description": declared["about"],
            "type": "object",
            "properties": {member["name"]: self.schema(member["type"]) for member in members},
            "required": [member["name"] for member in members if not member["is_optional"]],
        }


@cache
def _answer_types() -> _AnswerTypes:
    """Return the declarations of `answers.ts`."""
    text = _CONTINUED.sub("| ", Path(__file__).with_name("answers.ts").read_text(encoding="utf-8"))
    return _AnswerTypes(
        aliases=dict(_ALIAS.findall(text)),
        interfaces={found["name"]: found for found in _INTERFACE.finditer(text)},
    )
