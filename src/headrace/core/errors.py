"""
Every error that Headrace raises on purpose, in one tree.

    HeadraceError
    ├── UserError                 the caller can fix it; never retried as it is
    │   ├── InvalidRequest        400  a field is missing, of the wrong type or out of range
    │   │   ├── PromptTooLong     400  the prompt alone does not fit; carries the exact counts
    │   │   └── ContextTooLong    400  prompt + answer do not fit; carries the exact counts
    │   ├── Unauthorized          401  the key is missing or wrong
    │   ├── Forbidden             403  a web page that may not use this server, or a key without the right
    │   ├── NotFound              404  no such route, model or adapter
    │   ├── SessionNotFound       424  a stateful session that is not open on this server
    │   ├── MethodNotAllowed      405  the route takes other methods, which are named
    │   │   └── UpgradeRequired   426  the client wants a WebSocket where the route is served over plain HTTP
    │   ├── PayloadTooLarge       413  the body is over the limit
    │   ├── UnsupportedEncoding   415  the body is compressed
    │   ├── SettingsError         -    a flag, environment variable or property is wrong: the start stops
    │   ├── ModelNotFound         404  no model by that name, folder or file
    │   ├── UnsupportedModel      422  the checkpoint uses a part that Headrace does not run, which is named
    │   ├── BrokenModel           422  a file of the checkpoint is truncated, malformed or missing
    │   └── InsufficientMemory    507  weights + KV cache do not fit here; carries the sum
    ├── Busy                      429  the queue is full; carries `retry_after_s`
    ├── Unavailable               503  starting up or shutting down
    │   ├── ModelNotReady         503  the model exists, and cannot answer yet
    │   └── CodeUnavailable       503  the process of the model's own code has ended, or was too slow
    ├── ModelFailed               503  the model exists, but cannot answer until its deployment is fixed
    ├── RequestAborted            499  the client disconnected, or a shutdown deadline passed
    ├── CodeFailed                424  the model's own code refused the request, or raised an exception
    ├── EngineFailed              500  a step failed; the requests in it are lost, and the server continues
    ├── AwsError                  ...  an error with AWS's own code and text; see `wire.aws.errors`
    └── Internal                  500  a bug in Headrace; the only one that is logged with a traceback

The message is a sentence for people and safe to show to a client: what, which value, what was expected, how to fix it.
`facts` has the same values for logs, and for dialects that write their own message.
"""

from headrace.core.client_text import shortened


class HeadraceError(Exception):
    """The root of the error tree."""

    code: str = "internal"
    http_status: int = 500
    retryable: bool = False

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class UserError(HeadraceError):
    """An error that the caller can fix."""

    code = "user_error"
    http_status = 400


class InvalidRequest(UserError):
    """A field of the request is missing, has the wrong type or is out of range; `param` names it."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, **facts: object) -> None:
        super().__init__(message, param=param, **facts)
        self.param = param


class PromptTooLong(InvalidRequest):
    """The prompt alone has more tokens than the server accepts."""

    code = "prompt_too_long"

    def __init__(self, *, prompt_tokens: int, max_prompt_tokens: int, is_exact: bool = True) -> None:
        counted = f"{prompt_tokens}" if is_exact else f"at least {prompt_tokens}"
        super().__init__(
            f"The prompt has {counted} tokens; expected at most {max_prompt_tokens}. Shorten the prompt.",
            prompt_tokens=prompt_tokens,
            max_prompt_tokens=max_prompt_tokens,
            is_exact=is_exact,
        )
        self.prompt_tokens = prompt_tokens
        self.max_prompt_tokens = max_prompt_tokens
        self.is_exact = is_exact
        """False: the prompt was refused before it was tokenised, and `prompt_tokens` is a lower bound."""


class ContextTooLong(InvalidRequest):
    """Prompt and answer together do not fit into the context (or can never fit into the KV cache)."""

    code = "context_too_long"

    def __init__(self, *, prompt_tokens: int, max_new_tokens: int, max_total_tokens: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens and {max_new_tokens} new tokens were requested: "
            f"{prompt_tokens + max_new_tokens} in all; expected at most {max_total_tokens}. "
            "Shorten the prompt or ask for fewer new tokens.",
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            max_total_tokens=max_total_tokens,
        )
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.max_total_tokens = max_total_tokens


class Unauthorized(UserError):
    """The API key of the request is missing or wrong."""

    code = "unauthorized"
    http_status = 401


class Forbidden(UserError):
    """The request comes from a web page that may not use this server, or with a key that may not do this."""

    code = "forbidden"
    http_status = 403


class NotFound(UserError):
    """The route, model or adapter does not exist."""

    code = "not_found"
    http_status = 404


class SessionNotFound(UserError):
    """A request names a stateful session that was never opened here, was closed or has expired; 424, as LMI's."""

    code = "session_not_found"
    http_status = 424


class MethodNotAllowed(UserError):
    """The route accepts other methods, which `Allow` names."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(message, allowed=allowed)
        self.allowed = allowed


class UpgradeRequired(MethodNotAllowed):
    """The client asked for a WebSocket; the route is served over plain HTTP."""

    code = "upgrade_required"
    http_status = 426


class PayloadTooLarge(UserError):
    """The request body is over the limit."""

    code = "payload_too_large"
    http_status = 413


class UnsupportedEncoding(UserError):
    """The body has a `Content-Encoding`; expected none."""

    code = "unsupported_encoding"
    http_status = 415

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"The body has the Content-Encoding {shortened(encoding)}; expected none. Send it uncompressed."
        )


class SettingsError(UserError):
    """A flag, an environment variable or a property is wrong; the start stops with this sentence."""

    code = "settings_error"


class ModelNotFound(UserError):
    """No model has this name, folder or file."""

    code = "model_not_found"
    http_status = 404


class UnsupportedModel(UserError):
    """The checkpoint uses a part that Headrace does not run; the message names the part."""

    code = "unsupported_model"
    http_status = 422


class BrokenModel(UserError):
    """A file of the checkpoint is truncated, malformed or missing."""

    code = "broken_model"
    http_status = 422


class InsufficientMemory(UserError):
    """Weights, workspace and KV cache do not fit into the memory that this process may use."""

    code = "insufficient_memory"
    http_status = 507


class Busy(HeadraceError):
    """The queue is full; `retry_after_s` says when to try again."""

    code = "busy"
    http_status = 429
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **facts: object) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **facts)
        self.retry_after_s = retry_after_s


class Unavailable(HeadraceError):
    """The server is starting up or shutting down."""

    code = "unavailable"
    http_status = 503
    retryable = True


class ModelNotReady(Unavailable):
    """The model exists but cannot answer yet."""

    code = "model_not_ready"


class CodeUnavailable(Unavailable):
    """The process of the model's own code has ended, or was too slow; another process serves the next requests."""

    code = "code_unavailable"


class ModelFailed(HeadraceError):
    """The model exists but cannot answer until its deployment is fixed."""

    code = "model_failed"
    http_status = 503


class RequestAborted(HeadraceError):
    """The client disconnected, or a shutdown deadline passed."""

    code = "aborted"
    http_status = 499


class CodeFailed(HeadraceError):
    """The model's own code around the engine rejected the request, or raised an exception."""

    code = "code_failed"
    http_status = 424


class EngineFailed(HeadraceError):
    """A step failed; the requests in it are lost, and the server continues."""

    code = "engine_failed"
    http_status = 500
    retryable = True


class Internal(HeadraceError):
    """A bug in Headrace, logged with a traceback."""

    code = "internal"
