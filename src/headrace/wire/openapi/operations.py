"""Descriptions of routes for OpenAPI: the requests and the responses of each path."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import GenericAlias

from headrace.wire.fields import FieldTable
from headrace.wire.framing import JSON_CONTENT_TYPE, SSE_CONTENT_TYPE

OPENAPI_PATH = "/openapi.json"
JSON = (JSON_CONTENT_TYPE,)
AnswerType = type | GenericAlias
"""A struct, or a list or mapping."""
JSON_OR_EVENTS = (JSON_CONTENT_TYPE, SSE_CONTENT_TYPE)


@dataclass(frozen=True, slots=True)
class Api:
    """A group of routes that share clients and a format of errors."""

    name: str
    about: str
    error: str
    """The name of the schema of its errors, one of `document.ERRORS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    api: Api
    method: str
    path: str
    """As the router has it; parameters are `{name}` or `{name:path}`."""
    summary: str
    bodies: tuple[type, ...] = ()
    """The structs that parse the body, one of which it must match; empty: it has no body."""
    example: Mapping[str, object] = field(default_factory=dict)
    """A body that works as it is."""
    fields: Mapping[str, FieldTable] = field(default_factory=dict)
    """The tables of the fields that the structs lack, by the prefix of their names."""
    produces: tuple[str, ...] = JSON
    """Content types of a successful response; empty: it has no body."""
    answers: tuple[AnswerType, ...] = ()
    """The types of a JSON response, one of which it has; empty: any value."""
    events: tuple[AnswerType, ...] = ()
    """The types of the `data` of a stream's events, or of its lines."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Optional parameters of the query, each with a description."""
    is_open: bool = False
    """True if no key is required."""


def with_model(operations: Iterable[Operation], model: str) -> tuple[Operation, ...]:
    """Return the operations with the name of the served model in their examples."""
    return tuple(
        replace(operation, example={**operation.example, "model": model}) if "model" in operation.example else operation
        for operation in operations
    )
