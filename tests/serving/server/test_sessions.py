"""Stateful sessions of `/invocations`, as LMI's containers answer them."""

from datetime import UTC, datetime

import httpx
import pytest

from headrace.core.errors import SessionNotFound
from headrace.serving.server.sessions import MAX_SESSIONS, SessionTable

from .conftest import Echo, serving

ASK = {"inputs": "one two three", "parameters": {"max_new_tokens": 8}}
NEW, CLOSE = {"requestType": "NEW_SESSION"}, {"requestType": "CLOSE"}


def post(echo: Echo, body: object, session: str | None = None) -> httpx.Response:
    headers = {} if session is None else {"X-Amzn-SageMaker-Session-Id": session}
    return echo.post("/invocations", body, headers=headers)


def test_a_session_is_opened_used_and_closed():
    with serving() as echo:
        opened = post(echo, NEW, "NEW_SESSION")
        session, _, expires = opened.headers["x-amzn-sagemaker-new-session-id"].partition("; Expires=")
        assert opened.json() == {"result": f"Session {session} created"}
        assert opened.headers["x-amzn-sagemaker-session-id"] == f"{session}; Expires={expires}"
        assert 1190 < (datetime.fromisoformat(expires) - datetime.now(UTC)).total_seconds() <= 1200
        assert post(echo, ASK, session).json()[0]["generated_text"].endswith("one two three")
        assert post(echo, {**ASK, "stream": True}, session).status_code == 200
        closed = post(echo, CLOSE, session)
        assert closed.json() == {"result": f"Session {session} closed"}
        assert closed.headers["x-amzn-sagemaker-closed-session-id"] == session
        for body in (ASK, CLOSE):
            gone = post(echo, body, session)
            assert (gone.status_code, "session not found" in gone.text) == (424, True)
        assert post(echo, ASK, "NEW_SESSION").status_code == 200
        assert post(echo, ASK).status_code == 200


def test_requests_of_a_session_carry_it_to_the_engine():
    with serving() as echo:
        session = post(echo, NEW).headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
        post(echo, ASK, session)
        post(echo, ASK)
        first, second = (request.session for request in echo.backend.requests)
    assert (first.id, second) == (session, None)


@pytest.mark.parametrize(
    ("settings", "body", "session", "message"),
    [
        ({}, {"requestType": "OPEN"}, None, "expected NEW_SESSION or CLOSE"),
        ({}, {**NEW, "inputs": "x"}, None, "beside 1 other fields"),
        ({}, CLOSE, None, "expected its id in the header x-amzn-sagemaker-session-id"),
        ({"stateful_sessions": False}, NEW, None, "Set stateful_sessions"),
        ({"stateful_sessions": False}, ASK, "any", "Set stateful_sessions"),
    ],
)
def test_what_a_session_cannot_be_asked_is_refused(settings, body, session, message):
    with serving(**settings) as echo:
        refused = post(echo, body, session)
    assert refused.status_code in (400, 422)
    assert message in refused.text


def test_sessions_expire_and_the_oldest_end_for_new_ones():
    now = [0.0]
    table = SessionTable(10.0, clock=lambda: now[0])
    first = table.open()
    assert table.find(first.id) is first
    now[0] = 10.0
    with pytest.raises(SessionNotFound):
        table.find(first.id)
    sessions = [table.open() for _ in range(MAX_SESSIONS + 1)]
    assert first.is_closed
    assert sessions[0].is_closed
    assert table.find(sessions[1].id) is sessions[1]
