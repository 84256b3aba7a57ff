"""
Errors in Anthropic's format: `{"type": "error", "error": {"type", "message"}}`.

Source: Anthropic API reference, "Errors".
"""

from headrace.core.errors import Busy, HeadraceError, ModelNotFound, Unavailable, UserError
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import to_json

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    return to_json({"type": "error", "error": {"type": _type(error), "message": error.message}})


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))


def error_event(error: HeadraceError) -> bytes:
    """Render the event that ends a stream with an error."""
    return b"event: error\ndata: %b\n\n" % error_body(error)


def _type(error: HeadraceError) -> str:
    if isinstance(error, ModelNotFound):
        return "not_found_error"
    if isinstance(error, Busy):
        return "rate_limit_error"
    if isinstance(error, Unavailable):
        return "overloaded_error"
    if error.http_status in _TYPES:
        return _TYPES[error.http_status]
    return "invalid_request_error" if isinstance(error, UserError) else "api_error"
