"""Chats with joined turns, for templates that accept the user's and the assistant's turns only alternately."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

Message = Mapping[str, object]
_JOINED: Final = ("system", "user", "assistant")


def joined_chats(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """
    Yield the chat in forms with fewer turns, those that change least first.

    Neighbouring messages of one role become one; then the user's text after the result of a tool becomes part of it.
    """
    before = [*messages]
    for form in (joined_turns(messages), joined_turns(_with_text_in_results(messages))):
        if form != before:
            yield form
        before = form


def joined_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with neighbours of one role joined; results of tools stay apart, as each has its call."""
    turns: list[Message] = []
    for role, neighbours in groupby(messages, key=lambda message: message.get("role")):
        group = [*neighbours]
        turns += [_joined(group)] if role in _JOINED else group
    return turns


def joined_text(first: object, second: object) -> object:
    """Return two texts as one; an empty one has no line of its own."""
    return f"{first}\n{second}" if first and second else first or second


def _with_text_in_results(messages: Sequence[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if message.get("role") == "user" and turns and turns[-1].get("role") == "tool":
            turns[-1] = {**turns[-1], "content": joined_text(turns[-1].get("content"), message.get("content"))}
        else:
            turns.append(message)
    return turns


def _joined(messages: Sequence[Message]) -> Message:
    joined: dict[str, object] = {}
    for message in messages:
        for key, value in message.items():
            before = joined.get(key)
            if isinstance(before, list) and isinstance(value, list):
                joined[key] = [*before, *value]
            elif key in {"role", "name"}:
                joined.setdefault(key, value)
            else:
                joined[key] = joined_text(before, value)
    return joined
