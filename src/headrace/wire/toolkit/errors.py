"""
Errors of the toolkit, whose model server is Multi Model Server: `{"code", "type", "message"}`.

An exception of a pipeline is a 400, whatever its kind. Source: sagemaker-huggingface-inference-toolkit
`handler_service.py` (`handle`).
"""

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.wire.dialect import ErrorReply
from headrace.wire.framing import to_json
from headrace.wire.torchserve.errors import render_error as render_java_error

_STATUS = 400


def render_error(error: HeadraceError) -> ErrorReply:
    """Render the whole response for an error."""
    if not isinstance(error, InvalidRequest) or error.http_status == 413:
        return render_java_error(error)
    body = to_json({"code": _STATUS, "type": "InternalServerException", "message": error.message})
    return ErrorReply(status=_STATUS, body=body, headers=())
