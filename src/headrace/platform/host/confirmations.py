"""
Confirmations of subscriptions by a link: a GET of the `SubscribeURL` that a subscribed URL has received.

Such a request has no credentials but the token in its link, so that only this one call reaches the operations: it is
built from the link's topic and token, without the headers and the body of the request.
"""

import re
from typing import Final
from urllib.parse import parse_qs, urlencode

from headrace.platform.account.sns import VERSION
from headrace.serving.http.asgi import ASGIApp, Message, Receive, Scope, Send
from headrace.serving.wire.aws.http import HttpRequest, query_parameter

_ACTION: Final = "ConfirmSubscription"
_TOKEN: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_QUERY: Final = 2048


def is_confirmation(request: HttpRequest, path: str) -> bool:
    """Return whether a request confirms a subscription by a link."""
    is_link = request.method == "GET" and path == "/" and len(request.query) <= _MAX_QUERY
    if not is_link or "authorization" in request.headers or query_parameter(request.query, "Action") != _ACTION:
        return False
    return _TOKEN.fullmatch(query_parameter(request.query, "Token") or "") is not None


def confirmation_app(control: ASGIApp) -> ASGIApp:
    """Return the application that confirms subscriptions by their links."""

    async def confirm(scope: Scope, _receive: Receive, send: Send) -> None:
        sent = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=10)
        fields = {name: sent.get(name, [""])[-1] for name in ("TopicArn", "Token")}
        query = urlencode({"Action": _ACTION, "Version": VERSION, **fields}).encode()
        await control({**scope, "query_string": query, "headers": []}, _no_body, send)

    return confirm


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
