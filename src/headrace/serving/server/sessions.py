"""
The stateful sessions of `/invocations`, which are opened, named and closed as those of LMI's containers.

The platform sends all requests of a session to this server, and the engine evicts the KV of a session's last request
after that of all others, so that a long prompt is computed once.

Sources: SageMaker developer guide, "Stateful sessions with Amazon SageMaker models"; djl-serving
`djl_python/session_utils.py`; aws/model-hosting-container-standards `sagemaker/sessions`.
"""

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, SessionNotFound
from headrace.core.session import Session
from headrace.core.telemetry import get_logger
from headrace.serving.http.asgi import ASGIApp, Receive, Scope, Send, content_length, header, send_response
from headrace.serving.http.body import replay
from headrace.serving.server.service import Service
from headrace.serving.wire.dialect import ParsedRequest

HEADER: Final = b"x-amzn-sagemaker-session-id"
NEW, CLOSE = "NEW_SESSION", "CLOSE"
MAX_SESSIONS = 10_000
_MAX_BODY_BYTES = 1024
"""Larger bodies are no `requestType`, and are not read twice."""
_KEY = "headrace.session"


class SessionTable:
    """The sessions of a server, in the order in which they expire; beyond `MAX_SESSIONS` the oldest ends."""

    def __init__(self, lifetime_s: float, *, clock: Callable[[], float] = time.time) -> None:
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(self) -> Session:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if len(self._sessions) < MAX_SESSIONS and not oldest.has_ended:
                break
            self._sessions.pop(oldest.id).is_closed = True
        session = Session(str(uuid.uuid4()), self._clock() + self._lifetime_s, clock=self._clock)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str) -> Session:
        """Return a session, or raise `SessionNotFound`."""
        session = self._sessions.get(session_id)
        if session is None or session.has_ended:
            raise SessionNotFound(
                f"session not found: {shortened(session_id)}. It was not opened on this server, was closed or has "
                f'expired; open one with the session id {NEW} and the body {{"requestType": "{NEW}"}}.'
            )
        return session

    def close(self, session_id: str) -> Session:
        """End a session; raises `SessionNotFound`."""
        session = self.find(session_id)
        session.is_closed = True
        return self._sessions.pop(session_id)


class SessionCheck:
    """Middleware that opens and closes sessions, and refuses requests of those that do not exist."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        settings = service.settings
        self._table = SessionTable(settings.session_lifetime_s) if settings.stateful_sessions else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named, asked = header(scope, HEADER), None
        if 0 < content_length(scope) <= _MAX_BODY_BYTES:
            async with self._service.admit(scope, receive) as body:
                asked = request_type(body)
            receive = replay(body, receive)
        if named is None and asked is None:
            await self._app(scope, receive, send)
            return
        if self._table is None:
            raise InvalidRequest(
                "Stateful sessions are off on this server; expected no session id. Set stateful_sessions."
            )
        if asked == NEW:
            await self._answer(scope, send, self._table.open(), is_new=True)
        elif asked == CLOSE:
            if named is None:
                raise InvalidRequest(f"The request closes a session; expected its id in the header {HEADER.decode()}.")
            await self._answer(scope, send, self._table.close(named), is_new=False)
        else:
            if named != NEW:
                scope[_KEY] = self._table.find(named or "")
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, send: Send, session: Session, *, is_new: bool) -> None:
        verb = "created" if is_new else "closed"
        get_logger().info(f"session.{verb}", session=session.id)
        headers = [("content-type", "application/json")]
        if is_new:
            expires = datetime.fromtimestamp(session.expires_s, UTC)
            value = f"{session.id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}"
            # LMI's containers send the first one, others the second; the platform and SageMaker read both.
            headers += [("x-amzn-sagemaker-session-id", value), ("x-amzn-sagemaker-new-session-id", value)]
        else:
            headers.append(("x-amzn-sagemaker-closed-session-id", session.id))
        body = json.dumps({"result": f"Session {session.id} {verb}"}).encode()
        await send_response(scope, send, 200, headers, body)


def request_type(body: bytes) -> str | None:
    """Return what a body asks of a session, `NEW_SESSION` or `CLOSE`; None for other bodies."""
    if b"requestType" not in body:
        return None
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # the dialect says what is wrong
    if not isinstance(fields, dict) or "requestType" not in fields:
        return None
    asked = fields["requestType"]
    if asked not in (NEW, CLOSE) or len(fields) > 1:
        raise InvalidRequest(
            f"requestType is {shortened(str(asked))} beside {len(fields) - 1} other fields; expected {NEW} or {CLOSE} "
            "and no other field.",
            param="requestType",
        )
    return str(asked)


def in_session(parsed: ParsedRequest, scope: Scope) -> ParsedRequest:
    """Return a parsed body whose requests belong to the session that the request names, if any."""
    session: Session | None = scope.get(_KEY)
    if session is None:
        return parsed
    return replace(parsed, requests=tuple(replace(request, session=session) for request in parsed.requests))
