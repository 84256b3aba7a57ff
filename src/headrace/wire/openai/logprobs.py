"""Logprobs in OpenAI's two formats: parallel lists (completions) and one object per token (chat)."""

from collections.abc import Iterable, Sequence

from headrace.core.generation import Token
from headrace.wire.answers import finite_logprob


def visible(tokens: Iterable[Token], *, with_special: bool) -> list[Token]:
    """Return the tokens that make up the text, without the end-of-sequence token."""
    return [token for token in tokens if with_special or not token.special]


def chat_logprobs(tokens: Sequence[Token], *, num_top: int) -> dict[str, object]:
    """Return `choices[].logprobs` of a chat completion."""
    return {"content": token_logprobs(tokens, num_top=num_top), "refusal": None}


def token_logprobs(tokens: Iterable[Token], *, num_top: int) -> list[dict[str, object]]:
    """Return the logprobs of a chat completion's or a response's tokens."""
    return [_chat_token(token, num_top) for token in tokens]


def completion_logprobs(
    tokens: Sequence[Token], *, num_top: int, offset: int, with_special: bool
) -> tuple[dict[str, object], int]:
    """Return `choices[].logprobs` of a completion from character `offset` on, and the offset after it."""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += 0 if token.special and not with_special else len(token.text)
    logprobs: dict[str, object] = {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [finite_logprob(token.logprob) for token in tokens],
        "top_logprobs": [_top(token, num_top) for token in tokens] if num_top else None,
        "text_offset": offsets,
    }
    return logprobs, offset


def _chat_token(token: Token, num_top: int) -> dict[str, object]:
    return {
        "token": _name(token),
        "logprob": finite_logprob(token.logprob),
        "bytes": list(token.raw or token.text.encode()),
        "top_logprobs": [
            {"token": top.text, "logprob": finite_logprob(top.logprob), "bytes": list(top.text.encode())}
            for top in token.top[:num_top]
        ],
    }


def _top(token: Token, num_top: int) -> dict[str, float | None] | None:
    if token.logprob is None:
        return None
    best = {top.text: finite_logprob(top.logprob) for top in token.top[:num_top]}
    return {**best, _name(token): finite_logprob(token.logprob)}


def _name(token: Token) -> str:
    r"""Return the token's text; a partial character is written as OpenAI does, `bytes:\xf0\x9f`."""
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text
