"""Conversion of a batch to the input of a handler: one dictionary and one set of headers for each request."""

import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from headrace_handler.client_data import decode_text
from headrace_handler.contract import Item, Mode, Part

logger = logging.getLogger(__name__)


def read_data(item: Item, *, decode: bool) -> dict[str, Any]:
    """
    Return the parts of a request by name; a body that is not a form is called `body`.

    Without `decode` (`TS_DECODE_INPUT_REQUEST`), JSON and text are bytearrays, too.
    """
    data: dict[str, Any] = {}
    if item.path.startswith("/"):  # all routes but `/predictions` and similar ones pass on the query
        data |= {name: bytearray(value, "utf-8") for name, value in item.query}
    data.update((part.name or "body", _value(part, decode=decode)) for part in item.parts)
    return data


def read_headers(item: Item, mode: Mode, sequence_headers: tuple[str, str] | None) -> dict[str, Any]:
    """
    Return the headers of a request with those that TorchServe adds.

    `sequence_headers` are the names of the headers with a sequence's id and its start, for models that batch by
    sequence: a request without an id begins a sequence.
    """
    headers: dict[str, Any] = {part.name or "body": {"content-type": _mime_type(part)} for part in item.parts}
    headers |= dict(item.headers)
    if mode == "describe":
        headers["describe"] = "True"
    elif not item.path.startswith("/"):
        headers |= {"url_path": item.path, "explain": str(mode == "explain")}
    elif mode == "explain":
        headers["explain"] = "True"
    if sequence_headers is not None:
        id_header, start_header = sequence_headers
        if not any(name.lower() == id_header.lower() and value for name, value in item.headers):
            headers |= {id_header: f"ts-seq-{uuid.uuid4()}", start_header: "true"}
    return headers


def sequence_headers_of(context: Any, model_config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of the headers of sequences if the model batches by sequence."""
    if not model_config.get("sequenceBatching"):
        return None
    return context.header_key_sequence_id, context.header_key_sequence_start


def _value(part: Part, *, decode: bool) -> Any:
    mime_type = _mime_type(part)
    try:
        if decode and mime_type.lower() == "application/json":
            return json.loads(decode_text(part.content, part.content_type))
        if decode and mime_type.lower().startswith("text"):
            return decode_text(part.content, part.content_type)
    except (ValueError, RecursionError):
        logger.warning("The content of type %s cannot be decoded; the handler gets the bytes.", mime_type)
    return part.content


def _mime_type(part: Part) -> str:
    return (part.content_type or "").partition(";")[0].strip()
