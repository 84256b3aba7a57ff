"""
Conversion of chat messages from OpenAI's formats to what chat templates expect.

Templates read `message.content` as a string and `tool_calls[].function.arguments` as an object, whichever of the
allowed formats the client sent. Source: OpenAI API reference; Hugging Face chat template guide (tool use).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.client_text import shortened
from headrace.serving.wire.framing import invalid

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]

_REASONING_NAMES = ("reasoning", "reasoning_content", "thinking", "tool_plan")
"""The names of reasoning in templates: vLLM's convention, Qwen3's and SmolLM3's, gpt-oss's, and Command R7B's."""

TAKE_OUT = "Take it out of the conversation"
"""The advice for a part that no later request may have either: agents send the whole conversation each time."""


class ContentPart(msgspec.Struct):
    """A part of a message's content; only text is supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    """The function of an earlier tool call."""

    name: str
    arguments: str | dict[str, object] | None = None


class ToolCall(msgspec.Struct):
    """An earlier tool call of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct):
    """A chat message of any role."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    """The predecessor of `tool_calls`, which old conversations may contain."""
    tool_call_id: str | None = None
    reasoning: str | None = None
    """The reasoning of an earlier answer; the chat template decides whether the model sees it again."""
    reasoning_content: str | None = None
    """The older name of `reasoning`."""


def template_messages(
    messages: list[Message], answer_format: AnswerFormat | None = None
) -> tuple[dict[str, object], ...]:
    """Return the messages as a chat template expects them. Raises `InvalidRequest`: there are none, or no text."""
    if not messages:
        raise invalid("messages", "empty array. Expected at least one message")
    takes_one = answer_format is not None and answer_format.has_channels
    written = [_template_message(message, number, takes_one=takes_one) for number, message in enumerate(messages)]
    return tuple(_with_results_in_order(written))


def _with_results_in_order(messages: Sequence[dict[str, object]]) -> Iterator[dict[str, object]]:
    """
    Yield the messages with the results of parallel calls in the order of the calls.

    Most templates show no ids, so that the order is all that tells the model which result is of which call. Claude Code
    sends results in the order in which its tools ended.
    """
    calls: list[object] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            places = {call: place for place, call in enumerate(calls)}
            yield from sorted(group, key=lambda message: places.get(message.get("tool_call_id"), len(places)))
            continue
        for message in group:
            called = message.get("tool_calls")
            calls = [call.get("id") for call in called] if isinstance(called, list) else []
            yield message


def _template_message(message: Message, number: int, *, takes_one: bool) -> dict[str, object]:
    if message.content is None and message.role not in {"assistant", "function"}:
        raise invalid(f"messages[{number}].content", f"a message of the {message.role} needs content")
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
    reasoning = message.reasoning or message.reasoning_content
    if reasoning:
        if takes_one and calls and message.content:  # gpt-oss's template refuses content beside `thinking` with calls
            reasoning, written["content"] = f"{reasoning}\n{written['content']}", ""
        written |= dict.fromkeys(_REASONING_NAMES, reasoning)
    return written


def _text(content: str | list[ContentPart] | None, number: int) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for place, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in {"text", "input_text", "refusal"} or text is None:
            got = f"this model reads text only, but got '{shortened(part.type)}'"
            raise invalid(f"messages[{number}].content[{place}]", f"{got}. {TAKE_OUT}")
        texts.append(text)
    return "\n".join(texts)


def _template_call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": _decoded(call.function.arguments)}
    written: dict[str, object] = {"type": "function", "function": function}
    return written if call.id is None else {"id": call.id, **written}


def _decoded(arguments: str | dict[str, object] | None) -> object:
    """Return arguments as an object; text that does not parse, which a model may have written, is unchanged."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:  # clients write no arguments as nothing, as an empty text or as `null`
        decoded = msgspec.json.decode(arguments) if arguments.strip() else None
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return {} if decoded is None else decoded
