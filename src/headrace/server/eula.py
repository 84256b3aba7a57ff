"""
`accept_eula` in the custom attributes of `/invocations`, as SageMaker JumpStart's containers of Llama ask for it.

JumpStart's handlers answer 424 until it is true. Source: the model scripts that JumpStart deploys for Llama 2.
"""

import json
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.telemetry import get_logger
from headrace.server.errors import send_error
from headrace.settings.server_settings import ServerSettings
from headrace.wire.dialect import ErrorReply

HEADER: Final = b"x-amzn-sagemaker-custom-attributes"
GATED: Final = ("meta-llama/",)
"""How the names of models begin whose licence JumpStart asks to accept in each request."""
STATUS: Final = 424
_BODY: Final = {
    "code": STATUS,
    "message": "prediction failure",
    "error": "Need to pass custom_attributes='accept_eula=true' as part of header: it says that you have read and "
    "accept the end-user license agreement (EULA) of the model, which its model card links to.",
}


def accepted_eula(attributes: str) -> bool | None:
    """What custom attributes say about the licence; None: nothing."""
    pairs = (part.partition("=") for part in attributes.replace(";", ",").split(","))
    said = [value.strip().lower() == "true" for name, _, value in pairs if name.strip().lower() == "accept_eula"]
    return said[-1] if said else None


class EulaCheck:
    """Refuses requests that decline the licence of the model, or do not accept it where that is required."""

    def __init__(self, app: ASGIApp, *, is_required: bool) -> None:
        self._app = app
        self._is_required = is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        attributes = b",".join(value for name, value in scope["headers"] if name == HEADER).decode("latin-1")
        accepted = accepted_eula(attributes)
        if accepted or (accepted is None and not self._is_required):
            await self._app(scope, receive, send)
            return
        get_logger().info("request.refused", route=scope["path"], status=STATUS, reason="accept_eula is not true")
        await send_error(send, ErrorReply(status=STATUS, body=json.dumps(_BODY).encode()))


def with_eula_check(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """The app behind the check that the settings ask for, or as it is."""
    is_gated = settings.eula_check == "gated" and settings.model.startswith(GATED)
    if settings.eula_check == "required" or is_gated:
        return EulaCheck(app, is_required=settings.eula_check == "required")
    return app
