"""
vLLM's structural tags as a Lark grammar: text in which marked parts follow a schema.

Two forms: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and
`{"type": "structural_tag", "format": {...}}`, whose formats contain one another.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.inference.engine.structured_output.schema.document import SchemaError, show
from headrace.inference.engine.structured_output.schema.keywords import PATTERN, is_pattern

T = TypeVar("T")

_TEXT = "/(?s:.*)/"
SchemaText = Callable[[object], str]
"""Converts a client's schema to the text of the enforced schema."""


def structural_tag_lark(text: str, schema_text: SchemaText) -> str:
    """Return a Lark grammar for a tag in JSON; raise `SchemaError` if it is not valid or not supported."""
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("It is not valid JSON.") from error
    writer = _Writer(schema_text)
    if not isinstance(tag, dict):
        raise SchemaError(f"It is {show(tag)}; expected an object.")
    if "structures" in tag:
        start = writer.triggered(_from_structures(tag), "structures")
    elif tag.get("type", "structural_tag") == "structural_tag" and "format" in tag:
        start = writer.format(tag["format"], "format")
    else:
        raise SchemaError('Expected `structures` and `triggers`, or `type` "structural_tag" and `format`.')
    return "\n".join([f"start: {start}", *writer.rules])


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    structures = tag["structures"]
    if not isinstance(structures, list) or not all(isinstance(item, dict) for item in structures):
        raise SchemaError("`structures` is not valid; expected a list of objects with `begin`, `schema` and `end`.")
    tags = [
        {
            "begin": item.get("begin"),
            "content": {"type": "json_schema", "json_schema": item.get("schema", {})},
            "end": item.get("end", ""),
        }
        for item in structures
    ]
    return {"triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Collects the rules of a grammar; each method returns the expression that stands for its format."""

    def __init__(self, schema_text: SchemaText) -> None:
        self.rules: list[str] = []
        self._formats: dict[str, Callable[[dict[str, Any], str], str]] = {
            "const_string": lambda value, place: _literal(value.get("value"), f"{place}.value"),
            "json_schema": lambda value, _: self._rule(f"%json {schema_text(value.get('json_schema'))}"),
            "regex": self._regex,
            "any_text": lambda _, __: self._rule(_TEXT),
            "sequence": lambda value, place: self._group(" ", value, place),
            "or": lambda value, place: self._group(" | ", value, place),
            "tag": lambda value, place: self._tag(value, place, after=""),
            "triggered_tags": self.triggered,
            "tags_with_separator": self._separated,
        }

    def format(self, value: object, place: str) -> str:
        if not isinstance(value, dict):
            raise SchemaError(f"`{place}` is {show(value)}; expected an object with a `type`.")
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in self._formats:
            raise SchemaError(f"`{place}.type` is {show(kind)}; expected one of {', '.join(self._formats)}.")
        return self._formats[kind](value, place)

    def triggered(self, value: dict[str, Any], place: str) -> str:
        """Return free text in which a trigger begins one of the tags."""
        triggers = _items(value.get("triggers"), f"{place}.triggers", str, "strings")
        tags = []
        for index, tag in enumerate(_items(value.get("tags"), f"{place}.tags", dict, "objects")):
            begin = tag.get("begin")
            trigger = next((item for item in triggers if isinstance(begin, str) and begin.startswith(item)), None)
            if trigger is None:
                raise SchemaError(
                    f"`begin` of tag {index} is {show(begin)}; expected one of the triggers at its start."
                )
            lead = self._rule(f"{_TEXT} {_literal(trigger, place)}", options="[lazy]")
            tags.append(f"{lead} {self._tag(tag, f'{place}.tags[{index}]', after=trigger)}")
        once, several = ("", "+") if value.get("at_least_one") else ("?", "*")
        if value.get("stop_after_first"):
            return f"({' | '.join(tags)}){once}"
        return f"({' | '.join(tags)}){several} {self._rule(_TEXT)}"

    def _separated(self, value: dict[str, Any], place: str) -> str:
        tags = [
            self._tag(tag, f"{place}.tags[{index}]", after="")
            for index, tag in enumerate(_items(value.get("tags"), f"{place}.tags", dict, "objects"))
        ]
        tag = self._rule(" | ".join(tags))
        more = "" if value.get("stop_after_first") else f" ({_literal(value.get('separator'), place)} {tag})*"
        return f"({tag}{more}){'' if value.get('at_least_one') else '?'}"

    def _tag(self, tag: dict[str, Any], place: str, *, after: str) -> str:
        """Return the expression for the rest of a tag after `after`, which has been written already."""
        begin, end = tag.get("begin"), tag.get("end", "")
        if not isinstance(begin, str):
            raise SchemaError(f"`{place}.begin` is {show(begin)}; expected a string.")
        ends = end if isinstance(end, list) else [end]
        last = " | ".join(_literal(item, f"{place}.end") for item in ends) or '""'
        content = tag.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            body = self._rule(f"{_TEXT} ({last})", options="[lazy]")
        else:
            body = f"{self.format(content, f'{place}.content')} ({last})"
        return f"{_literal(begin.removeprefix(after), place)} {body}"

    def _group(self, joint: str, value: dict[str, Any], place: str) -> str:
        elements = _items(value.get("elements"), f"{place}.elements", dict, "objects")
        parts = [self.format(element, f"{place}.elements[{index}]") for index, element in enumerate(elements)]
        return f"({joint.join(parts)})"

    def _regex(self, value: dict[str, Any], place: str) -> str:
        from llguidance import regex_to_lark

        pattern = value.get("pattern")
        if not is_pattern(pattern):
            raise SchemaError(f"`{place}.pattern` is {show(pattern)}; expected {PATTERN}.")
        return self._rule(f"/{regex_to_lark(pattern, '')}/")

    def _rule(self, body: str, *, options: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name


def _literal(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise SchemaError(f"`{place}` is {show(value)}; expected a string.")
    return json.dumps(value, ensure_ascii=False)


def _items(value: object, place: str, kind: type[T], expected: str) -> list[T]:
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) and item != "" for item in value):
        raise SchemaError(f"`{place}` is {show(value)}; expected a list of {expected}.")
    return value
