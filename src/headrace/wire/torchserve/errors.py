"""
Errors in TorchServe's format: `{"code", "type", "message"}`.

A full queue is 429, not TorchServe's 503, because clients retry it.
Source: pytorch/serve `NettyUtils.sendError` and the exceptions in
`frontend/server/src/main/java/org/pytorch/serve/http/`.
"""

from headrace.core.errors import (
    Busy,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
)
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import to_json

_EXCEPTIONS: dict[type[HeadraceError], str] = {
    Busy: "ServiceUnavailableException",
    Unavailable: "ServiceUnavailableException",
    NotFound: "ResourceNotFoundException",
    ModelNotFound: "ModelNotFoundException",
    PayloadTooLarge: "RequestEntityTooLargeException",
    Unauthorized: "InvalidKeyException",
}


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    by_default = "BadRequestException" if isinstance(error, InvalidRequest) else "InternalServerException"
    kind = _EXCEPTIONS.get(type(error), by_default)
    return to_json({"code": error.http_status, "type": kind, "message": error.message})


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))
