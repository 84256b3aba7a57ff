"""
Errors in DJL Serving's formats.

A request that the handler cannot process has the handler's format (`{"error", "code"}` with 424), all others the front
end's (`{"code", "type", "message"}`). A full queue is 429, not DJL's 503, because clients retry it.
Source: DJL Serving `async_utils.py`, `NettyUtils.sendError`, `lmi_input_output_schema.md`.
"""

from headrace.core.errors import (
    Busy,
    CodeFailed,
    CodeUnavailable,
    EngineFailed,
    HeadraceError,
    InsufficientMemory,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PayloadTooLarge,
    RequestAborted,
    Unauthorized,
    Unavailable,
)
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import to_json

_FAILED_DEPENDENCY = 424

_EXCEPTIONS: dict[type[HeadraceError], str] = {
    Busy: "WlmCapacityException",
    Unavailable: "ServiceUnavailableException",
    CodeUnavailable: "WlmException",
    NotFound: "ResourceNotFoundException",
    ModelNotFound: "ModelNotFoundException",
    PayloadTooLarge: "BadRequestException",
    Unauthorized: "BadRequestException",
    InsufficientMemory: "WlmOutOfMemoryException",
    RequestAborted: "TranslateException",
}


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    if isinstance(error, CodeFailed):
        return ErrorReply(status=_FAILED_DEPENDENCY, body=to_json({"error": error.message, "code": _FAILED_DEPENDENCY}))
    if isinstance(error, InvalidRequest):
        text = f"Input Parsing failed. Ensure that the request payload is valid. {error.message}"
        return ErrorReply(status=_FAILED_DEPENDENCY, body=to_json({"error": text, "code": _FAILED_DEPENDENCY}))
    if isinstance(error, EngineFailed):
        body = {"code": _FAILED_DEPENDENCY, "message": "invoke handler failure", "error": error.message}
        return ErrorReply(status=_FAILED_DEPENDENCY, body=to_json(body))
    kind = _EXCEPTIONS.get(type(error), "InternalServerException")
    body = {"code": error.http_status, "type": kind, "message": error.message}
    return ErrorReply(status=error.http_status, body=to_json(body), headers=retry_headers(error))
