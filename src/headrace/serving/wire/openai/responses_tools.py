"""
The tools of the Responses API as functions of a chat, and calls of these functions as calls of the API's tools.

Chat templates know functions only. The functions of a namespace get names that begin with its name, and a custom tool,
whose input is free text, becomes a function with one string. Tools that OpenAI's servers run are left out where the
client has tools of its own: coding agents name them in every request.

Source: OpenAI API reference, "Create a model response", `tools`; openai-python `types/responses/namespace_tool.py` and
`custom_tool.py`.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.serving.wire.framing import invalid, missing, to_json
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
