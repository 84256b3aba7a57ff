"""
Tools: the functions that the model may call, and the grammar that enforces a call.

With `required` the answer is a JSON array of `{"name", "arguments"}` objects; with a named function it is the arguments
alone. A JSON schema enforces both, so they always parse. With `auto` the model writes calls in the format of its
training, and `openai.answer_stream` detects them.

The functions' schemas become definitions of one schema. Their references are resolved as JSON Schema says (`$id`,
`$anchor`, relative URIs, pointers) and written as pointers from the root of the new document, so that each leads to the
same schema as before, even if several have the same ids and anchors.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import quote, urldefrag, urljoin

import msgspec

from headrace.core.generation import Grammar
from headrace.serving.wire.framing import invalid, missing, to_json

Mode = Literal["none", "auto", "required", "named"]

_MODES: Mapping[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}
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

    mode: Mode
    names: frozenset[str] = frozenset()
    parameters: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The schemas of the arguments by function, in mode `auto`: some models write values without their type."""
    named: str = ""
    """The function that must be called, in mode `named`."""
    max_calls: int | None = None
    """Most calls in one answer; None: no limit."""
    grammar: Grammar | None = None


NO_TOOLS = ToolPlan(mode="none")


def plan_tools(tools: Sequence[Tool] | None, choice: str | ToolChoice | None, *, parallel: bool) -> ToolPlan:
    """
    Decide how the tools are used; `choice` is a mode, the name of a function (TGI's form) or an object.

    Raises:
        InvalidRequest: a name is invalid or repeated, or the choice is not among the tools.
    """
    mode, chosen = _parse_tool_choice(choice)
    if not tools:
        if mode in {"named", "required"} or chosen is not None:
            raise invalid("tool_choice", "it is only allowed when 'tools' are given")
        return NO_TOOLS
    names = _checked_names(tools)
    for name in chosen or ():
        if name not in names:
            raise invalid("tool_choice", f"the function '{name[:80]}' is not among the tools")
    allowed = names if chosen is None else frozenset(chosen)
    offered = {number: tool.function for number, tool in enumerate(tools) if tool.function.name in allowed}
    max_calls = None if parallel else 1
    arguments = {
        function.name: _schema_grammar(_parameters(function), param=f"tools[{number}].function.parameters")
        for number, function in offered.items()
    }
    # A grammar forces calls; in the mode "auto" the model may also answer with text, and calls are found in it.
    if mode == "named":
        ((_, function),) = offered.items()
        (grammar,) = arguments.values()
        grammar = replace(grammar, arguments=((function.name, grammar),))
        return ToolPlan(mode="named", names=names, named=function.name, max_calls=1, grammar=grammar)
    if mode == "required":
        bound = _MAX_PARALLEL_CALLS if parallel else 1
        grammar = _schema_grammar(_calls_schema(offered.values(), bound), param="tools")
        grammar = replace(grammar, arguments=tuple(arguments.items()))
        return ToolPlan(mode="required", names=allowed, max_calls=max_calls, grammar=grammar)
    if mode == "none":
        return NO_TOOLS
    schemas = {function.name: _parameters(function) for function in offered.values()}
    return ToolPlan(mode="auto", names=allowed, parameters=schemas, max_calls=max_calls)


def _parse_tool_choice(choice: str | ToolChoice | None) -> tuple[Mode, tuple[str, ...] | None]:
    """Return the mode, and the functions that may be called; None: all of them."""
    if choice is None or isinstance(choice, str):
        named = "auto" if choice is None else choice
        return (_MODES[named], None) if named in _MODES else ("named", (named,))
    if choice.type == "function":
        return "named", (_name_of(choice, "tool_choice"),)
    if choice.allowed_tools is None or not choice.allowed_tools.tools:
        raise invalid("tool_choice.allowed_tools", "expected a mode and at least one tool")
    tools, place = enumerate(choice.allowed_tools.tools), "tool_choice.allowed_tools.tools"
    return choice.allowed_tools.mode, tuple(_name_of(tool, f"{place}[{number}]") for number, tool in tools)


def _name_of(choice: ToolChoice, param: str) -> str:
    if choice.function is None:
        raise missing(f"{param}.function.name")
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
            raise invalid(param, f"Expected 1 to 64 letters, digits, '_', '-' or '.', but got '{name[:80]}'")
        if name in names:
            raise invalid(param, f"'{name}' is defined twice")
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


_BASE: Final = "https://schema.invalid/"
"""The URI of a schema without an id."""
_LITERALS: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, in which nothing is a reference."""
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords with schemas by name; a name is no keyword."""


@dataclass(slots=True)
class _Places:
    """The pointers of the schemas that have names of their own."""

    draft: str
    """The value of `$schema`."""
    resources: dict[str, str] = field(default_factory=dict)
    """By URI, without a fragment."""
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    """By URI and name."""

    def add(self, schema: Mapping[str, Any], base: str, pointer: str) -> None:
        """Add the names of a schema, whose URI is `base`."""
        self.resources.setdefault(base, pointer)
        anchor = schema.get("$anchor")
        own_id = schema.get(self.id_key)
        if "draft-0" in self.draft and isinstance(own_id, str) and own_id.startswith("#"):
            anchor = own_id[1:]  # as drafts up to 7 write it
        if isinstance(anchor, str):
            self.anchors.setdefault((base, anchor), pointer)

    @property
    def id_key(self) -> str:
        return "id" if "draft-04" in self.draft else "$id"

    def base_of(self, schema: Mapping[str, Any], base: str) -> str:
        """Return the URI to which the references in a schema are relative."""
        name = schema.get(self.id_key)
        return urldefrag(_resolved(name, base))[0] if isinstance(name, str) else base

    def pointer(self, reference: str, base: str) -> str | None:
        """Return the pointer to which a reference leads; None: out of the schema, or to nothing."""
        uri, fragment = urldefrag(_resolved(reference, base))
        if fragment and not fragment.startswith("/"):
            return self.anchors.get((uri, fragment))
        start = self.resources.get(uri)
        return None if start is None else start + fragment


def moved_schema(schema: Mapping[str, object], place: str) -> dict[str, Any]:
    """Return a whole schema as it must be written at a place of another document, a pointer as `#/$defs/name`."""
    places = _Places(draft=str(schema.get("$schema")))
    _find(schema, _BASE, place, places)
    moved: dict[str, Any] = _moved(schema, _BASE, places)
    return moved


def _find(value: Any, base: str, pointer: str, places: _Places, *, is_map: bool = False) -> None:
    if isinstance(value, list):
        for number, item in enumerate(value):
            _find(item, base, f"{pointer}/{number}", places)
    if not isinstance(value, dict):
        return
    if not is_map:
        base = places.base_of(value, base)
        places.add(value, base, pointer)
    for key, item in value.items():
        if is_map or key not in _LITERALS:
            step = quote(key.replace("~", "~0").replace("/", "~1"))
            _find(item, base, f"{pointer}/{step}", places, is_map=not is_map and key in _MAPS)


def _moved(value: Any, base: str, places: _Places, *, is_map: bool = False) -> Any:
    if isinstance(value, list):
        return [_moved(item, base, places) for item in value]
    if not isinstance(value, dict):
        return value
    if is_map:
        return {key: _moved(item, base, places) for key, item in value.items()}
    base = places.base_of(value, base)
    moved = {}
    for key, item in value.items():
        if key == "$ref" and isinstance(item, str):
            moved[key] = places.pointer(item, base) or item
        elif key in _LITERALS:
            moved[key] = item
        elif key != "$anchor" and not (key == places.id_key and isinstance(item, str)):
            moved[key] = _moved(item, base, places, is_map=key in _MAPS)
    return moved


def _resolved(reference: str, base: str) -> str:
    return base + reference if reference.startswith("#") else urljoin(base, reference)
