"""The tokens of a request, as servers tell them."""

import pytest

from headrace.serving.wire.usage import MAX_TOKENS, has_usage, read_usage, usage_headers, usage_in


def test_what_our_servers_tell_is_read() -> None:
    [(_, value)] = usage_headers(12, 30)
    assert read_usage(value) == 42
    for malformed in (None, "", "12", "12 x", "-1 2", "1 2 3", "1 " + "9" * 30, "\N{SUPERSCRIPT TWO} 2"):
        assert read_usage(malformed) is None


@pytest.mark.parametrize(
    ("body", "num_tokens"),
    [
        (b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}', 7),
        (b'{"usage": {"input_tokens": 3, "output_tokens": 5}}', 8),
        (b'{"usage": {"prompt_tokens": 3}}', 3),
        (b'data: {"usage": {"total_tokens": 9}}\n\ndata: [DONE]\n\n', 9),
        (b'data: {"usage": {"total_tokens": 1}}\n\ndata: {"usage": {"total_tokens": 2}}\n\n', 2),
        (b'event: response.completed\ndata: {"response": {"usage": {"input_tokens": 1, "output_tokens": 1}}}\n\n', 2),
        (b'{"usage": {"total_tokens": -5}}', 0),
        (b'{"usage": {"prompt_tokens": 9000000000000000000000, "completion_tokens": 1}}', MAX_TOKENS),
        (b'{"usage": null}', None),
        (b'{"usage": {"total_tokens": "x"}}', None),
        (b'data: the word "usage" alone\n\n', None),
        (b'{"usage": ' + b"[" * 100_000, None),
        (b"\xff", None),
    ],
)
def test_the_usage_in_a_body_is_found(body: bytes, num_tokens: int | None) -> None:
    assert usage_in(body) == num_tokens
    assert has_usage(body) or num_tokens is None
