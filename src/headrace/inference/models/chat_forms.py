"""
The forms of messages and tools that a chat template reads, and joined turns, where roles must alternate.

The source of a template does not tell: loops, macros and filters read content in many ways. So short chats with marked
texts are rendered.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.inference.models.render_limits import RenderingTooLong, RenderLimits

Messages = Sequence[Mapping[str, object]]
Render = Callable[[Messages, Messages | None], str]
"""Renders messages and tools; raises `InvalidRequest` if the template refuses them."""

PROBE_LIMITS: Final = RenderLimits(
    max_steps=5_000, max_seconds=1.0, max_characters=32 * 1024, max_bytes=16 * 1024 * 1024
)
"""Limits by steps, so that the forms found do not depend on the load of the machine."""
_USER: Final = {"role": "user", "content": "2648079315"}  # digits, which no template changes
_SYSTEM: Final = {"role": "system", "content": "7305194821"}
_ASSISTANT: Final = {"role": "assistant", "content": "9182465037"}
PROBE_FUNCTION: Final = "probe_6310584"
PROBE_CALL: Final = {"id": "probe0001", "type": "function", "function": {"name": PROBE_FUNCTION, "arguments": {}}}
_RESULT: Final = {"role": "tool", "content": "5827301649", "name": PROBE_FUNCTION, "tool_call_id": "probe0001"}
PROBE_CHATS: Final[Mapping[str, Messages]] = MappingProxyType(
    {
        "user": (_USER,),
        "system": (_SYSTEM, _USER),
        "assistant": (_USER, _ASSISTANT, {**_USER, "content": "4071638252"}),
        "tool": (_USER, {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}, _RESULT),
    }
)
"""A chat for each role, with one message of it that has a marked text; the user's form is found first."""
_SYSTEMS: Final = (
    *(_SYSTEM, {**_SYSTEM, "content": "3508917246"}, _USER, {**_SYSTEM, "content": "6190257384"}, _ASSISTANT),
    {**_USER, "content": "4071638252"},
)
"""The system messages of coding agents: several at the beginning (Codex), and one after the user's (Claude Code)."""
_TEXTS: Final = {message["role"]: str(message["content"]) for message in (_USER, _SYSTEM, _ASSISTANT, _RESULT)}
PROBE_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": PROBE_FUNCTION,
            "description": "A test.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}},
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """The roles whose text a template shows to the model, and those whose content it reads as a list of parts only."""

    shown: frozenset[str]
    in_parts: frozenset[str]
    shows_systems: bool
    """It shows every system message, not only one at the beginning."""


def as_parts(message: Mapping[str, object], roles: frozenset[str]) -> Mapping[str, object]:
    """Return a message of one of the roles with its text as a list of one part."""
    content = message.get("content")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles or not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def find_content_forms(render: Render) -> ContentForms:
    shown: set[str] = set()
    in_parts: frozenset[str] = frozenset()
    try:
        for role in PROBE_CHATS:
            forms = (in_parts, in_parts | {role})
            chats = {form: [as_parts(message, form) for message in PROBE_CHATS[role]] for form in forms}
            shows = (
                form for form, chat in chats.items() if _TEXTS[role] in (rendered_or_none(render, chat, None) or "")
            )
            found = next(shows, None)
            if found is None and role == "user":
                break  # nor will it show the others
            if found is not None:
                shown.add(role)
                in_parts = found
        systems = rendered_or_none(render, [as_parts(message, in_parts) for message in _SYSTEMS], None) or ""
    except RenderingTooLong:  # a probe shows nothing about this template
        return ContentForms(shown=frozenset(PROBE_CHATS), in_parts=frozenset(), shows_systems=True)
    shows_systems = all(str(message["content"]) in systems for message in _SYSTEMS if message["role"] == "system")
    return ContentForms(shown=frozenset(shown), in_parts=in_parts, shows_systems=shows_systems)


def shows_tools(render: Render) -> bool:
    try:
        for chat in (PROBE_CHATS["user"], PROBE_CHATS["system"]):
            if rendered_or_none(render, chat, None) is not None:
                return PROBE_FUNCTION in (rendered_or_none(render, chat, PROBE_TOOLS) or "")
    except RenderingTooLong:
        return True
    return True  # it needs a chat of another kind, and may use tools there


def rendered_or_none(render: Render, messages: Messages, tools: Messages | None) -> str | None:
    try:
        return render(messages, tools)
    except RenderingTooLong:
        raise
    except InvalidRequest:
        return None


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


def with_one_system(messages: Sequence[Message]) -> list[Message]:
    """Return the chat with its first system messages joined, and later ones as the user's, in their place."""
    groups = groupby(messages, key=lambda message: message.get("role"))
    turns: list[Message] = []
    for role, group in groups:
        if role != "system":
            turns += group
        elif not turns:
            turns.append(_joined([*group]))
        else:
            turns += [{**message, "role": "user"} for message in group]
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
