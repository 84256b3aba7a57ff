"""
The tools and items of the Responses API as functions and messages of a chat, which the chat template reads.

Chat templates know functions only. The functions of a namespace get names that begin with its name, and a custom tool,
whose input is free text, becomes a function with one string. Tools that OpenAI's servers run are left out where the
client has tools of its own: coding agents name them in every request.
Items of one turn of the assistant (reasoning, text, calls) become one message.

Source: OpenAI API reference, "Create a model response", `tools` and `input`; openai-python
`types/responses/namespace_tool.py` and `custom_tool.py`.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.serving.wire.framing import invalid, missing, to_json
from headrace.serving.wire.openai.messages import TAKE_OUT, CalledFunction, ContentPart, Message, Role, ToolCall
from headrace.serving.wire.openai.tools import AllowedTools, Function, NamedFunction, Tool, ToolChoice

MAX_NAME_CHARACTERS = 64
"""The longest name of a function."""
_HOSTED = frozenset(
    (
        *("code_interpreter", "file_search", "image_generation", "mcp", "programmatic_tool_calling"),
        *("tool_search", "web_search", "web_search_2025_08_26", "web_search_preview"),
        *("web_search_preview_2025_03_11",),
    )
)
"""Types of tools that run on OpenAI's servers."""
_INPUT = "input"
"""The parameter of the function for a custom tool."""


class ResponseTool(msgspec.Struct):
    """A tool of a request; which fields it has depends on the type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    tools: "list[ResponseTool] | None" = None
    """The functions and custom tools of a namespace."""
    format: dict[str, object] | None = None
    """The format of a custom tool's input: text, or a grammar, which is shown to the model and not enforced."""


class AllowedTool(msgspec.Struct):
    """A tool that `tool_choice` allows, by its name."""

    type: str
    name: str | None = None
    namespace: str | None = None


class ResponseToolChoice(msgspec.Struct, omit_defaults=True):
    """The value of `tool_choice` that is not a mode: one tool, or several that are allowed."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrigin:
    """The tool of the client that a function stands for."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTools:
    """The functions that the model sees, and what they stand for."""

    functions: Sequence[Tool] = ()
    origins: Mapping[str, ToolOrigin] = field(default_factory=dict)
    """By the name of the function."""
    without_effect: tuple[str, ...] = ()
    """Fields of the request for the log: tools that are left out, formats that are not enforced."""


def read_tools(tools: Sequence[ResponseTool]) -> ClientTools:
    """Return the tools as functions. Raises `InvalidRequest`: one is not supported, or all run on OpenAI's servers."""
    origins: dict[str, ToolOrigin] = {}
    functions: list[Tool] = []
    without_effect: list[str] = []
    for number, tool in enumerate(tools):
        param = f"tools[{number}]"
        if tool.type in _HOSTED:
            without_effect.append(f"{param}.{tool.type}")
            continue
        for place, member, namespace in _members(tool, param):
            function = _function(member, place, namespace)
            functions.append(Tool(function=function))
            is_custom = member.type == "custom"
            origins.setdefault(
                function.name, ToolOrigin(name=member.name or "", namespace=namespace, is_custom=is_custom)
            )
            if (member.format or {}).get("type", "text") != "text":
                without_effect.append(f"{place}.format")
    if tools and not functions:
        expected = "Expected at least one tool that the client runs: 'function', 'custom' or 'namespace'"
        raise invalid("tools[0].type", f"'{tools[0].type}' runs on OpenAI's servers. {expected}")
    return ClientTools(functions=functions, origins=origins, without_effect=tuple(without_effect))


def function_name(name: str, namespace: str | None) -> str:
    """Return the name of the function for a tool; a long one is cut, and made unique by a checksum."""
    if namespace is None:
        return name
    joined = f"{namespace.removesuffix('__')}__{name}"
    if len(joined) <= MAX_NAME_CHARACTERS:
        return joined
    return f"{joined[: MAX_NAME_CHARACTERS - 9]}_{zlib.crc32(joined.encode()):08x}"


def custom_arguments(text: str) -> str:
    """Return the arguments of the function for a call of a custom tool."""
    return to_json({_INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool from the arguments of its function; text that is not their JSON as it is."""
    try:
        found = msgspec.json.decode(arguments, type=dict[str, object]).get(_INPUT)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return found if isinstance(found, str) else arguments


def read_choice(choice: str | ResponseToolChoice | None) -> str | ToolChoice | None:
    """Return `tool_choice` in the form of chat completions. Raises `InvalidRequest`: a tool has an unsupported type."""
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type != "allowed_tools":
        return _named(choice, "tool_choice")
    tools = [_named(tool, f"tool_choice.tools[{number}]") for number, tool in enumerate(choice.tools or ())]
    if choice.mode is None or not tools:
        raise invalid("tool_choice", "expected a mode and at least one tool")
    return ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=choice.mode, tools=tools))


def _named(tool: AllowedTool | ResponseToolChoice, param: str) -> ToolChoice:
    if tool.type not in {"function", "custom"}:
        raise _unsupported(tool.type, f"{param}.type")
    if tool.name is None:
        raise missing(f"{param}.name")
    return ToolChoice(function=NamedFunction(name=function_name(tool.name, tool.namespace)))


def _members(tool: ResponseTool, param: str) -> Iterator[tuple[str, ResponseTool, str | None]]:
    """Yield the function or custom tool, or those of a namespace, with their places and their namespace."""
    if tool.type != "namespace":
        yield param, tool, None
        return
    if tool.name is None:
        raise missing(f"{param}.name")
    for number, member in enumerate(tool.tools or ()):
        yield f"{param}.tools[{number}]", member, tool.name


def _function(tool: ResponseTool, param: str, namespace: str | None) -> Function:
    if tool.type not in {"function", "custom"}:
        raise _unsupported(tool.type, f"{param}.type")
    if tool.name is None:
        raise missing(f"{param}.name")
    name = function_name(tool.name, namespace)
    if tool.type == "function":
        return Function(name=name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    form, about = tool.format or {}, "The input of the tool, as text"
    if form.get("type", "text") != "text":
        about = f"{about} that matches this {form.get('syntax')} grammar:\n{form.get('definition')}"
    else:
        about = f"{about}."
    described = {"type": "string", "description": about}
    parameters = {"type": "object", "properties": {_INPUT: described}, "required": [_INPUT]}
    return Function(name=name, description=tool.description, parameters={**parameters, "additionalProperties": False})


def _unsupported(kind: str, param: str) -> InvalidRequest:
    expected = "Expected 'function', 'custom' or 'namespace': the client runs the tools"
    return invalid(param, f"'{shortened(kind)}' is not supported. {expected}")


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
            got = f"this model reads text only, but got '{shortened(part.type)}'"
            raise invalid(f"{param}[{number}]", f"{got}. {TAKE_OUT}")
        texts.append(text)
    return "\n".join(texts)


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise missing(param)
    return value
