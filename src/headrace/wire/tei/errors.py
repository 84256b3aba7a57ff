"""
Errors in TEI's format: `{"error": ..., "error_type": ...}`.

Source: text-embeddings-inference `router/src/http/server.rs` (StatusCode of ErrorType), `core/src/lib.rs`.
"""

from headrace.core.errors import (
    Busy,
    EngineFailed,
    HeadraceError,
    Internal,
    InvalidRequest,
    PromptTooLong,
    Unavailable,
)
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import MalformedBody, to_json


class EmptyInput(InvalidRequest):
    """An input or a list of inputs without content."""

    code = "empty_input"


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error."""
    text, error_type, status = _translate(error)
    body = to_json({"error": text, "error_type": error_type})
    return ErrorReply(status=status, body=body, headers=retry_headers(error))


def _translate(error: HeadraceError) -> tuple[str, str, int]:
    """Return TEI's text, `error_type` and HTTP status."""
    for kind, text, error_type, status in _FORMS:
        if isinstance(error, kind):
            return text.format(_message(error)), error_type, status
    return error.message, error.code, error.http_status


def _message(error: HeadraceError) -> str:
    if isinstance(error, PromptTooLong):
        return f"`inputs` must have less than {error.max_prompt_tokens} tokens. Given: {error.prompt_tokens}"
    return error.message


_FORMS: tuple[tuple[type[HeadraceError], str, str, int], ...] = (
    (MalformedBody, "Failed to parse the request body as JSON: {}", "validation", 400),
    (EmptyInput, "Input validation error: {}", "empty", 400),
    (InvalidRequest, "Input validation error: {}", "validation", 413),
    (Busy, "Model is overloaded", "overloaded", 429),
    (Unavailable, "{}", "unhealthy", 503),
    (EngineFailed, "Backend error: {}", "backend", 424),
    (Internal, "Backend error: {}", "backend", 424),
)
"""Kind of error, text, `error_type` and status; the first kind that fits counts."""
