"""
Normalisation of a client's JSON schema to the one that is enforced.

The result uses only what llguidance enforces, says `type` and `additionalProperties` wherever they decide, and has no
reference that leaves `#/$defs`. The rules are in docs/structured-output.md. Source for what llguidance does with each
keyword: its docs/json_schema.md and parser/src/json, version 1.9.
"""

import math
from dataclasses import dataclass
from itertools import count
from typing import Any

from headrace.inference.engine.structured_output.schema.document import (
    MAX_SUBSCHEMAS,
    Member,
    Schema,
    SchemaDocument,
    SchemaError,
    show,
)
from headrace.inference.engine.structured_output.schema.group import (
    LISTS,
    Group,
    GroupReader,
    branches,
    check_one_of,
    is_made_up,
    own,
    union,
)
from headrace.inference.engine.structured_output.schema.keywords import (
    FORMAT_PATTERNS,
    IMPLIED_TYPES,
    MAP_NAME_PATTERN,
    NATIVE_FORMATS,
    any_value,
    array_keywords,
    check_keywords,
    implied_types,
    is_pattern,
    number_keywords,
    object_limits,
    step_digits,
)

_MAX_NAMES = 200_000
"""Property names in the result: a closed branch of `anyOf` repeats those of the enclosing schema."""
_MAX_STEPS = 100_000
"""0.2 s to compile; 100 million run for minutes."""
_COMBINING = ("$ref", "allOf", "anyOf")
_BESIDE_REF = (
    *(keyword for keywords in IMPLIED_TYPES.values() for keyword in keywords),
    *("type", "enum", "const", "format", "allOf", *LISTS),
)
"""Keywords beside `$ref` that constrain the value too."""


@dataclass(frozen=True, slots=True)
class _Around:
    """Context of a schema: the other schemas that apply to the same value."""

    names: tuple[str, ...] = ()
    """Property names of other schemas for the same value."""
    patterns: tuple[str, ...] = ()
    closes: bool = True
    """True if this schema must close the object; otherwise another schema does, or the object stays open."""
    has_type: bool = False
    """True if another schema for the same value declares its type."""


_ALONE = _Around()


def normalise_schema(text: str) -> Schema:
    """Return the schema to enforce for a client's JSON; raise `SchemaError` if it is not valid or not supported."""
    try:
        return _Normaliser(SchemaDocument(text)).run()
    except RecursionError as error:
        raise SchemaError("Its references are nested too deeply.") from error


class _Normaliser:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._groups = GroupReader(document)
        self._definitions: dict[str, Schema] = {}
        self._definition_names: dict[tuple[str, _Around], str] = {}
        self._any_name: str | None = None
        self._new_names = map("d{}".format, count(1))
        self._steps: set[int] = set()
        self._num_subschemas = 0
        self._num_names = 0

    def run(self) -> Schema:
        result = self._schema(Member(self._document.root, "#"), _ALONE)
        if result is True or result == {}:
            result = {"$ref": self._any_value()}
        if isinstance(result, dict) and self._definitions:
            result["$defs"] = self._definitions
        return result

    def _schema(self, member: Member, around: _Around) -> Schema:
        schema = {} if member.schema is True else member.schema
        if schema is False:
            return False
        if not isinstance(schema, dict):
            raise SchemaError(f"{member.place} is {show(schema)}; expected a schema.")
        self._count(1, 0)
        check_keywords(schema, member.place)
        member = Member(schema, member.place)
        if "$ref" in schema and not any(keyword in schema for keyword in _BESIDE_REF):
            return self._reference(member, around)
        return self._made_up(member, around)

    def _count(self, num_subschemas: int, num_names: int) -> None:
        self._num_subschemas += num_subschemas
        self._num_names += num_names
        if self._num_subschemas > MAX_SUBSCHEMAS:
            raise SchemaError(f"It has more than {MAX_SUBSCHEMAS} subschemas. Use a smaller schema.")
        if self._num_names > _MAX_NAMES:
            raise SchemaError("It combines too many properties by `anyOf`, `oneOf` and `allOf`. Use a smaller schema.")

    def _reference(self, member: Member, around: _Around) -> Schema:
        target = self._document.resolve(member.schema["$ref"], member.place)
        self._groups.whole(target)  # raises if it refers to itself
        key = (target.place, around)
        name = self._definition_names.get(key)
        if name is None:
            name = next(self._new_names)
            self._definition_names[key] = name
            self._definitions[name] = self._schema(target, around)
        return {"$ref": f"#/$defs/{name}"}

    def _made_up(self, member: Member, around: _Around) -> Schema:
        """Normalise a schema together with all schemas that apply to the same value."""
        schema = member.schema
        mine = own(member)
        conjuncts = [self._groups.whole(conjunct) for conjunct in self._groups.conjuncts(member)]
        lists = {keyword: self._groups.lists(member, keyword) for keyword in LISTS if keyword in schema}
        whole = union(mine, *conjuncts, *lists.values())
        # One schema closes the object: two closed parts of an `allOf` would forbid each other's properties. With lists,
        # each branch closes itself; otherwise the own keywords do, over the names of all parts.
        closes = around.closes and not mine.is_explicit and not any(group.is_explicit for group in conjuncts)
        has_lists = bool(lists) or any(group.has_lists for group in conjuncts)
        result = self._own_keywords(member, closing=whole if closes and not has_lists else None, around=around)
        # Keywords imply a type, unless another schema for the same value says one.
        implied: list[str] = []
        if not (around.has_type or whole.says_type):
            has_format = schema.get("format") in (*FORMAT_PATTERNS, *NATIVE_FORMATS)
            implied = implied_types(schema) or ["string"] * has_format
        if implied:
            result = {"type": implied[0] if len(implied) == 1 else implied, **result}
        # Each part is normalised with the names of all others around it, which a branch that closes itself must allow.
        shared = _Around(around.names, around.patterns, closes, around.has_type or mine.says_type or bool(implied))
        for number, conjunct in enumerate(branches(member, "allOf"), len(conjuncts) - len(schema.get("allOf", ()))):
            others = union(mine, *conjuncts[:number], *conjuncts[number + 1 :], *lists.values())
            child = _beside(shared, others, has_lists=conjuncts[number].has_lists)
            result.setdefault("allOf", []).append(self._schema(conjunct, child))
        if "$ref" in schema:
            child = _beside(shared, union(mine, *conjuncts[1:], *lists.values()), has_lists=conjuncts[0].has_lists)
            result["$ref"] = self._reference(member, child)["$ref"]  # type: ignore[index]
        for keyword in lists:
            others = union(mine, *conjuncts, *(group for other, group in lists.items() if other != keyword))
            self._add_list(result, member, keyword, _beside(shared, others, has_lists=True))
        return _in_order_of(schema, result)

    def _add_list(self, result: dict[str, Any], member: Member, keyword: str, around: _Around) -> None:
        """Add `anyOf`, or `oneOf` as one, which it equals when no value fits two of its branches."""
        members = branches(member, keyword)
        if keyword == "oneOf":
            check_one_of(members, self._groups, has_closed=around.closes)
        options = [self._schema(branch, around) for branch in members]
        if keyword == "oneOf" and "anyOf" in member.schema:
            result.setdefault("allOf", []).append({"anyOf": options})
        else:
            result["anyOf"] = options

    def _own_keywords(self, member: Member, *, closing: Group | None, around: _Around) -> dict[str, Any]:
        """Return the keywords of one schema itself, closed over the properties of `closing`."""
        schema = member.schema
        result = {keyword: schema[keyword] for keyword in ("type", "const", "enum") if keyword in schema}
        for keyword in ("minLength", "maxLength"):
            if keyword in schema:
                result[keyword] = int(schema[keyword])
        if "pattern" in schema:
            result["pattern"] = schema["pattern"]
        if schema.get("format") in NATIVE_FORMATS:
            result["format"] = schema["format"]
        elif (pattern := FORMAT_PATTERNS.get(schema.get("format", ""))) is not None:
            # A value has one pattern: the client's own one moves the format's into `allOf`.
            result |= (
                {"allOf": [{"type": "string", "pattern": pattern}]} if "pattern" in result else {"pattern": pattern}
            )
        self._count_step(member)
        result |= number_keywords(schema, has_type=around.has_type)
        result |= array_keywords(member, self._child, closes=around == _ALONE and not is_made_up(schema))
        self._add_properties(result, member, closing, around)
        return result

    def _count_step(self, member: Member) -> None:
        """Bound all `multipleOf` together: an automaton counts up to the least common multiple of those that meet."""
        if "multipleOf" not in member.schema:
            return
        self._steps.add(step_digits(member.schema["multipleOf"]))
        if math.prod(self._steps) > _MAX_STEPS:
            raise SchemaError(
                f"`multipleOf` at {member.place} is {show(member.schema['multipleOf'])}; the digits of all different "
                f"ones, multiplied, are more than {_MAX_STEPS}. Use `minimum` and `maximum`."
            )

    def _child(self, member: Member, *keys: str | int) -> Schema:
        """Normalise the schema of another value, below."""
        result = self._schema(member.child(*keys), _ALONE)
        return {"$ref": self._any_value()} if result is True or result == {} else result

    def _any_value(self) -> str:
        """Return the reference to a definition of any JSON value."""
        if self._any_name is None:
            self._any_name = next(self._new_names)
            self._definitions[self._any_name] = any_value(f"#/$defs/{self._any_name}")
        return f"#/$defs/{self._any_name}"

    def _add_properties(self, result: dict[str, Any], member: Member, closing: Group | None, around: _Around) -> None:
        schema = member.schema
        properties = {name: self._child(member, "properties", name) for name in schema.get("properties", ())}
        patterns = {
            name: self._child(member, "patternProperties", name) for name in schema.get("patternProperties", ())
        }
        self._count(0, len(properties))
        rest = self._rest(member)
        # A closed object may have the properties of all schemas for the same value: as anything here, since the others
        # describe them. An object for which no schema names any may have all.
        can_be_object = "object" in schema.get("type", "object")
        if closing is not None and can_be_object and (closing.declares or around.names or around.patterns):
            named = dict.fromkeys((*closing.names, *around.names), True)
            properties = {**properties, **{name: True for name in named if name not in properties}}
            patterns = {**patterns, **dict.fromkeys((*closing.patterns, *around.patterns), True), **patterns}
            self._count(0, len(named))
            rest = False
        elif closing is not None and "object" in schema.get("type", ()):
            rest = {"$ref": self._any_value()}
        rest = self._add_property_names(member, properties, patterns, rest)
        # A map: as a pattern of bounded length, so that its names end.
        if rest not in (None, False) and not (properties or patterns) and around == _ALONE and not is_made_up(schema):
            patterns, rest = {MAP_NAME_PATTERN: rest}, False
        if properties or "properties" in schema:
            result["properties"] = properties
        if patterns:
            result["patternProperties"] = patterns
        if rest is not None:
            result["additionalProperties"] = rest
        if schema.get("required"):
            result["required"] = list(dict.fromkeys(schema["required"]))
        result |= object_limits(schema, properties, is_closed=rest is False and not patterns)

    def _rest(self, member: Member) -> Schema | None:
        """Return the schema of unnamed properties, or None if the schema does not declare it."""
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            if keyword in member.schema:
                if keyword == "unevaluatedProperties" and is_made_up(member.schema):
                    if isinstance(member.schema[keyword], dict) and member.schema[keyword]:
                        raise SchemaError(
                            f"`{keyword}` at {member.place} is a schema beside `$ref`, `allOf`, `anyOf` or `oneOf`, "
                            "which is not supported. Use `additionalProperties` in each of them."
                        )
                    return None
                return self._child(member, keyword)
        return None

    def _add_property_names(
        self, member: Member, properties: dict[str, Schema], patterns: dict[str, Schema], rest: Schema | None
    ) -> Schema | None:
        """Convert `propertyNames` to properties or a pattern; return the schema for other names."""
        names = member.schema.get("propertyNames", True)
        if names in (True, {}, {"type": "string"}):
            return rest
        value: Schema = True if rest is None else rest
        given = {key: names[key] for key in names if key not in ("type", "title", "description")} if names else {}
        allowed = given.get("enum", [given.get("const")])
        if list(given) in (["enum"], ["const"]) and isinstance(allowed, list):
            properties.update({name: value for name in allowed if isinstance(name, str) and name not in properties})
        elif list(given) == ["pattern"] and is_pattern(given["pattern"]) and not patterns and not properties:
            patterns[given["pattern"]] = value
        else:
            raise SchemaError(
                f"`propertyNames` at {member.place} is {show(names)}; expected an `enum`, or a `pattern` without "
                "`properties` beside it."
            )
        return False


def _beside(shared: _Around, others: Group, *, has_lists: bool) -> _Around:
    """Return the context of a schema beside others that apply to the same value."""
    has_type = shared.has_type or others.says_type
    if not (shared.closes and has_lists):
        return _Around(closes=False, has_type=has_type)
    return _Around(
        names=tuple(dict.fromkeys((*shared.names, *others.names))),
        patterns=tuple(dict.fromkeys((*shared.patterns, *others.patterns))),
        closes=True,
        has_type=has_type,
    )


def _in_order_of(schema: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Restore the client's order of combining keywords, which decides the order of properties."""
    places = {keyword: index for index, keyword in enumerate(schema)}
    places["anyOf"] = places.get("anyOf", places.get("oneOf", len(places)))
    own_place = places.get("properties", -1)
    return dict(
        sorted(result.items(), key=lambda item: places.get(item[0], own_place) if item[0] in _COMBINING else own_place)
    )
