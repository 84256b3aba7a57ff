"""
Tools: which may be called, and a grammar that makes the model call one.

With `required` the answer is a JSON array of `{"name", "arguments"}` objects, with a named function it is the
arguments alone; both are enforced by a JSON schema, so they always parse. With `auto` the model writes what its chat
template taught it, and `openai.tool_stream` finds the calls in it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar
from headrace.wire.framing import to_json

_NAME = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")
_DEFINITIONS = ("$defs", "definitions")


class Function(msgspec.Struct, omit_defaults=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool; functions are the only kind."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    """`{"name": ...}`."""

    name: str


class NamedChoice(msgspec.Struct):
    """`{"type": "function", "function": {"name": ...}}`."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How a request uses its tools."""

    mode: Literal["none", "auto", "required", "named"]
    names: frozenset[str] = frozenset()
    named: str = ""
    """The function that must be called, in mode `named`."""
    max_calls: int | None = None
    """None: as many as the model likes."""
    grammar: Grammar | None = None


NO_TOOLS = ToolPlan(mode="none")


def plan_tools(
    tools: Sequence[Tool] | None, choice: Literal["none", "auto", "required"] | NamedChoice | None, *, parallel: bool
) -> ToolPlan:
    """
    Decide how the tools are used.

    Raises:
        InvalidRequest: a name that is no name, twice the same, or a choice that is not among the tools.
    """
    if not tools:
        if isinstance(choice, NamedChoice) or choice == "required":
            text = "Invalid 'tool_choice': it is only allowed when 'tools' are given."
            raise InvalidRequest(text, param="tool_choice")
        return NO_TOOLS
    names = _checked_names(tools)
    if choice == "none":
        return NO_TOOLS
    max_calls = None if parallel else 1
    if isinstance(choice, NamedChoice):
        function = next((tool.function for tool in tools if tool.function.name == choice.function.name), None)
        if function is None:
            text = f"Invalid 'tool_choice': the function '{choice.function.name}' is not among the tools."
            raise InvalidRequest(text, param="tool_choice")
        return ToolPlan(
            mode="named", names=names, named=function.name, max_calls=1, grammar=_schema_grammar(_parameters(function))
        )
    if choice == "required":
        return ToolPlan(mode="required", names=names, max_calls=max_calls, grammar=_required_grammar(tools, max_calls))
    return ToolPlan(mode="auto", names=names, max_calls=max_calls)


def template_tools(tools: Sequence[Tool]) -> tuple[dict[str, object], ...]:
    """The tools as a chat template expects them."""
    return tuple({"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in tools)


def _checked_names(tools: Sequence[Tool]) -> frozenset[str]:
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = tool.function.name
        param = f"tools[{number}].function.name"
        if not _NAME.match(name):
            wanted = "Expected 1 to 64 letters, digits, '_', '-' or '.'"
            raise InvalidRequest(f"Invalid '{param}': {wanted}, but got '{name[:80]}'.", param=param)
        if name in names:
            raise InvalidRequest(f"Invalid '{param}': '{name}' is there twice.", param=param)
        names.add(name)
    return frozenset(names)


def _parameters(function: Function) -> dict[str, object]:
    """The schema of the arguments: always an object."""
    return {"type": "object", **(function.parameters or {})}


def _schema_grammar(schema: dict[str, object]) -> Grammar:
    return Grammar("json_schema", to_json(schema).decode())


def _required_grammar(tools: Sequence[Tool], max_calls: int | None) -> Grammar:
    definitions: dict[str, object] = {}
    calls = []
    for tool in tools:
        arguments = _with_lifted_definitions(_parameters(tool.function), tool.function.name, definitions)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, object] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    if definitions:
        schema["$defs"] = definitions
    return _schema_grammar(schema)


def _with_lifted_definitions(
    schema: dict[str, object], tool_name: str, definitions: dict[str, object]
) -> dict[str, object]:
    """The schema with its definitions moved to the common root, where `#/...` references look for them."""

    def moved(value: object) -> object:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        result = {key: moved(item) for key, item in value.items()}
        reference = value.get("$ref")
        if isinstance(reference, str):
            for place in _DEFINITIONS:
                result["$ref"] = reference.replace(f"#/{place}/", f"#/$defs/{tool_name}:", 1)
                if result["$ref"] != reference:
                    break
        return result

    for place in _DEFINITIONS:
        found = schema.get(place)
        if isinstance(found, dict):
            definitions.update({f"{tool_name}:{name}": moved(definition) for name, definition in found.items()})
    kept = moved({key: value for key, value in schema.items() if key not in _DEFINITIONS})
    assert isinstance(kept, dict)
    return kept
