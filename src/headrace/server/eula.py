"""
`accept_eula` in the custom attributes of `/invocations`, as SageMaker JumpStart's containers of Llama require it.

JumpStart's handlers answer 424 until it is true. Source: the model scripts that JumpStart deploys for Llama 2.
"""

import json
from collections.abc import Mapping
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.http.asgi import ASGIApp, Receive, Scope, Send
from headrace.http.response import send_reply
from headrace.server.attribute_routes import attributes_of
from headrace.settings.server_settings import ServerSettings
from headrace.wire.dialect import ErrorReply

GATED: Final = ("meta-llama/",)
"""Prefixes of the models whose licence JumpStart requires to be accepted in each request."""
STATUS: Final = 424
_BODY: Final = {
    "code": STATUS,
    "message": "prediction failure",
    "error": "Need to pass custom_attributes='accept_eula=true' as part of header: it says that you have read and "
    "accept the end-user license agreement (EULA) of the model, which its model card links to.",
}


def accepted_eula(attributes: Mapping[str, str]) -> bool | None:
    """Return the value of `accept_eula` in custom attributes; None if they have none."""
    value = attributes.get("accept_eula")
    return None if value is None else value.lower() == "true"


class EulaCheck:
    """Middleware that refuses requests which decline the model's licence, or do not accept it where required."""

    def __init__(self, app: ASGIApp, *, is_required: bool) -> None:
        self._app = app
        self._is_required = is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        accepted = accepted_eula(attributes_of(scope))
        if accepted or (accepted is None and not self._is_required):
            await self._app(scope, receive, send)
            return
        get_logger().info("request.refused", route=scope["path"], status=STATUS, reason="accept_eula is not true")
        await send_reply(scope, send, ErrorReply(status=STATUS, body=json.dumps(_BODY).encode()))


def with_eula_check(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """Wrap the app in the check that the settings configure, if any."""
    is_gated = settings.eula_check == "gated" and settings.model.startswith(GATED)
    if settings.eula_check == "required" or is_gated:
        return EulaCheck(app, is_required=settings.eula_check == "required")
    return app
