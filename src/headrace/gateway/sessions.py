"""
The workers of stateful sessions. Containers open, name and close sessions; the gateway remembers where they are.

Source: SageMaker developer guide, "Stateful sessions". The table is in memory: after a restart of the platform a
session is routed by rendezvous hashing of its id, which is correct for endpoints with one replica.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

NEW_SESSION = "NEW_SESSION"
DEFAULT_LIFETIME_S = 1200.0
"""Lifetime of a session for which the container sends no `Expires`. Source: DJL's `sessions_expiration`."""

MAX_SESSIONS = 100_000
"""Sessions in the table; above this the least recently used one is evicted."""

_OPENED = ("x-amzn-sagemaker-new-session-id", "x-amzn-sagemaker-session-id")
"""Response headers with the id of a new session: vLLM's name, and the one of DJL and the guide."""

_CLOSED = "x-amzn-sagemaker-closed-session-id"


@dataclass(frozen=True, slots=True)
class _Session:
    worker: str
    expires_s: float


class Sessions:
    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._max_sessions = max_sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def worker_of(self, endpoint: str, session_id: str, *, now_s: float) -> str | None:
        """Return the worker that has the session; None if it is unknown or has expired."""
        key = (endpoint, session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.expires_s <= now_s:
            del self._sessions[key]
            return None
        self._sessions.move_to_end(key)
        return session.worker

    def update(
        self, endpoint: str, session_id: str | None, headers: Mapping[str, str], *, worker: str, now_s: float
    ) -> dict[str, str]:
        """Apply the session headers of a worker's response (names in lower case); return those for the client."""
        client_headers = {}
        opened = next((headers[name] for name in _OPENED if name in headers), None)
        if session_id == NEW_SESSION and opened:
            new_id, _, attributes = opened.partition(";")
            expires_s = _expires_s(attributes)
            self._add(
                (endpoint, new_id.strip()), worker, now_s + DEFAULT_LIFETIME_S if expires_s is None else expires_s
            )
            client_headers["X-Amzn-SageMaker-New-Session-Id"] = opened
        closed = headers.get(_CLOSED)
        if closed:
            self._sessions.pop((endpoint, closed.strip()), None)
            client_headers["X-Amzn-SageMaker-Closed-Session-Id"] = closed
        return client_headers

    def _add(self, key: tuple[str, str], worker: str, expires_s: float) -> None:
        self._sessions[key] = _Session(worker, expires_s)
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)


def _expires_s(attributes: str) -> float | None:
    """Parse `Expires=2026-01-01T00:00:00Z` to seconds since 1970."""
    name, _, value = attributes.strip().partition("=")
    if name.lower() != "expires":
        return None
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
