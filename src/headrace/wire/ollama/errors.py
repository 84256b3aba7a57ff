"""
Errors in Ollama's format: `{"error": "..."}`, as the body or as the last line of a stream.

Triton and KServe have the same format.
"""

from headrace.core.errors import HeadraceError
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import json_line, to_json


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    return to_json({"error": error.message})


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))


def error_line(error: HeadraceError) -> bytes:
    """Render the line that ends a stream with an error."""
    return json_line(error_body(error))
