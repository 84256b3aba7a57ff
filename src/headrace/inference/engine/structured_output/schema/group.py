"""
The combined properties of all schemas that apply to the same value.

A schema, its `allOf`, its `$ref` and the branches of its `anyOf` and `oneOf` apply to the same value: whether an object
is closed, and which properties it allows, can only be decided for all of them together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.inference.engine.structured_output.schema.document import Member, SchemaDocument, SchemaError
from headrace.inference.engine.structured_output.schema.keywords import check_keywords

LISTS = ("anyOf", "oneOf")
_OBJECT_KEYWORDS = ("properties", "patternProperties", "required", "propertyNames")


@dataclass(frozen=True, slots=True)
class Group:
    """The combined properties of a schema and all that applies to the same value."""

    names: tuple[str, ...] = ()
    """Names of all declared properties, in order."""
    patterns: tuple[str, ...] = ()
    declares: bool = False
    """True if a schema declares properties by name, even an empty list."""
    is_explicit: bool = False
    """True if the schema itself, without the branches of its lists, decides about other properties."""
    has_lists: bool = False
    says_type: bool = False


def union(*groups: Group) -> Group:
    """Return the union of several groups for one value."""
    return Group(
        names=tuple(dict.fromkeys(name for group in groups for name in group.names)),
        patterns=tuple(dict.fromkeys(pattern for group in groups for pattern in group.patterns)),
        declares=any(group.declares for group in groups),
        is_explicit=any(group.is_explicit for group in groups),
        has_lists=any(group.has_lists for group in groups),
        says_type=any(group.says_type for group in groups),
    )


class GroupReader:
    """Computes groups, once per schema."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._groups: dict[str, Group] = {}
        self._open: set[str] = set()

    def conjuncts(self, member: Member) -> Iterator[Member]:
        """Yield the schemas that apply in addition to the own keywords: `$ref`, then `allOf`."""
        schema = member.schema
        if isinstance(schema, dict):
            if "$ref" in schema:
                yield self._document.resolve(schema["$ref"], member.place)
            yield from branches(member, "allOf")

    def whole(self, member: Member) -> Group:
        """
        Return the group of a schema with all its parts.

        Raises:
            SchemaError: The schema refers to itself for the same value.
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
        """Return the group of the branches of `anyOf` or `oneOf`; a branch is explicit only for itself."""
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
    """Return the group of the schema's own keywords."""
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
    """Return whether other schemas apply to the same value."""
    return any(keyword in schema for keyword in ("$ref", "allOf", *LISTS))
