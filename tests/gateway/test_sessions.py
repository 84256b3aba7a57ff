"""Where stateful sessions are."""

import pytest

from headrace.gateway.sessions import DEFAULT_LIFETIME_S, NEW_SESSION, Sessions

OPENED = {"x-amzn-sagemaker-session-id": "s-1; Expires=2030-01-01T00:00:00Z"}


def test_a_new_session_is_remembered_until_it_expires():
    sessions = Sessions()
    headers = sessions.update("ep", NEW_SESSION, OPENED, worker="w", now_s=0)
    assert headers == {"X-Amzn-SageMaker-New-Session-Id": "s-1; Expires=2030-01-01T00:00:00Z"}
    assert sessions.worker_of("ep", "s-1", now_s=1_893_455_999) == "w"
    assert sessions.worker_of("other", "s-1", now_s=0) is None
    assert sessions.worker_of("ep", "s-1", now_s=1_893_456_000) is None
    assert len(sessions) == 0


@pytest.mark.parametrize("value", ["s-1", "s-1; Expires=soon", "s-1;x", "s-1; Expires="])
def test_a_session_without_a_readable_end_lives_for_a_while(value):
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-new-session-id": value}, worker="w", now_s=100)
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S - 1) == "w"
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S) is None


def test_a_closed_session_is_forgotten_and_told():
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, OPENED, worker="w", now_s=0)
    headers = sessions.update("ep", "s-1", {"x-amzn-sagemaker-closed-session-id": "s-1"}, worker="w", now_s=0)
    assert headers == {"X-Amzn-SageMaker-Closed-Session-Id": "s-1"}
    assert sessions.worker_of("ep", "s-1", now_s=0) is None


def test_a_worker_opens_no_session_that_nobody_asked_for():
    sessions = Sessions()
    assert sessions.update("ep", "s-1", OPENED, worker="w", now_s=0) == {}
    assert sessions.update("ep", None, OPENED, worker="w", now_s=0) == {}
    assert len(sessions) == 0


def test_of_too_many_sessions_the_one_that_was_used_longest_ago_goes():
    sessions = Sessions(max_sessions=2)
    for name in ("a", "b"):
        sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": name}, worker=name, now_s=0)
    assert sessions.worker_of("ep", "a", now_s=0) == "a"
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": "c"}, worker="c", now_s=0)
    assert [sessions.worker_of("ep", name, now_s=0) for name in "abc"] == ["a", None, "c"]
