"""
Responses of Anthropic's Messages API, for its description.

Source: Anthropic API reference, "Messages" and "Streaming messages".
"""

from typing import Literal

from msgspec import Struct

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, tag_field="type", tag="text"):
    """A block of text in a message."""

    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """The reasoning of the model."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, object]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct):
    """Numbers of tokens; `input_tokens` are those that the prefix cache did not have."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(Struct):
    """The message that answers a request."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The begin of a message."""

    message: AnthropicMessage


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """The begin of a block."""

    index: int
    content_block: ContentBlock


class TextPart(Struct, tag_field="type", tag="text_delta"):
    """A part of a text."""

    text: str


class ThinkingPart(Struct, tag_field="type", tag="thinking_delta"):
    """A part of the reasoning."""

    thinking: str


class SignaturePart(Struct, tag_field="type", tag="signature_delta"):
    """The signature of the reasoning."""

    signature: str


class ArgumentsPart(Struct, tag_field="type", tag="input_json_delta"):
    """A part of the arguments of a call."""

    partial_json: str


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """A part of a block."""

    index: int
    delta: TextPart | ThinkingPart | SignaturePart | ArgumentsPart


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """The end of a block."""

    index: int


class StopDelta(Struct):
    """The reason why the message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """The reason of the end, and the numbers of tokens."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The end of a message."""


class Ping(Struct, tag_field="type", tag="ping"):
    """An event that keeps the connection open."""


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, Ping)


class TokenCount(Struct):
    """The number of tokens of messages."""

    input_tokens: int
