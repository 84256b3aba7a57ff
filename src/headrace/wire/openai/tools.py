"""
Tools: the functions that the model may call, and the grammar that enforces a call.

With `required` the answer is a JSON array of `{"name", "arguments"}` objects; with a named function it is the arguments
alone. A JSON schema enforces both, so they always parse. With `auto` the model writes calls in the format of its
training, and `openai.tool_stream` detects them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar
from headrace.wire.framing import to_json
from headrace.wire.openai.schema_refs import moved_schema

_NAME = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")
_MAX_PARALLEL_CALLS = 16
"""Calls per answer with `required`: small models repeat them until `max_tokens`, and a cut call is lost."""


class Function(msgspec.Struct, omit_defaults=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool of a request; functions are the only type."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    """A reference to a function: `{"name": ...}`."""

    name: str


class AllowedTools(msgspec.Struct):
    """The fields of a `tool_choice.allowed_tools` object."""

    mode: Literal["auto", "required"]
    tools: list["ToolChoice"]


class ToolChoice(msgspec.Struct):
    """A `tool_choice` object: `{"type": "function", ...}` or `{"type": "allowed_tools", ...}`."""

    type: Literal["function", "allowed_tools"] = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """The tools that a request may use, and the mode of their use."""

    mode: Literal["none", "auto", "required", "named"]
    names: frozenset[str] = frozenset()
    named: str = ""
    """The function that must be called, in mode `named`."""
    max_calls: int | None = None
    """Most calls in one answer; None: no limit."""
    grammar: Grammar | None = None


NO_TOOLS = ToolPlan(mode="none")


def plan_tools(tools: Sequence[Tool] | None, choice: str | ToolChoice | None, *, parallel: bool) -> ToolPlan:
    """
    Decide how the tools are used.

    Args:
        tools: the functions that the model may call.
        choice: `none`, `auto`, `required`, the name of a function (TGI's form) or an object.
        parallel: allow several calls in one answer.

    Raises:
        InvalidRequest: a name is invalid or repeated, or the choice is not among the tools.
    """
    parsed = _parse_tool_choice(choice)
    if not tools:
        if parsed.mode in {"named", "required"} or parsed.names is not None:
            text = "Invalid 'tool_choice': it is only allowed when 'tools' are given."
            raise InvalidRequest(text, param="tool_choice")
        return NO_TOOLS
    names = _checked_names(tools)
    for name in parsed.names or ():
        if name not in names:
            text = f"Invalid 'tool_choice': the function '{name[:80]}' is not among the tools."
            raise InvalidRequest(text, param="tool_choice")
    allowed = names if parsed.names is None else frozenset(parsed.names)
    offered = {number: tool.function for number, tool in enumerate(tools) if tool.function.name in allowed}
    max_calls = None if parallel else 1
    arguments = {
        function.name: _schema_grammar(_parameters(function), param=f"tools[{number}].function.parameters")
        for number, function in offered.items()
    }
    if parsed.mode == "named":
        ((_, function),) = offered.items()
        (grammar,) = arguments.values()
        grammar = replace(grammar, arguments=((function.name, grammar),))
        return ToolPlan(mode="named", names=names, named=function.name, max_calls=1, grammar=grammar)
    if parsed.mode == "required":
        bound = _MAX_PARALLEL_CALLS if parallel else 1
        grammar = _schema_grammar(_calls_schema(offered.values(), bound), param="tools")
        grammar = replace(grammar, arguments=tuple(arguments.items()))
        return ToolPlan(mode="required", names=allowed, max_calls=max_calls, grammar=grammar)
    return NO_TOOLS if parsed.mode == "none" else ToolPlan(mode="auto", names=allowed, max_calls=max_calls)


@dataclass(frozen=True, slots=True)
class _ParsedToolChoice:
    """The normalised value of `tool_choice`."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] | None = None
    """The functions that may be called; None: all of them."""


def _parse_tool_choice(choice: str | ToolChoice | None) -> _ParsedToolChoice:
    if choice is None or choice == "auto":
        return _ParsedToolChoice("auto")
    if choice == "none":
        return _ParsedToolChoice("none")
    if choice == "required":
        return _ParsedToolChoice("required")
    if isinstance(choice, str):
        return _ParsedToolChoice("named", (choice,))
    if choice.type == "function":
        return _ParsedToolChoice("named", (_name_of(choice, "tool_choice"),))
    if choice.allowed_tools is None or not choice.allowed_tools.tools:
        param = "tool_choice.allowed_tools"
        raise InvalidRequest(f"Invalid '{param}': expected a mode and at least one tool.", param=param)
    allowed = choice.allowed_tools
    place = "tool_choice.allowed_tools.tools"
    return _ParsedToolChoice(
        allowed.mode, tuple(_name_of(tool, f"{place}[{i}]") for i, tool in enumerate(allowed.tools))
    )


def _name_of(choice: ToolChoice, param: str) -> str:
    if choice.function is None:
        raise InvalidRequest(f"Missing required parameter: '{param}.function.name'.", param=f"{param}.function.name")
    return choice.function.name


def template_tools(tools: Sequence[Tool]) -> tuple[dict[str, object], ...]:
    """Return the tools as a chat template expects them."""
    return tuple({"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in tools)


def _checked_names(tools: Sequence[Tool]) -> frozenset[str]:
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = tool.function.name
        param = f"tools[{number}].function.name"
        if not _NAME.match(name):
            expected = "Expected 1 to 64 letters, digits, '_', '-' or '.'"
            raise InvalidRequest(f"Invalid '{param}': {expected}, but got '{name[:80]}'.", param=param)
        if name in names:
            raise InvalidRequest(f"Invalid '{param}': '{name}' is defined twice.", param=param)
        names.add(name)
    return frozenset(names)


def _parameters(function: Function) -> dict[str, object]:
    """Return the schema of the arguments, which is an empty object for a function that declares none."""
    return {"type": "object", **(function.parameters or {"properties": {}})}


def _schema_grammar(schema: dict[str, object], *, param: str) -> Grammar:
    return Grammar("json_schema", to_json(schema).decode(), param=param)


def _calls_schema(functions: Iterable[Function], max_calls: int) -> dict[str, object]:
    """Return the schema of an array of calls, with each function's schema as a definition."""
    definitions: dict[str, object] = {}
    calls = []
    for function in functions:
        place = f"#/$defs/{function.name}"
        definitions[function.name] = moved_schema(_parameters(function), place)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "arguments": {"$ref": place}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"type": "array", "minItems": 1, "maxItems": max_calls, "items": {"anyOf": calls}, "$defs": definitions}
