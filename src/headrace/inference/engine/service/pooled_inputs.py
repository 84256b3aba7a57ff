"""Tokens of pooled inputs: texts and pairs of texts, truncated if they are too long."""

from typing import Literal, NamedTuple, TypeVar

from headrace.inference.models.tokenizer import Tokenizer

Side = Literal["left", "right"]
Ids = TypeVar("Ids", list[int], tuple[int, ...])


class InputTokens(NamedTuple):
    """The tokens of a prompt or input."""

    ids: list[int] | tuple[int, ...]
    second_start: int = -1
    """Position of the first token of type 1, for networks with token types; -1: all are of type 0."""
    opening: str = ""
    """The end of a chat's prompt that the answer continues, see `AnswerFormat.opening`."""


def cut(ids: Ids, most: int, side: Side | None) -> Ids:
    """Return at most `most` tokens: the first ones if the right side is cut; all of them if `side` is None."""
    if side is None or len(ids) <= most:
        return ids
    return ids[:most] if side == "right" else ids[len(ids) - most :]


def encode_input(
    tokenizer: Tokenizer, text: str, document: str | None, pair_template: str, *, most: int, side: Side | None
) -> InputTokens:
    """
    Return the tokens of a text or of a query with its document; with `side`, at most `most` of them.

    Special tokens and the query are never cut. A pair is filled into the template of the model, or becomes two
    segments.
    """
    limit = most if side is not None else None
    if document is None or not pair_template:
        return InputTokens(*tokenizer.encode_segments(text, document, most=limit, side=side or "right"))
    before, after = (part.replace("{query}", text) for part in pair_template.split("{document}"))
    ids = tokenizer.encode(f"{before}{document}{after}", add_special_tokens=False)
    if limit is None or len(ids) <= limit:
        return InputTokens(ids)
    head, middle, tail = (tokenizer.encode(part, add_special_tokens=False) for part in (before, document, after))
    return InputTokens([*head, *cut(middle, max(0, limit - len(head) - len(tail)), side), *tail])
