"""
Conversion of the Responses API's items to chat messages, which the chat template reads.

Items of one turn of the assistant (reasoning, text, calls) become one message.

Source: OpenAI API reference, "Create a model response", `input`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headrace.core.client_text import shortened
from headrace.serving.wire.framing import invalid, missing, to_json
from headrace.serving.wire.openai.messages import CalledFunction, ContentPart, Message, Role, ToolCall
from headrace.serving.wire.openai.responses_tools import custom_arguments, function_name

_NULL = b"null"
_MESSAGE, _USER, _ASSISTANT = (msgspec.Raw(b'"%b"' % name) for name in (b"message", b"user", b"assistant"))
_decode_input = msgspec.json.Decoder(str | list[dict[str, msgspec.Raw]]).decode
_decode_text = msgspec.json.Decoder(str).decode
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = tuple(f"{call}_output" for call in _CALLS)
_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}

Content = str | list[ContentPart]


class InputItem(msgspec.Struct, kw_only=True):
    """An item of any type; which fields it has depends on the type."""

    type: str = "message"
    id: str | None = None
    role: Role | None = None
    content: Content | None = None
    summary: list[ContentPart] | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    """The input of a call of a custom tool."""
    namespace: str | None = None
    """The namespace of a called tool."""
    call_id: str | None = None
    output: Content | None = None


def chat_messages(
    instructions: str | None, items: str | Sequence[InputItem], before: Sequence[InputItem] = ()
) -> list[Message]:
    """
    Return the conversation as chat messages: `instructions`, items of earlier responses (`before`), the input.

    Raises:
        InvalidRequest: there is no item, its type is not supported, or it lacks a field of its type.
    """
    system = [] if instructions is None else [Message(role="system", content=instructions)]
    if isinstance(items, str):
        items = [InputItem(role="user", content=items)]
    messages = list(_messages([*before, *items], first=len(before)))
    if not items or not messages:
        raise invalid("input", "it has no message. Expected text, or an array with at least one item")
    return [*system, *messages]


class _Turn:
    """The assistant's items since the last item of another role."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, item: InputItem, param: str) -> None:
        """Add an item."""
        if item.type in _CALLS:
            name, call_id = _required(item.name, f"{param}.name"), _required(item.call_id, f"{param}.call_id")
            is_custom = item.type == "custom_tool_call"
            arguments = custom_arguments(item.input or "") if is_custom else item.arguments or ""
            function = CalledFunction(name=function_name(name, item.namespace), arguments=arguments)
            self._calls.append(ToolCall(id=call_id, function=function))
        elif item.type == "reasoning":
            self._reasoning.append(_reasoning(item, param))
        else:
            self._texts.append(_text(item.content, f"{param}.content"))

    def messages(self) -> Iterator[Message]:
        """Yield the turn as one message, unless it is empty."""
        reasoning = "\n".join(filter(None, self._reasoning))
        if self._texts or self._calls or reasoning:
            yield Message(
                role="assistant",
                content="\n".join(self._texts) if self._texts else None,
                tool_calls=self._calls or None,
                reasoning=reasoning or None,
            )


def stored_items(items: bytes, suffix: str) -> bytes:
    """
    Return the input, a JSON string or array of objects, as the array of items that is stored and listed.

    Items without an id get one that ends with `suffix`. The values of an item are copied as they are, so that a proxy
    keeps what only the model server understands.
    """
    found = _decode_input(items)
    if isinstance(found, str):
        found = [{"role": _USER, "content": msgspec.Raw(items)}]
    return to_json([_stored_item(item, f"{suffix}_in{number}") for number, item in enumerate(found)])


def _stored_item(item: Mapping[str, msgspec.Raw], suffix: str) -> dict[str, object]:
    item = {key: value for key, value in item.items() if bytes(value) != _NULL}
    kind = _decode_text(item.get("type", _MESSAGE))
    prefix = _ID_PREFIXES.get(kind, "fco")
    fields: dict[str, object] = {"type": kind, "id": f"{prefix}_{suffix}", **item, "status": "completed"}
    if kind == "reasoning":
        return {"summary": [], **fields}
    content = item.get("content")
    if kind == "message" and content is not None and bytes(content).startswith(b'"'):
        is_output = item.get("role") == _ASSISTANT
        part: dict[str, object] = {"type": "output_text" if is_output else "input_text", "text": content}
        fields["content"] = [{**part, "annotations": []} if is_output else part]
    return fields


def _messages(items: Sequence[InputItem], *, first: int) -> Iterator[Message]:
    """Yield the messages of all items; errors count from item `first`, where the request's own items begin."""
    turn = _Turn()
    for number, item in enumerate(items, -first):
        param = f"input[{number}]"
        if item.type in {*_CALLS, "reasoning"} or (item.type == "message" and item.role == "assistant"):
            turn.add(item, param)
            continue
        yield from turn.messages()
        turn = _Turn()
        yield _message(item, param)
    yield from turn.messages()


def _message(item: InputItem, param: str) -> Message:
    """Return an item that is not the assistant's as a message."""
    if item.type in _OUTPUTS:
        call_id = _required(item.call_id, f"{param}.call_id")
        output = _text(item.output, f"{param}.output")
        return Message(role="tool", tool_call_id=call_id, content=output)
    if item.type == "item_reference":
        raise invalid(f"{param}.type", "items cannot be referred to by their ids. Send the item itself")
    if item.type != "message":
        expected = f"Expected 'message', 'reasoning', {', '.join(map(repr, _CALLS))} or one of their outputs"
        raise invalid(f"{param}.type", f"{expected}, but got '{shortened(item.type)}'")
    if item.role is None:
        raise missing(f"{param}.role")
    if item.role not in {"user", "system", "developer"}:
        raise invalid(f"{param}.role", f"Expected 'user', 'assistant', 'system' or 'developer', but got '{item.role}'")
    return Message(role=item.role, content=_text(item.content, f"{param}.content"))


def _reasoning(item: InputItem, param: str) -> str:
    """Return the text of a reasoning item, or its summary; encrypted text of another provider is dropped."""
    if item.content:
        return _text(item.content, f"{param}.content")
    return _text(item.summary or [], f"{param}.summary")


def _text(content: Content | None, param: str) -> str:
    if content is None:
        raise missing(param)
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in {*_TEXT_PARTS, "refusal"} or text is None:
            raise invalid(f"{param}[{number}]", f"this model reads text only, but got '{shortened(part.type)}'")
        texts.append(text)
    return "\n".join(texts)


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise missing(param)
    return value
