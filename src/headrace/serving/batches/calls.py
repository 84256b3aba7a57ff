"""Call an application inside this process for the requests of a batch, as a client does over HTTP."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from headrace.core.tracing import REQUEST_ID
from headrace.serving.http.asgi import ASGIApp, Message, Scope, set_caller
from headrace.serving.http.background import BACKGROUND_HEADERS
from headrace.serving.wire.framing import JSON_CONTENT_TYPE
from headrace.serving.wire.key_limits import KeyLimits

MAX_PAUSE_S: Final = 30.0
PATIENCE_S: Final = 4 * 3600.0
"""Time after which a refusal for want of room (429) is the answer: the request alone may be too large."""
MAX_FAILURES: Final = 2
"""Failures of the engine or a worker (500, 502, 504) after which a request is tried again."""
_FAILED: Final = frozenset({500, 502, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of a batch."""

    path: str
    body: bytes
    owner: str
    """The id of the access key that created the batch; empty where callers are not distinguished."""
    request_id: str


@dataclass(slots=True)
class Answer:
    """The response to a call."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call_app(app: ASGIApp, call: Call, *, limits: KeyLimits | None = None) -> Answer:
    """Call an application within the limits of its owner's key; cancelling this is a client's disconnect."""
    headers = {
        "content-type": JSON_CONTENT_TYPE,
        "content-length": str(len(call.body)),
        REQUEST_ID.lower(): call.request_id,
        **BACKGROUND_HEADERS,
    }
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": call.path,
        "raw_path": quote(call.path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    set_caller(scope, call.owner, limits=limits)
    body, answer, parts = [call.body], Answer(), list[bytes]()

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()  # no disconnect before the end of the response
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            parts.append(bytes(message.get("body", b"")))

    await app(scope, receive, send)
    answer.body = b"".join(parts)
    return answer


@dataclass(slots=True)
class Retries:
    """The refusals and failures of one request so far, and whether it is sent again."""

    began_s: float
    num_failures: int = 0
    pause_s: float = 0.5

    def next_pause_s(self, answer: Answer, now_s: float) -> float | None:
        """Return the pause after which the request is sent again; None: the answer counts."""
        if answer.status in _FAILED:
            self.num_failures += 1
            if self.num_failures > MAX_FAILURES:
                return None
        elif answer.status != 503 and (answer.status != 429 or now_s - self.began_s > PATIENCE_S):
            return None
        self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)
        return max(self.pause_s, min(_retry_after_s(answer.headers), MAX_PAUSE_S))


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
