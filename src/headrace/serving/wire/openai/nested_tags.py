"""
Calls in which each key and each item of an array has tags of its own (MiniMax M3).

A mark that no value contains stands before every tag. The function's schema gives a value without inner tags its type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.answer_format.call_forms import NESTED_MARK
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.openai.literals import Malformed
from headrace.serving.wire.openai.raw_values import Parameters, branches_of, member_schema, types_of, value_json
from headrace.serving.wire.openai.tool_calls import Call

_CALL: Final = ('invoke name="', '"')
_ITEM: Final = "item"
_MAX_DEPTH: Final = 64
"""Tags within tags."""


@dataclass(slots=True)
class _Element:
    """A tag with what is inside of it."""

    tag: str
    text: str = ""
    children: list["_Element"] = field(default_factory=list)


def nested_calls(text: str, parameters: Parameters) -> list[Call]:
    """Return the calls between the markers of a block; raises `Malformed` if the text is in another form."""
    calls = [_call(element, parameters) for element in _elements(text)]
    if not calls:
        raise Malformed
    return calls


def _elements(text: str) -> list[_Element]:
    before, *pieces = text.split(NESTED_MARK)
    stack = [_Element("", before)]
    for piece in pieces:
        is_end = piece.startswith("</")
        tag, bracket, rest = piece[1 + is_end :].partition(">")
        if not (piece.startswith("<") and bracket) or len(stack) > _MAX_DEPTH:
            raise Malformed
        if not is_end:
            stack[-1].children.append(_Element(tag, rest))
            stack.append(stack[-1].children[-1])
        elif tag not in {(open_tag := stack.pop().tag), open_tag.partition(" ")[0]} or rest.strip():
            raise Malformed
    if len(stack) != 1 or stack[0].text.strip():
        raise Malformed
    return stack[0].children


def _call(element: _Element, parameters: Parameters) -> Call:
    before, after = _CALL
    if not (element.tag.startswith(before) and element.tag.endswith(after)) or element.text.strip():
        raise Malformed
    name = element.tag.removeprefix(before).removesuffix(after)
    schema = parameters.get(name, {})
    return Call(name, _object(element.children, schema, schema))


def _value(element: _Element, schema: Any, root: Mapping[str, object]) -> str:
    types = types_of(schema, root)
    if not element.children and not element.text.strip() and types in ({"array"}, {"object"}):
        return "[]" if "array" in types else "{}"
    if not element.children:
        return value_json(element.text, schema, root)
    if element.text.strip():
        raise Malformed
    is_array = types != {"object"} and all(child.tag == _ITEM for child in element.children)
    if not is_array:
        return _object(element.children, schema, root)
    inner = next((found["items"] for found in branches_of(schema, root) if "items" in found), None)
    return f"[{', '.join(_value(child, inner, root) for child in element.children)}]"


def _object(children: Sequence[_Element], schema: Any, root: Mapping[str, object]) -> str:
    branches = branches_of(schema, root)
    values: dict[str, str] = {}
    for child in children:
        if child.tag in values:
            raise Malformed
        found = (member_schema(branch, child.tag) or branch.get("additionalProperties") for branch in branches)
        values[child.tag] = _value(child, next(filter(None, found), None), root)
    return f"{{{', '.join(f'{to_json(name).decode()}: {value}' for name, value in values.items())}}}"
