"""
The combined properties of all schemas that apply to the same value, and proofs that two schemas exclude each other.

A schema, its `allOf`, its `$ref` and the branches of its `anyOf` and `oneOf` apply to the same value: whether an object
is closed, and which properties it allows, can only be decided for all of them together.

`oneOf` forbids values that match two of its branches. It is enforced as `anyOf` if no value generated for one branch
matches another: since objects are closed, a required property that the other branch does not know is enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from headrace.inference.engine.structured_output.schema.document import Member, SchemaDocument, SchemaError
from headrace.inference.engine.structured_output.schema.keywords import TYPES, check_keywords, implied_types

LISTS = ("anyOf", "oneOf")
_OBJECT_KEYWORDS = ("properties", "patternProperties", "required", "propertyNames")
_TYPE_NAMES: dict[type, str] = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
_MAX_BRANCHES = 64
"""Limit of branches: every pair is compared."""
_MAX_PARTS = 50
_MAX_DEPTH = 8
_MAX_COMPARED = 30_000
"""Limit of comparisons for one `oneOf`: schemas that refer to each other could take hours."""


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
        """Return the group of a schema with all its parts; raise `SchemaError` if it is one of its own parts."""
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
        return replace(union(*groups), is_explicit=False, has_lists=bool(groups))


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
    has_literal_object = any(isinstance(value, dict) for value in _own_literals(schema) or ())
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


def check_one_of(members: list[Member], groups: GroupReader, *, has_closed: bool) -> None:
    """Raise `SchemaError` if a value generated for one branch may match another."""
    overlap = _Overlap(groups)
    if len(members) > _MAX_BRANCHES:
        raise SchemaError(f"`oneOf` at {_list_place(members[0])} has more than {_MAX_BRANCHES} branches. Use `anyOf`.")
    for written, other in permutations(members, 2):
        if not overlap.excludes(written, other, has_closed=has_closed):
            first, second = sorted((written.place, other.place))
            raise SchemaError(
                f"`oneOf` at {_list_place(written)} is not supported where a value may fit two of "
                f"its branches, such as {first} and {second}. Use `anyOf`, or give each branch a required property "
                "with its own `const`."
            )


def _list_place(branch: Member) -> str:
    return branch.place.rpartition("/oneOf/")[0]


class _Overlap:
    """The comparisons for one `oneOf`, which are counted."""

    def __init__(self, groups: GroupReader) -> None:
        self._groups = groups
        self._num_compared = 0

    def excludes(self, written: Member, other: Member, *, has_closed: bool, depth: int = 0) -> bool:
        """Return whether no value generated for one schema matches the other."""
        self._num_compared += 1
        if self._num_compared > _MAX_COMPARED:
            raise SchemaError(
                f"`oneOf` in it has branches that take more than {_MAX_COMPARED} comparisons to tell apart, such as "
                f"{written.place} and {other.place}. Use `anyOf`."
            )
        if depth > _MAX_DEPTH:
            return False
        group = self._groups.whole(written)
        self._groups.whole(other)
        parts, other_parts = self._parts(written), self._parts(other)
        if not _types(parts) & _types(other_parts):
            return True
        literals, other_literals = _literals(parts), _literals(other_parts)
        if literals is not None and other_literals is not None:
            return not any(value == kept and type(value) is type(kept) for value in literals for kept in other_literals)
        if _types(parts) & _types(other_parts) != {"object"}:
            return False
        required, other_required = _required(parts), _required(other_parts)
        says_closed = any(part.schema.get("additionalProperties") is False for part in parts)
        is_closed = says_closed or (has_closed and not group.is_explicit)
        if is_closed and not group.patterns and other_required - set(group.names):
            return True
        return any(
            self.excludes(mine, its, has_closed=True, depth=depth + 1)
            for name in required
            for mine in _properties(parts, name)
            for its in _properties(other_parts, name)
        )

    def _parts(self, member: Member) -> list[Member]:
        """Return the schema and its conjuncts, without branches."""
        parts: list[Member] = []
        pending = [member]
        while pending and len(parts) < _MAX_PARTS:
            part = pending.pop()
            if isinstance(part.schema, dict):
                parts.append(part)
                pending += self._groups.conjuncts(part)
        return parts


def _types(parts: list[Member]) -> set[str]:
    """Return the types that all parts allow; integers count as numbers."""
    allowed = {*TYPES} - {"integer"}
    for part in parts:
        allowed &= _part_types(part.schema)
    return allowed


def _part_types(schema: dict[str, Any]) -> set[str]:
    literals = _own_literals(schema)
    if literals is not None:
        return {_TYPE_NAMES.get(type(value), "number") for value in literals}
    types = schema.get("type") or implied_types(schema) or TYPES
    return {"number" if name == "integer" else name for name in ([types] if isinstance(types, str) else types)}


def _own_literals(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _literals(parts: list[Member]) -> list[Any] | None:
    return next((found for part in parts if (found := _own_literals(part.schema)) is not None), None)


def _required(parts: list[Member]) -> set[str]:
    return {name for part in parts for name in part.schema.get("required", ())}


def _properties(parts: list[Member], name: str) -> list[Member]:
    return [part.child("properties", name) for part in parts if name in part.schema.get("properties", {})]
