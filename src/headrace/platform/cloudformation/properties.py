"""
Properties of templates as members of operations, by botocore's shapes, and how two versions of them differ.

A property has the name of the operation's member, but for the case of its first letter. Templates write numbers,
booleans and documents in several ways: the member's type decides.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.model import Shape

from headrace.platform.cloudformation.calls import S3
from headrace.platform.cloudformation.template.functions import UNKNOWN
from headrace.platform.cloudformation.types import Part, TypeRow
from headrace.platform.state.records import Json
from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.errors import AwsError

_PLACE: Final = re.compile(r"\{([^{}]+)\}")
_TRUE, _FALSE = ("true", "True"), ("false", "False")


class Unfilled(Exception):
    """A template names a value that is not known yet."""


def property_error(message: str) -> AwsError:
    return AwsError("ValidationError", message)


def fill(template: Any, scope: Mapping[str, Any]) -> Any:
    """
    Return a template with the values of a scope; `{name}` alone is the value itself, `{list.0.name}` one inside it.

    Raises `Unfilled`.
    """
    if isinstance(template, dict):
        return {fill(key, scope): fill(item, scope) for key, item in template.items()}
    if isinstance(template, list):
        return [fill(item, scope) for item in template]
    if not isinstance(template, str):
        return template

    def value(path: str) -> Any:
        found: Any = scope
        try:
            for name in path.split("."):
                found = found[int(name) if name.isdecimal() else name]
        except (LookupError, TypeError):
            raise Unfilled(path) from None
        return found

    whole = _PLACE.fullmatch(template)
    return value(whole[1]) if whole is not None else _PLACE.sub(lambda match: str(value(match[1])), template)


def input_shape(row: TypeRow, operation: str) -> Shape | None:
    """Return the parameters of an operation; None for S3, whose model is not read."""
    return None if row.service in ("", S3) else services.operation(row.service, operation).input_shape


def member_of(shape: Shape, name: str) -> str | None:
    """Return the member of a structure that a property stands for."""
    lower = name[:1].lower() + name[1:]
    return next((member for member in (name, lower) if member in shape.members), None)


def adapt(value: Any, shape: Shape, where: str = "#") -> Any:
    """Return a property as a value of a shape. Raises `AwsError`: it has another form."""
    kind = shape.type_name
    if value == UNKNOWN or (kind == "structure" and shape.is_document_type):
        return value
    if kind == "structure" and isinstance(value, dict):
        members = {}
        for name, item in value.items():
            member = member_of(shape, name)
            if member is None:
                raise property_error(f"{where}: extraneous key [{name}] is not permitted")
            members[member] = adapt(item, shape.members[member], f"{where}/{name}")
        return members
    if kind == "list" and isinstance(value, list):
        return [adapt(item, shape.member, f"{where}/{number}") for number, item in enumerate(value)]
    if kind == "map" and isinstance(value, list):  # tags of services that have a map of them
        value = {item["Key"]: item["Value"] for item in value if isinstance(item, dict) and {*item} == {"Key", "Value"}}
    if kind == "map" and isinstance(value, dict):
        return {key: adapt(item, shape.value, f"{where}/{key}") for key, item in value.items()}
    if kind not in ("structure", "list", "map"):
        return _adapt_scalar(value, kind, where)
    raise property_error(f"{where}: expected type: {kind}, found: {type(value).__name__}")


def _adapt_scalar(value: Any, kind: str, where: str) -> Any:
    if kind in ("string", "blob"):
        if isinstance(value, dict | list):
            return json.dumps(value)
        return str(value).lower() if isinstance(value, bool) else str(value)
    try:
        if kind in ("integer", "long"):
            number = float(value)
            if number.is_integer():
                return int(value) if isinstance(value, str) and value.lstrip("+-").isdecimal() else int(number)
        elif kind in ("float", "double"):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    if kind == "boolean" and (isinstance(value, bool) or value in (*_TRUE, *_FALSE)):
        return value if isinstance(value, bool) else value in _TRUE
    if kind == "timestamp":
        return value
    raise property_error(f"{where}: expected type: {kind.capitalize()}, found: {type(value).__name__}")


def expand(row: TypeRow, properties: Json) -> Json:
    """Return properties with defaults, and with those that a property like ScalingTargetId has in one text."""
    expanded = {**row.defaults, **properties}
    for name, parts in row.expanded.items():
        value = expanded.pop(name, None)
        if value == UNKNOWN:
            expanded |= dict.fromkeys(parts, UNKNOWN)
        elif value is not None:
            texts = str(value).split("|")
            if len(texts) != len(parts):
                raise property_error(f"#/{name}: expected {'|'.join(parts)}, found: {value}")
            expanded |= dict(zip(parts, texts, strict=True))
    return expanded


def check_names(row: TypeRow, properties: Json) -> None:
    """Refuse properties that the type does not have, and values of another type. Raises `AwsError`."""
    shapes = [shape for name in (row.create, *row.update) if name and (shape := input_shape(row, name)) is not None]
    for name, value in properties.items():
        if name in (*row.kept, row.name, *row.parts) or _place(name) in row.identity.values():
            continue
        member = row.renamed.get(name, name)
        found = [(shape, own) for shape in shapes if (own := member_of(shape, member)) is not None]
        if not found:
            raise property_error(f"#: extraneous key [{name}] is not permitted. Headrace does not support it.")
        shape, own = found[0]
        adapt(value, shape.members[own], f"#/{name}")


def params_of(
    row: TypeRow, operation: str, scope: Mapping[str, Any], properties: Json, *, is_create: bool = False
) -> Json:
    """Return the parameters of an operation on a resource: its identity, its properties, and what the table adds."""
    shape = input_shape(row, operation)
    added = fill(row.with_.get(operation, {}), scope)
    if shape is None:
        return {row.renamed.get(row.name, row.name): scope[row.renamed.get(row.name, row.name)], **added}
    params: Json = {}
    is_change = operation in (row.create, *row.update)
    for name, value in properties.items() if is_change else ():
        is_separate = name in row.parts and not (is_create and row.parts[name].created)
        member = member_of(shape, row.renamed.get(name, name))
        if member is not None and not is_separate and name not in row.kept:
            params[member] = adapt(value, shape.members[member], f"#/{name}")
    for name in _identifying(row):
        member = member_of(shape, name)
        if member is not None and member not in params and (value := scope.get(member, scope.get(name))) is not None:
            params[member] = value
    for name, value in added.items():
        params[name] = adapt(value, shape.members[name], f"#/{name}")
    return params


def _identifying(row: TypeRow) -> Iterator[str]:
    yield from row.identity
    if row.name:
        yield row.renamed.get(row.name, row.name)


def part_calls(row: TypeRow, name: str, scope: Mapping[str, Any], properties: Json) -> dict[str, tuple[Json, Json]]:
    """Return for each item of a part, by its key, the parameters that put it and those that delete it."""
    part, value = row.parts[name], properties.get(name)
    items = value if isinstance(value, list) and part.key else [] if value is None else [value]
    calls = {}
    for item in items:
        key = item.get(part.key, "") if isinstance(item, dict) else item if part.key else ""
        own = {**scope, "item": item, "key": key}
        fields = item if isinstance(item, dict) and not part.put_with else {part.key: item} if part.key else {}
        put = _part_params(row, part, part.put, {**own, **fields}, {**fields, **fill(part.put_with, own)})
        keyed = {part.key: key} if part.key and not part.delete_with else {}
        delete = _part_params(row, part, part.delete, own, {**keyed, **fill(part.delete_with, own)})
        calls[json.dumps(key, sort_keys=True)] = put, delete
    return calls


def _part_params(row: TypeRow, part: Part, operation: str, scope: Mapping[str, Any], given: Json) -> Json:
    shape = input_shape(row, operation)
    if shape is None:
        return given
    members = {name: member_of(shape, name) or name for name in _identifying(row)}
    identity = {member: value for name, member in members.items() if (value := scope.get(member, scope.get(name)))}
    params: Json = {}
    for name, value in {**identity, **given}.items():
        member = member_of(shape, name)
        if member is not None:
            params[member] = adapt(value, shape.members[member], f"#/{name}")
        elif name in given and name != part.key:
            raise property_error(f"#: extraneous key [{name}] is not permitted")
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The changed properties of a resource."""

    changed: tuple[str, ...]
    """Names of properties."""
    replacing: tuple[str, ...]
    """Those of them whose change replaces the resource."""
    is_conditional: bool = False
    """A replacing property has a value that is not known yet, and may stay the same."""


def difference(row: TypeRow, old: Json, new: Json) -> Difference:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    updated = {member for name in row.update for member in getattr(input_shape(row, name), "members", ())}
    rendered = str([row.with_.get(name) for name in row.update])
    replacing = tuple(
        name
        for name in names
        if name in row.replaced
        or name == row.name
        or _place(name) in row.identity.values()
        or not (name in row.parts or name in row.kept or _is_updated(row, name, updated, rendered))
    )
    known = [name for name in replacing if UNKNOWN not in json.dumps(new.get(name))]
    return Difference(changed=tuple(names), replacing=replacing, is_conditional=bool(replacing) and not known)


def _is_updated(row: TypeRow, name: str, members: set[str], rendered: str) -> bool:
    member = row.renamed.get(name, name)
    return member in members or member[:1].lower() + member[1:] in members or _place(name) in rendered


def _place(name: str) -> str:
    """Return how a template of the table names a property."""
    return f"{{{name}}}"
