"""
Responses that the model server sends when the child with the user's code cannot, worded as in the original servers.

Sources: DJL Serving (`InferenceRequestHandler`, `PyProcess`), TorchServe (`HttpRequestHandler`, `WorkerThread`),
multi-model-server (`InferenceRequestHandler`, `BatchAggregator`), nginx (`ngx_http_special_response.c`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.serving.handlers.sagemaker import GUNICORN, MMS, TORCHSERVE, server_of
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import error_body
from headrace_handler.frames import Buffer

Headers = list[tuple[str, str]]

_KILLED_FOR_MEMORY: Final = (-9, 137)
"""Exit codes after the kernel's OOM killer, or after any other SIGKILL that is not ours."""


class LoadError(HeadraceError):
    """The user's code could not be loaded; the message has the cause and the last lines that it printed."""

    code = "handler_load_failed"


class Refusal(Enum):
    """Reasons for which a request gets no response from user code."""

    LOST = auto()
    """The child has ended."""
    LATE = auto()
    """The child was too slow."""
    UNANSWERED = auto()
    """The code has returned without a response."""
    QUEUE_FULL = auto()
    NOT_READY = auto()
    """No child has loaded the code, or the model has been given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeResponse:
    """A response that is sent with a Content-Length."""

    status: int
    phrase: str = ""
    headers: Headers = field(default_factory=list)
    body: Buffer = b""


class Refused(Exception):
    """A request that the pool refuses; the response says why."""

    def __init__(self, response: WholeResponse) -> None:
        super().__init__(response.status)
        self.response = response


def refusal(spec: HandlerSpec, reason: Refusal, *, exit_code: int | None = None) -> WholeResponse:
    """Return the response to a request that user code does not answer."""
    server = server_of(spec.load.options.get("profile", "")) if spec.contract == "sagemaker" else spec.contract
    if server == GUNICORN:
        # The page of nginx, the proxy of gunicorn in the images of scikit-learn and XGBoost.
        is_busy = reason in (Refusal.QUEUE_FULL, Refusal.NOT_READY)
        status, title = (503, "Service Temporarily Unavailable") if is_busy else (502, "Bad Gateway")
        page = _PAGE.format(f"{status} {title}").replace("\n", "\r\n")
        return WholeResponse(status=status, headers=[("content-type", "text/html")], body=page.encode())
    status, kind, message = _WORDS[server][reason]
    if server in ("torchserve", TORCHSERVE) and reason is Refusal.LOST and exit_code in _KILLED_FOR_MEMORY:
        status = 507
    headers = [("content-type", "application/json")]
    return WholeResponse(status=status, headers=headers, body=error_body(status, kind, message.format(spec.model_name)))


_PAGE: Final = """\
<html>
<head><title>{0}</title></head>
<body>
<center><h1>{0}</h1></center>
<hr><center>nginx</center>
</body>
</html>
"""

_BUSY, _INTERNAL = "ServiceUnavailableException", "InternalServerException"
_NO_WORKER: Final = (
    'Model "{0}" has no worker to serve inference request. Please use scale workers API to add workers. '
    "If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
_TORCHSERVE: Final = {
    **dict.fromkeys((Refusal.QUEUE_FULL, Refusal.NOT_READY), (503, _BUSY, _NO_WORKER)),
    **dict.fromkeys((Refusal.LOST, Refusal.LATE), (500, _INTERNAL, "Worker died.")),
    Refusal.UNANSWERED: (503, _INTERNAL, "Invalid model predict output"),
}
_WORDS: Final[Mapping[str, Mapping[Refusal, tuple[int, str, str]]]] = {
    "djl": {
        Refusal.LATE: (503, "WlmException", "java.util.concurrent.TimeoutException"),
        Refusal.QUEUE_FULL: (503, "WlmCapacityException", "Worker queue capacity exceeded for model: {0} (READY)"),
        Refusal.NOT_READY: (503, "WlmException", "Model is not ready: {0} (FAILED)"),
        Refusal.UNANSWERED: (503, "WlmException", "The handler has returned without a response."),
        Refusal.LOST: (503, "WlmException", "Python worker disconnected."),
    },
    "torchserve": _TORCHSERVE,
    TORCHSERVE: _TORCHSERVE,
    MMS: {
        **dict.fromkeys(
            (Refusal.QUEUE_FULL, Refusal.NOT_READY), (503, _BUSY, "No worker is available to serve request: {0}")
        ),
        **dict.fromkeys((Refusal.LOST, Refusal.LATE), (500, _INTERNAL, "Worker died.")),
        Refusal.UNANSWERED: (500, _INTERNAL, "Invalid model predict output"),
    },
}
"""Status, type and text by the server in whose place Headrace answers; {0}: the model's name."""
