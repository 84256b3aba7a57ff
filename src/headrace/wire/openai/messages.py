"""
Chat messages: OpenAI's forms in, what chat templates expect out.

Templates read `message.content` as a string and `tool_calls[].function.arguments` as an object, whatever of the many
allowed forms the client sent. Source: OpenAI API reference; Hugging Face chat template guide (tool use).
"""

from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    """The function of an earlier tool call."""

    name: str
    arguments: str | dict[str, object] = ""


class ToolCall(msgspec.Struct):
    """An earlier tool call of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct):
    """One message."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    """What `tool_calls` were before; a conversation may still hold some."""
    tool_call_id: str | None = None


def template_messages(messages: list[Message]) -> tuple[dict[str, object], ...]:
    """
    The messages as a chat template expects them.

    Raises:
        InvalidRequest: no messages, or content that is not text.
    """
    if not messages:
        raise InvalidRequest("Invalid 'messages': empty array. Expected at least one message.", param="messages")
    return tuple(_template_message(message, number) for number, message in enumerate(messages))


def _template_message(message: Message, number: int) -> dict[str, object]:
    if message.content is None and message.role not in {"assistant", "function"}:
        param = f"messages[{number}].content"
        raise InvalidRequest(f"Invalid '{param}': a message of the {message.role} needs content.", param=param)
    written: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, number),
    }
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    legacy = () if message.function_call is None else (ToolCall(function=message.function_call),)
    calls = (*legacy, *(message.tool_calls or ()))
    if calls:
        written["tool_calls"] = [_template_call(call) for call in calls]
    return written


def _text(content: str | list[ContentPart] | None, number: int) -> str:
    if not isinstance(content, list):
        return content or ""
    return "\n".join(_part_text(part, f"messages[{number}].content[{place}]") for place, part in enumerate(content))


def _part_text(part: ContentPart, param: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in {"text", "input_text", "refusal"} or text is None:
        raise InvalidRequest(f"Invalid '{param}': this model reads text only, but got '{part.type}'.", param=param)
    return text


def _template_call(call: ToolCall) -> dict[str, object]:
    arguments: object = call.function.arguments
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    written: dict[str, object] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return written if call.id is None else {"id": call.id, **written}


def _decoded(arguments: str) -> object:
    """Arguments as an object; the text as it is where it does not parse (a model may have written it)."""
    try:
        return msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return arguments
