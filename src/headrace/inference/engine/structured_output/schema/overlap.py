"""
Proofs that no value matches two branches of `oneOf`.

`oneOf` forbids values that match two of its branches. It is enforced as `anyOf` if no value generated for one branch
matches another: since objects are closed, a required property that the other branch does not know is enough.
"""

from itertools import permutations
from typing import Any

from headrace.inference.engine.structured_output.schema.document import Member, SchemaError
from headrace.inference.engine.structured_output.schema.group import GroupReader
from headrace.inference.engine.structured_output.schema.keywords import IMPLIED_TYPES, TYPES

_MAX_BRANCHES = 64
"""Limit of branches: every pair is compared."""
_MAX_PARTS = 50
_MAX_DEPTH = 8
_MAX_COMPARED = 30_000
"""Limit of comparisons for one `oneOf`: schemas that refer to each other could take hours."""


def check_one_of(members: list[Member], groups: GroupReader, *, has_closed: bool) -> None:
    """
    Check that no value generated for one branch matches another.

    Raises:
        SchemaError: Two branches may overlap.
    """
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
        return {_type_of(value) for value in literals}
    types = schema.get("type")
    if types is None:
        types = [name for name, keywords in IMPLIED_TYPES.items() if any(key in schema for key in keywords)] or TYPES
    return {"number" if name == "integer" else name for name in ([types] if isinstance(types, str) else types)}


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


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
