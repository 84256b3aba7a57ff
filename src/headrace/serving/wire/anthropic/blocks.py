"""
Conversion of Anthropic's messages to those of OpenAI, which the chat template reads.

Neighbouring messages of one role are one turn, as in Anthropic's API. A turn of the user may hold results of tools
beside text: each result becomes a message of its own, in front of the text.
Source: Anthropic API reference, "Messages"; "Tool use".
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.openai.messages import CalledFunction, Message, ToolCall


class TextSource(msgspec.Struct):
    """The source of a document: plain text is the only one that is read."""

    type: str
    data: str | None = None


class Block(msgspec.Struct, kw_only=True):
    """A content block of any type; which fields it has depends on the type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    source: TextSource | None = None
    title: str | None = None


Content = str | list[Block]
_Placed = tuple[str, Block]
"""A block with its place in the body, for errors."""


class InputMessage(msgspec.Struct):
    """A message of the user or an earlier answer."""

    role: Literal["user", "assistant", "system"]
    content: Content


def chat_messages(system: Content | None, messages: Sequence[InputMessage]) -> list[Message]:
    """Return the conversation in OpenAI's form. Raises `InvalidRequest`: a block is not text, or not of its role."""
    if not messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    result = [] if system is None else [Message(role="system", content=_text(system, "system"))]
    for role, turn in groupby(enumerate(messages), key=lambda message: message[1].role):
        if role == "system":
            result += [
                Message(role="system", content=_text(message.content, f"messages.{n}.content")) for n, message in turn
            ]
            continue
        blocks = [block for number, message in turn for block in _blocks(message, f"messages.{number}.content")]
        result += [_assistant(blocks)] if role == "assistant" else _user(blocks)
    return result


def _blocks(message: InputMessage, param: str) -> list[_Placed]:
    if isinstance(message.content, str):
        return [(param, Block(type="text", text=message.content))]
    if not message.content and message.role == "user":
        raise InvalidRequest(f"{param}: user messages must have non-empty content", param=param)
    return [(f"{param}.{number}", block) for number, block in enumerate(message.content)]


def _user(blocks: Sequence[_Placed]) -> Iterator[Message]:
    texts = []
    for place, block in blocks:
        if block.type == "tool_result":
            text = "" if block.content is None else _text(block.content, f"{place}.content")
            result = f"Error: {text}" if block.is_error else text
            yield Message(role="tool", tool_call_id=block.tool_use_id, content=result)
        else:
            texts.append(_block_text(block, place))
    if texts:
        yield Message(role="user", content="\n".join(texts))


def _assistant(blocks: Sequence[_Placed]) -> Message:
    texts, reasoning, calls = [], [], []
    for place, block in blocks:
        if block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type == "tool_use":
            if block.name is None:
                raise InvalidRequest(f"{place}.name: field required", param=f"{place}.name")
            function = CalledFunction(name=block.name, arguments=block.input or {})
            calls.append(ToolCall(id=block.id, function=function))
        elif block.type != "redacted_thinking":  # another provider's ciphertext
            texts.append(_block_text(block, place))
    return Message(
        role="assistant",
        content="\n".join(texts) if texts else None,
        tool_calls=calls or None,
        reasoning="\n".join(reasoning) or None,
    )


def _text(content: Content, param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{param}.{number}") for number, block in enumerate(content))


def _block_text(block: Block, param: str) -> str:
    if block.type == "text" and block.text is not None:
        return block.text
    if block.type == "document" and block.source is not None and block.source.type == "text":
        title = f"{block.title}\n" if block.title else ""
        return f"{title}{block.source.data or ''}"
    raise InvalidRequest(f"{param}: this model reads text only, but got a block of type '{block.type}'", param=param)
