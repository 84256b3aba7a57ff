"""
Errors in TGI's format: `{"error": ..., "error_type": ...}`.

Source: TGI `router/src/infer/mod.rs` (InferError), `router/src/validation.rs` (ValidationError).
"""

from headrace.core.errors import (
    Busy,
    ContextTooLong,
    EngineFailed,
    HeadraceError,
    Internal,
    InvalidRequest,
    PromptTooLong,
    RequestAborted,
)
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import MalformedBody, to_json


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    text, error_type, _ = _translate(error)
    return to_json({"error": text, "error_type": error_type})


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    _, _, status = _translate(error)
    return ErrorReply(status=status, body=error_body(error), headers=retry_headers(error))


def _translate(error: HeadraceError) -> tuple[str, str, int]:
    """Return TGI's text, `error_type` and HTTP status."""
    if isinstance(error, MalformedBody):
        return f"Failed to parse the request body as JSON: {error.message}", "validation", 400
    if isinstance(error, InvalidRequest):
        return f"Input validation error: {_validation_text(error)}", "validation", 422
    if isinstance(error, Busy):
        return "Model is overloaded", "overloaded", 429
    if isinstance(error, EngineFailed | Internal):
        return f"Request failed during generation: {error.message}", "generation", 424
    if isinstance(error, RequestAborted):
        return "Incomplete generation", "incomplete_generation", 500
    return error.message, error.code, error.http_status


def _validation_text(error: InvalidRequest) -> str:
    if isinstance(error, PromptTooLong):
        return f"`inputs` must have less than {error.max_prompt_tokens} tokens. Given: {error.prompt_tokens}"
    if isinstance(error, ContextTooLong):
        return (
            f"`inputs` tokens + `max_new_tokens` must be <= {error.max_total_tokens}. "
            f"Given: {error.prompt_tokens} `inputs` tokens and {error.max_new_tokens} `max_new_tokens`"
        )
    return error.message
