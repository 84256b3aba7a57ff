"""
Files and batches on the platform: the same for all gateways, whose batches one of them runs.

The gateway answers the requests of a batch as those of the access key that created it, within the limits of the key:
`model` names an endpoint or inference component, and one that is scaled to zero is woken.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import Forbidden, HeadraceError, MethodNotAllowed
from headrace.core.files import Files
from headrace.core.metrics import BatchMetrics
from headrace.core.tracing import REQUEST_ID, bind_to_log, trace_of
from headrace.platform.gateway import openai
from headrace.platform.gateway.errors import GatewayConfig
from headrace.serving.batches.api import BatchApi, methods_of
from headrace.serving.batches.calls import Answer, Call, call_app
from headrace.serving.batches.service import MAX_ACTIVE, Batches
from headrace.serving.batches.store import BatchStore
from headrace.serving.http.asgi import (
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    add_headers,
    caller_of,
    error_path,
    limits_of,
    send_reply,
)
from headrace.serving.http.errors import ResponseAborted, errors_answered
from headrace.serving.wire.key_limits import INVOKE, KeyLimits, denied
from headrace.serving.wire.openai.envelope import render_error
from headrace.serving.wire.unknown_routes import render_error_for

LookUpLimits = Callable[[str], Awaitable[KeyLimits | None]]
"""Returns the limits of a key, None if it has none; raises `Unauthorized` if the key was deleted."""
_MESSAGE_START: Final = "http.response.start"


async def no_limits(_key: str) -> None:
    """Return None: there are no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """The configuration of files and batches."""

    files: Files
    max_bytes: int = 10 * 1024**3
    """Bytes of all files; while there are more, no other one is taken. 0: batches are off."""
    concurrency: int = 64
    """Requests of one batch in flight."""


class BatchGateway:
    """The gateway with the routes of files and batches in front of it."""

    def __init__(
        self,
        gateway: ASGIApp,
        config: BatchConfig,
        limits: GatewayConfig,
        metrics: BatchMetrics,
        *,
        look_up_limits: LookUpLimits = no_limits,
    ) -> None:
        """Prepare the routes, and the batches that `run` runs; `limits` are those of the gateway's requests."""
        self._gateway = gateway
        self._config = config
        self._look_up_limits = look_up_limits
        self._batches = Batches(
            store=BatchStore(config.files, max_bytes=config.max_bytes),
            send=self._send,
            max_line_bytes=limits.max_body_bytes,
            metrics=metrics,
        )
        self._api = BatchApi(self._batches, max_body_bytes=limits.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = openai.match(scope["path"]) if self._config.max_bytes else None
        methods = methods_of(asked.path) if asked is not None else ()
        if asked is None or not methods:
            await self._gateway(scope, receive, send)
            return
        trace, is_started = trace_of(scope), False
        bind_to_log(trace)
        send = add_headers(send, [(REQUEST_ID.lower(), trace.request_id)])

        async def watched_send(message: Message) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == _MESSAGE_START
            await send(message)

        async def answer_error(error: HeadraceError) -> None:
            if is_started:
                raise ResponseAborted
            allow = (("allow", ", ".join(error.allowed)),) if isinstance(error, MethodNotAllowed) else ()
            await send_reply(scope, send, render_error_for(error_path(scope, asked.path), error), allow)

        async with errors_answered(answer_error, request_id=trace.request_id, program="platform"):
            _check(scope, asked.path, methods)
            await self._api.answer(scope, receive, watched_send, path=asked.path)

    async def run(self, term: int | None = None) -> None:
        """Run the batches of all gateways until cancelled; call it on the one that leads in a term."""
        if not self._config.max_bytes:
            await asyncio.Event().wait()
        window = self._config.concurrency
        await self._batches.run(window=window, total_window=window * MAX_ACTIVE, term=term)

    def look(self) -> None:
        """Look for batches that other processes have created or cancelled."""
        self._batches.look()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after a batch was created or cancelled here, while another process runs them."""
        self._batches.on_change = listener

    async def _send(self, call: Call) -> Answer:
        try:
            limits = await self._look_up_limits(call.owner)
        except HeadraceError as error:
            return Answer(status=error.http_status, body=render_error(error).body)
        return await call_app(self._gateway, call, limits=limits)


def _check(scope: Scope, path: str, methods: tuple[str, ...]) -> None:
    """Raise `HeadraceError` for another method, or if the limits of the caller's key allow no requests for models."""
    if scope["method"] not in (*methods, "HEAD"):
        message = f"{scope['method']} {path} is not served; use {' or '.join(methods)}."
        raise MethodNotAllowed(message, allowed=methods)
    limits = limits_of(scope)
    if limits is not None and not limits.allows_action(INVOKE):
        raise Forbidden(denied(caller_of(scope), INVOKE, path))
