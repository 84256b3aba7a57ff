"""
The tokens of a request, as a model server tells them to the gateway that counts them for an access key.

Our servers send them in a header of a whole response, and in a trailer of a stream, to a caller that asks by the same
header. Other servers tell them in the body, or not at all.
"""

from typing import Final

import msgspec

USAGE_HEADER: Final = "x-headrace-usage"
"""In a request it asks for the header or trailer of the response: the tokens of the prompt and of the answer."""
BYTES_PER_TOKEN: Final = 4
"""Of English text, for estimates."""
MAX_TOKENS: Final = 10**9
"""The most that is believed: counters have 64 bits."""
_MARK: Final = b'"usage"'


class _Usage(msgspec.Struct):
    """The names of OpenAI's and of Anthropic's API."""

    total_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        parts = (self.prompt_tokens, self.completion_tokens, self.input_tokens, self.output_tokens)
        return min(max(0, self.total_tokens or sum(part or 0 for part in parts)), MAX_TOKENS)


class _Answer(msgspec.Struct):
    """An answer, or an event of the Responses API with one."""

    usage: _Usage | None = None
    response: "_Answer | None" = None


_decode = msgspec.json.Decoder(_Answer).decode


def usage_headers(prompt_tokens: int, output_tokens: int) -> tuple[tuple[str, str], ...]:
    return ((USAGE_HEADER, f"{prompt_tokens} {output_tokens}"),)


def read_usage(value: str | None) -> int | None:
    """Return the tokens that a header or trailer tells; None if there is none, or it is malformed."""
    prompt, _, output = (value or "").partition(" ")
    is_valid = all(part.isascii() and part.isdigit() and len(part) < 12 for part in (prompt, output))
    return min(int(prompt) + int(output), MAX_TOKENS) if is_valid else None


def has_usage(part: bytes) -> bool:
    """Return whether a part of a response may tell its tokens."""
    return _MARK in part


def usage_in(body: bytes) -> int | None:
    """Return the tokens that a JSON answer, or the last server-sent event in `body` with a usage, tells; else None."""
    if body.lstrip()[:1] == b"{":
        return _usage_of(body)
    lines = (line.removeprefix(b"data:") for line in reversed(body.splitlines()) if has_usage(line))
    return next((found for line in lines if (found := _usage_of(line)) is not None), None)


def _usage_of(text: bytes) -> int | None:
    try:
        answer = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    usage = answer.usage or (answer.response.usage if answer.response is not None else None)
    return None if usage is None else usage.num_tokens
