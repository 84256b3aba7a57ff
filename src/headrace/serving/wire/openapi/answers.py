"""
The schemas of responses and events, from the interfaces of `answers.ts`.

The renderers write dicts and byte templates for speed; `tests/serving/server/test_openapi.py` holds their output
against these schemas, in which no unnamed member is allowed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace.serving.wire.framing import to_json

Schema = dict[str, object]
REFERENCE = "#/components/schemas/{name}"

_ALIAS = re.compile(r"^type (\w+) = (.+)$", re.MULTILINE)
_INTERFACE = re.compile(
    r"^/\*\* (?P<about>.+) \*/\ninterface (?P<name>\w+)(?: extends (?P<base>\w+))? \{(?P<members>[^}]*)\}",
    re.MULTILINE,
)
_MEMBER = re.compile(r"(?P<name>\w+)(?P<is_optional>\??): (?P<type>[^;\n]*[^;\s])")
_CONTINUED = re.compile(r"\|\n\s+")
_OR = re.compile(r" \| (?![^(]*\))")
"""Between the members of a union, not inside of parentheses."""
_RECORD = "Record<string, "
_BASIC: Mapping[str, Schema] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "null")},
    "unknown": {"description": "Any JSON value."},
}


@dataclass(frozen=True, slots=True)
class AnswerTypes:
    """The declarations of a file of interfaces."""

    aliases: Mapping[str, str]
    interfaces: Mapping[str, re.Match[str]]

    def schema(self, kind: str) -> Schema:
        """Return the schema of a type; interfaces are referred to."""
        options = _OR.split(self.aliases.get(kind, kind))
        literals = [option.strip('"') for option in options if option.startswith('"')]
        schemas: list[Schema] = [{"enum": literals}] if literals else []
        schemas += [self._single(option) for option in options if not option.startswith('"')]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def components(self, kinds: Iterable[str]) -> dict[str, Schema]:
        """Return the schemas of all interfaces that the types refer to, directly or not."""
        found: dict[str, Schema] = {}
        pending = [self.schema(kind) for kind in kinds]
        while pending:
            for name in re.findall(rb'"#/components/schemas/(\w+)"', to_json(pending.pop())):
                if name.decode() not in found:
                    found[name.decode()] = self._interface(self.interfaces[name.decode()])
                    pending.append(found[name.decode()])
        return found

    def _single(self, kind: str) -> Schema:
        if kind in self.aliases:
            return self.schema(kind)
        if kind.endswith("[]"):
            return {"type": "array", "items": self.schema(kind[:-2].removeprefix("(").removesuffix(")"))}
        if kind.startswith(_RECORD):
            return {"type": "object", "additionalProperties": self.schema(kind[len(_RECORD) : -1])}
        return _BASIC.get(kind) or {"$ref": REFERENCE.format(name=kind)}

    def _interface(self, declared: re.Match[str]) -> Schema:
        texts = [declared["members"]]
        if declared["base"] is not None:
            texts.insert(0, self.interfaces[declared["base"]]["members"])
        members = [member for text in texts for member in _MEMBER.finditer(text)]
        return {
            "title": declared["name"],
            "description": declared["about"],
            "type": "object",
            "properties": {member["name"]: self.schema(member["type"]) for member in members},
            "required": [member["name"] for member in members if not member["is_optional"]],
        }


@cache
def answer_types() -> AnswerTypes:
    """Return the declarations of `answers.ts`."""
    text = _CONTINUED.sub("| ", Path(__file__).with_name("answers.ts").read_text(encoding="utf-8"))
    return AnswerTypes(
        aliases=dict(_ALIAS.findall(text)),
        interfaces={found["name"]: found for found in _INTERFACE.finditer(text)},
    )
