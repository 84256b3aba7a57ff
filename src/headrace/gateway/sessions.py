"""
Which worker has which stateful session. The container opens, names and closes sessions; we remember where they are.

Source: SageMaker developer guide, "Stateful sessions". The table is in memory: after a restart of the platform a
session is found by rendezvous hashing of its id, which is right where an endpoint has one replica.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

NEW_SESSION = "NEW_SESSION"
DEFAULT_LIFE_S = 1200.0
"""Of a session whose container says no time. Source: DJL's `sessions_expiration`."""

MAX_SESSIONS = 100_000
"""Then the one that was used longest ago is forgotten."""

_OPENED = ("x-amzn-sagemaker-new-session-id", "x-amzn-sagemaker-session-id")
"""Headers by which containers tell the id of a new session: vLLM's name, DJL's (and the guide's) name."""

_CLOSED = "x-amzn-sagemaker-closed-session-id"


@dataclass(frozen=True, slots=True)
class _Session:
    worker: str
    expires_s: float


class Sessions:
    """(Endpoint, session id) → worker."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._max_sessions = max_sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def worker_of(self, endpoint: str, session_id: str, *, now_s: float) -> str | None:
        """The worker that has the session, if we know of it."""
        key = (endpoint, session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.expires_s <= now_s:
            del self._sessions[key]
            return None
        self._sessions.move_to_end(key)
        return session.worker

    def take_note(
        self, endpoint: str, asked: str | None, headers: Mapping[str, str], *, worker: str, now_s: float
    ) -> dict[str, str]:
        """
        Read a worker's answer.

        Args:
            endpoint: that was asked.
            asked: the `SessionId` of the request.
            headers: of the answer, names in lower case.
            worker: that answered.
            now_s: seconds since 1970.

        Returns:
            The headers that tell the client.
        """
        told = {}
        opened = next((headers[name] for name in _OPENED if name in headers), None)
        if asked == NEW_SESSION and opened:
            session_id, _, rest = opened.partition(";")
            expires_s = _expires_s(rest)
            self._add(
                (endpoint, session_id.strip()), worker, now_s + DEFAULT_LIFE_S if expires_s is None else expires_s
            )
            told["X-Amzn-SageMaker-New-Session-Id"] = opened
        closed = headers.get(_CLOSED)
        if closed:
            self._sessions.pop((endpoint, closed.strip()), None)
            told["X-Amzn-SageMaker-Closed-Session-Id"] = closed
        return told

    def _add(self, key: tuple[str, str], worker: str, expires_s: float) -> None:
        self._sessions[key] = _Session(worker, expires_s)
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)


def _expires_s(attributes: str) -> float | None:
    """`Expires=2026-01-01T00:00:00Z` as seconds since 1970."""
    name, _, value = attributes.strip().partition("=")
    if name.lower() != "expires":
        return None
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
