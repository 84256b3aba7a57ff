"""Conversion of Ollama's messages to those of OpenAI, which the chat template reads. Source: Ollama `docs/api.md`."""

from collections.abc import Sequence

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.wire.openai import messages as openai

_ROLES: dict[str, openai.Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class CalledFunction(msgspec.Struct):
    """The function of an earlier tool call."""

    name: str
    arguments: dict[str, object] | None = None


class ToolCall(msgspec.Struct):
    """An earlier tool call of the assistant."""

    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct):
    """A chat message of any role; null is the same as an absent field, and roles may be in any case."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


def openai_messages(messages: Sequence[Message]) -> list[openai.Message]:
    """
    Return the conversation in OpenAI's form; the answer continues a last message that is the assistant's.

    Raises:
        InvalidRequest: a message has images, or the last one is the assistant's and cannot be continued.
    """
    for number, message in enumerate(messages):
        if message.role.lower() not in _ROLES:
            param = f"messages[{number}].role"
            expected = ", ".join(_ROLES)
            raise InvalidRequest(f"`{param}` is {shortened(message.role)!r}; expected one of {expected}.", param=param)
        if message.images:
            param = f"messages[{number}].images"
            raise InvalidRequest(f"`{param}`: this model reads text only.", param=param)
    last = messages[-1]
    if last.role.lower() == "assistant" and (not last.content or last.tool_calls):
        text = "`messages`: the last message is the assistant's without text or with a call; expected text to continue."
        raise InvalidRequest(text, param="messages")
    return [_openai_message(message) for message in messages]


def _openai_message(message: Message) -> openai.Message:
    return openai.Message(
        role=_ROLES[message.role.lower()],
        content=message.content or "",
        name=message.tool_name,
        tool_calls=[_openai_call(call) for call in message.tool_calls or ()] or None,
        tool_call_id=message.tool_call_id,
        reasoning=message.thinking,
    )


def _openai_call(call: ToolCall) -> openai.ToolCall:
    function = openai.CalledFunction(name=call.function.name, arguments=call.function.arguments)
    return openai.ToolCall(function=function, id=call.id)
