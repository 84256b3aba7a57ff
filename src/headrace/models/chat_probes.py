"""
The forms of messages and tools that a chat template reads, found by rendering short chats with marked texts.

The source of a template does not tell: loops, macros and filters read content in many ways.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.models.render_limits import RenderingTooLong, RenderLimits

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
_FUNCTION: Final = "probe_6310584"
_CALL: Final = {"id": "probe0001", "type": "function", "function": {"name": _FUNCTION, "arguments": {}}}
_RESULT: Final = {"role": "tool", "content": "5827301649", "name": _FUNCTION, "tool_call_id": "probe0001"}
_CHATS: Final[Mapping[str, Messages]] = MappingProxyType(
    {
        "user": (_USER,),
        "system": (_SYSTEM, _USER),
        "assistant": (_USER, _ASSISTANT, {**_USER, "content": "4071638252"}),
        "tool": (_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT),
    }
)
"""A chat for each role, with one message of it that has a marked text; the user's form is found first."""
_TEXTS: Final = {message["role"]: str(message["content"]) for message in (_USER, _SYSTEM, _ASSISTANT, _RESULT)}
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": _FUNCTION,
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


def as_parts(message: Mapping[str, object], roles: frozenset[str]) -> Mapping[str, object]:
    """Return a message of one of the roles with its text as a list of one part."""
    content = message.get("content")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles or not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def find_content_forms(render: Render) -> ContentForms:
    """Return the forms of content that a template reads."""
    shown: set[str] = set()
    in_parts: frozenset[str] = frozenset()
    try:
        for role in _CHATS:
            forms = (in_parts, in_parts | {role})
            found = next((form for form in forms if _shows(render, role, form)), None)
            if found is None and role == "user":
                break  # nor will it show the others
            if found is not None:
                shown.add(role)
                in_parts = found
    except RenderingTooLong:  # a probe shows nothing about this template
        return ContentForms(shown=frozenset(_CHATS), in_parts=frozenset())
    return ContentForms(shown=frozenset(shown), in_parts=in_parts)


def shows_tools(render: Render) -> bool:
    """Return whether a template shows the tools of a request to the model."""
    try:
        for chat in (_CHATS["user"], _CHATS["system"]):
            if _rendered(render, chat, None) is not None:
                return _FUNCTION in (_rendered(render, chat, _TOOLS) or "")
    except RenderingTooLong:
        return True
    return True  # it needs a chat of another kind, and may use tools there


def _shows(render: Render, role: str, in_parts: frozenset[str]) -> bool:
    messages = [as_parts(message, in_parts) for message in _CHATS[role]]
    return _TEXTS[role] in (_rendered(render, messages, None) or "")


def _rendered(render: Render, messages: Messages, tools: Messages | None) -> str | None:
    try:
        return render(messages, tools)
    except RenderingTooLong:
        raise
    except InvalidRequest:
        return None
