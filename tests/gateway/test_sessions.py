"""The table of stateful sessions."""

import pytest

from headrace.gateway.service import DEFAULT_LIFETIME_S, NEW_SESSION, Sessions

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
def test_a_session_without_a_valid_expiry_has_the_default_lifetime(value):
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-new-session-id": value}, worker="w", now_s=100)
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S - 1) == "w"
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S) is None


def test_a_closed_session_is_removed_and_reported_to_the_client():
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, OPENED, worker="w", now_s=0)
    headers = sessions.update("ep", "s-1", {"x-amzn-sagemaker-closed-session-id": "s-1"}, worker="w", now_s=0)
    assert headers == {"X-Amzn-SageMaker-Closed-Session-Id": "s-1"}
    assert sessions.worker_of("ep", "s-1", now_s=0) is None


def test_a_worker_cannot_open_a_session_without_a_request_for_one():
    sessions = Sessions()
    assert sessions.update("ep", "s-1", OPENED, worker="w", now_s=0) == {}
    assert sessions.update("ep", None, OPENED, worker="w", now_s=0) == {}
    assert len(sessions) == 0


def test_the_least_recently_used_session_is_evicted():
    sessions = Sessions(max_sessions=2)
    for name in ("a", "b"):
        sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": name}, worker=name, now_s=0)
    assert sessions.worker_of("ep", "a", now_s=0) == "a"
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": "c"}, worker="c", now_s=0)
    assert [sessions.worker_of("ep", name, now_s=0) for name in "abc"] == ["a", None, "c"]
