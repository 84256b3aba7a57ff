"""Errors in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`."""

from headrace.core.errors import (
    Busy,
    ContextTooLong,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    Unauthorized,
    UserError,
)
from headrace.wire.dialect import ErrorReply, retry_headers
from headrace.wire.framing import to_json


def error_body(error: HeadraceError, *, prompt: str = "messages") -> bytes:
    """Render the JSON object for an error, in a body or a stream; `prompt` names the field that was too long."""
    return to_json({"error": error_object(error, prompt=prompt)})


def error_object(error: HeadraceError, *, prompt: str = "messages") -> dict[str, object]:
    """Return the value of `error` in the JSON object for an error."""
    param = error.param if isinstance(error, InvalidRequest) else None
    if isinstance(error, ModelNotFound):
        param = "model"
    return {"message": _message(error, prompt), "type": _type(error), "param": param, "code": _code(error)}


def render_error(error: HeadraceError, *, prompt: str = "messages") -> ErrorReply:
    """Render the whole response for an error before the first byte."""
    body = error_body(error, prompt=prompt)
    return ErrorReply(status=error.http_status, body=body, headers=retry_headers(error))


def _message(error: HeadraceError, prompt: str) -> str:
    """Return OpenAI's text if clients match it (`maximum context length`), else the error's own."""
    if isinstance(error, ContextTooLong):
        return (
            f"This model's maximum context length is {error.max_total_tokens} tokens. However, you requested "
            f"{error.prompt_tokens + error.max_new_tokens} tokens ({error.prompt_tokens} in the {prompt}, "
            f"{error.max_new_tokens} in the completion). Please reduce the length of the {prompt} or completion."
        )
    if isinstance(error, PromptTooLong):
        return (
            f"This model's maximum context length is {error.max_prompt_tokens} tokens for the prompt. However, your "
            f"{prompt} resulted in {error.prompt_tokens} tokens. Please reduce the length of the {prompt}."
        )
    return error.message


def _type(error: HeadraceError) -> str:
    if isinstance(error, Busy):
        return "rate_limit_error"
    if isinstance(error, UserError):
        return "invalid_request_error"
    return "server_error"


def _code(error: HeadraceError) -> str | None:
    if isinstance(error, ContextTooLong | PromptTooLong):
        return "context_length_exceeded"
    if isinstance(error, Busy):
        return "rate_limit_exceeded"
    if isinstance(error, Unauthorized):
        return "invalid_api_key"
    if type(error) is InvalidRequest:
        return None
    return error.code
