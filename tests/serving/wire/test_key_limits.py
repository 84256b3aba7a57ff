"""The limits of keys: what their patterns allow, how a sliding minute counts, and the headers of each API."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.key_limits import (
    MINUTE_S,
    Allowance,
    KeyLimits,
    MinuteCount,
    anthropic_headers,
    openai_headers,
)


@pytest.mark.parametrize(
    ("limits", "allowed", "denied"),
    [
        (KeyLimits(), ["sagemaker:DeleteEndpoint", "s3:GetObject"], []),
        (KeyLimits(models=("a",)), ["sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointAsync"], ["s3:GetObject"]),
        (
            KeyLimits(actions=("invoke", "read")),
            ["sagemaker:InvokeEndpoint", "sagemaker:DescribeEndpoint", "s3:GetObject", "headrace:GetMetrics"],
            ["sagemaker:DeleteEndpoint", "s3:PutObject", "sagemaker:CreateModel"],
        ),
        (KeyLimits(models=("a",), actions=("s3:*",)), ["s3:PutObject"], ["sagemaker:InvokeEndpoint"]),
        (KeyLimits(requests_per_minute=1), ["sagemaker:DeleteEndpoint"], []),
    ],
)
def test_actions_are_allowed_by_sets_and_patterns(limits: KeyLimits, allowed: list[str], denied: list[str]) -> None:
    assert [action for action in (*allowed, *denied) if limits.allows_action(action)] == allowed


def test_models_are_allowed_by_any_of_their_names() -> None:
    limits = KeyLimits(models=("chat-*", "emb", "multi/b?"))
    assert limits.allows_model("chat-large")
    assert limits.allows_model("host", "chat-x")
    assert limits.allows_model("multi", "", "multi/b1")
    for names in [("chat",), ("emb2",), ("multi", "multi/c"), ("Chat-x",), ("",), ("chat-" + "x" * 2000,)]:
        assert not limits.allows_model(*names)
    assert KeyLimits().allows_model("anything")


@pytest.mark.parametrize(
    "limits",
    [
        {"models": ["a b"]},
        {"models": [""]},
        {"models": ["*" * 9]},
        {"models": ["[a]"]},
        {"actions": ["fly"]},
        {"requests_per_minute": 0},
        {"tokens_per_minute": -1},
        {"max_in_flight": 1.5},
        {"speed": 1},
        {"models": ["a"] * 101},
    ],
)
def test_what_is_no_limit_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(limits, KeyLimits)


counts = st.builds(MinuteCount, st.integers(-5, 200), st.integers(-5, 200))


@given(counts, st.integers(1, 100), st.integers(1, 100), st.floats(0, MINUTE_S - 0.001))
def test_after_the_wait_the_amount_fits_and_not_before(
    count: MinuteCount, limit: int, amount: int, elapsed_s: float
) -> None:
    amount = min(amount, limit)
    wait_s = count.wait_s(limit, amount, elapsed_s)

    def used_after(seconds: float) -> float:
        at_s = elapsed_s + seconds
        later = count if at_s < MINUTE_S else MinuteCount(0, count.now) if at_s < 2 * MINUTE_S else MinuteCount(0, 0)
        return later.used(at_s % MINUTE_S)

    assert used_after(wait_s) + amount <= limit + 1e-6
    if wait_s > 0.01:
        assert used_after(wait_s - 0.01) + amount > limit
    assert used_after(count.reset_s(elapsed_s) + 1e-6) == 0


def test_headers_have_the_names_and_forms_of_each_api() -> None:
    allowances = [
        Allowance(unit="requests", limit=60, remaining=59, reset_s=72.5),
        Allowance(unit="tokens", limit=1000, remaining=0, reset_s=0.0251),
    ]
    assert dict(openai_headers(allowances)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m13s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "26ms",
    }
    assert dict(anthropic_headers(allowances, now_s=0.0)) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "1970-01-01T00:01:13Z",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "1970-01-01T00:00:01Z",
    }
