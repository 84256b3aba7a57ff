"""
What the schemas that apply to one and the same value say together.

A schema, its `allOf`, its `$ref` and the branches of its `anyOf` and `oneOf` all speak of the same value: whether an
object is closed, and which properties it knows, can only be decided for all of them at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.engine.structured_output.schema.document import Member, SchemaDocument, SchemaError
from headrace.engine.structured_output.schema.keywords import check_keywords

LISTS = ("anyOf", "oneOf")
_OBJECT_KEYWORDS = ("properties", "patternProperties", "required", "propertyNames")


@dataclass(frozen=True, slots=True)
class Group:
    """What one schema and everything that applies to the same value say."""

    names: tuple[str, ...] = ()
    """Properties that any of them names, in their order."""
    patterns: tuple[str, ...] = ()
    declares: bool = False
    """Whether any of them says something about properties by name, be it that there are none."""
    is_explicit: bool = False
    """Whether the schema, without the branches of its lists, says itself what becomes of other properties."""
    has_lists: bool = False
    says_type: bool = False


def union(*groups: Group) -> Group:
    """Return what several schemas for one value say together."""
    return Group(
        names=tuple(dict.fromkeys(name for group in groups for name in group.names)),
        patterns=tuple(dict.fromkeys(pattern for group in groups for pattern in group.patterns)),
        declares=any(group.declares for group in groups),
        is_explicit=any(group.is_explicit for group in groups),
        has_lists=any(group.has_lists for group in groups),
        says_type=any(group.says_type for group in groups),
    )


class GroupReader:
    """Reads groups, each schema once."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._groups: dict[str, Group] = {}
        self._open: set[str] = set()

    def conjuncts(self, member: Member) -> Iterator[Member]:
        """Yield the schemas that hold beside the schema's own keywords: `$ref`, then `allOf`."""
        schema = member.schema
        if isinstance(schema, dict):
            if "$ref" in schema:
                yield self._document.resolve(schema["$ref"], member.place)
            yield from branches(member, "allOf")

    def whole(self, member: Member) -> Group:
        """
        Return what a schema says with all that it is made of.

        Raises:
            SchemaError: It refers to itself for the same value.
        """
        found = self._groups.get(member.place)
        if found is None:
            if member.place in self._open:
                raise SchemaError(f"{member.place} refers to itself without a property or an item between.")
            if isinstance(member.schema, dict):
                check_keywords(member.schema, member.place)
            self._open.add(member.place)
            lists = [self.lists(member, keyword) for keyword in LISTS]
            beside = [self.whole(conjunct) for conjunct in self.conjuncts(member)]
            found = union(own(member), *beside, *lists)
            self._open.discard(member.place)
            self._groups[member.place] = found
        return found

    def lists(self, member: Member, keyword: str) -> Group:
        """Return what the branches of `anyOf` or `oneOf` say; each branch is explicit for itself only."""
        groups = [self.whole(branch) for branch in branches(member, keyword)]
        if not groups:
            return Group()
        joined = union(*groups)
        return Group(joined.names, joined.patterns, joined.declares, has_lists=True, says_type=joined.says_type)


def branches(member: Member, keyword: str) -> list[Member]:
    """Return the schemas of a list keyword."""
    found = member.schema.get(keyword, ()) if isinstance(member.schema, dict) else ()
    return [member.child(keyword, index) for index in range(len(found))]


def own(member: Member) -> Group:
    """Return what the schema's own keywords say."""
    schema = member.schema
    if not isinstance(schema, dict):
        return Group()
    properties, patterns, required = (schema.get(key, ()) for key in ("properties", "patternProperties", "required"))
    literals = [schema["const"]] if "const" in schema else schema.get("enum", ())
    has_literal_object = any(isinstance(value, dict) for value in literals)
    return Group(
        names=tuple(dict.fromkeys((*properties, *required))),
        patterns=tuple(patterns),
        declares=any(keyword in schema for keyword in _OBJECT_KEYWORDS),
        is_explicit=has_literal_object or _is_explicit(schema),
        says_type=any(keyword in schema for keyword in ("type", "enum", "const")),
    )


def _is_explicit(schema: dict[str, Any]) -> bool:
    if "additionalProperties" in schema or "propertyNames" in schema:
        return True
    return "unevaluatedProperties" in schema and (
        schema["unevaluatedProperties"] is not False or not is_made_up(schema)
    )


def is_made_up(schema: dict[str, Any]) -> bool:
    """Whether other schemas apply to the same value."""
    return any(keyword in schema for keyword in ("$ref", "allOf", *LISTS))
