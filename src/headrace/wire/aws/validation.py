"""
Validation of the constraints in a service's model, with AWS's error texts.

botocore's validator checks only required, type and `min`; a server must also check `max`, `pattern` and `enum`, which
are in the model: "1 validation error detected: Value '0' at 'productionVariants.1.member.initialInstanceCount' failed
to satisfy constraint: Member must have value greater than or equal to 1".
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from botocore.model import OperationModel, Shape

from headrace.wire.aws import patterns
from headrace.wire.aws.errors import constraint_error
from headrace.wire.aws.json_values import member_path

Items = list[tuple[Any, Any]]
"""Numbers or keys, with their items."""

_MAX_LISTED = 20
_MAX_SHOWN_CHARACTERS = 1024
_TOO_LONG_TO_MATCH = 2
"""Multiple of the allowed length beyond which text is refused without matching: some patterns take cubic time."""
_SCALARS = frozenset({"string", "integer", "long", "float", "double", "boolean", "timestamp", "blob", "character"})
_NUMBERS = frozenset({"integer", "long", "float", "double"})


def check(operation: OperationModel, params: dict[str, Any], *, free_shapes: AbstractSet[str] = frozenset()) -> None:
    """
    Validate the parameters of a call against its model.

    The length of a forwarded body (`Body` of the runtime) is checked by its receiver. `free_shapes` are names of scalar
    shapes whose constraints are not checked, such as `Url` for local paths.

    Raises:
        AwsError: one message counts all violations and describes the first twenty.
    """
    shape = operation.input_shape
    if shape is None:
        return
    payload = shape.serialization.get("payload")
    free = free_shapes | {shape.members[payload].name} if payload else free_shapes
    messages = list(violations(params, shape, free_shapes=free))
    if messages:
        listed = "; ".join(messages[:_MAX_LISTED])
        plural = "" if len(messages) == 1 else "s"
        message = f"{len(messages)} validation error{plural} detected: {listed}"
        raise constraint_error(operation.service_model.service_name, message)


def violations(
    value: Any, shape: Shape, where: str = "", *, free_shapes: AbstractSet[str] = frozenset()
) -> Iterator[str]:
    """Yield the violations of a value, by the model's names and of the right types; `where` is its path."""
    kind = shape.type_name
    if kind == "structure":
        yield from _in_structure(value, shape, where, free_shapes)
    elif kind == "list":
        yield from _in_container(value, shape, where, free_shapes, [*enumerate(value, 1)], shape.member, "Member")
    elif kind == "map":
        yield from _in_container(value, shape, where, free_shapes, [*value.items()], shape.value, "Map value")
    else:
        for broken in _broken(value, shape, free_shapes):
            yield _violation(value, shape, where, broken)


def _in_structure(value: Any, shape: Shape, where: str, free: AbstractSet[str]) -> Iterator[str]:
    if shape.is_document_type:
        return
    members = shape.members
    for name in shape.required_members:
        if name not in value:
            yield _violation(None, members[name], member_path(where, name), "Member must not be null")
    for name, item in value.items():
        yield from violations(item, members[name], member_path(where, name), free_shapes=free)


def _in_container(
    value: Any, shape: Shape, where: str, free: AbstractSet[str], items: Items, member: Shape, kind: str
) -> Iterator[str]:
    """Yield the violations of a list or map; those of its scalars are one violation of the whole, as on AWS."""
    for broken in _broken_size(len(value), shape):
        yield _violation(value, shape, where, broken)
    if shape.type_name == "map" and any(True for key, _ in items for _ in _broken(key, shape.key, free)):
        yield _violation(value, shape, where, f"Map keys must satisfy constraint: [{_all_constraints(shape.key)}]")
    if any(item is None for _, item in items):
        yield _violation(value, shape, where, f"{kind} must satisfy constraint: [Member must not be null]")
    elif member.type_name not in _SCALARS:
        for key, item in items:
            yield from violations(item, member, f"{where}.{key}.member", free_shapes=free)
    elif any(True for _, item in items for _ in _broken(item, member, free)):
        yield _violation(value, shape, where, f"{kind} must satisfy constraint: [{_all_constraints(member)}]")


def _broken(value: Any, shape: Shape, free: AbstractSet[str]) -> Iterator[str]:
    if shape.name in free:
        return
    if shape.type_name in _NUMBERS:
        yield from _broken_size(value, shape)
    elif shape.type_name in ("string", "character", "blob"):
        yield from _broken_size(len(value), shape)
        metadata = shape.metadata
        is_matched = "pattern" in metadata and len(value) <= _TOO_LONG_TO_MATCH * metadata.get("max", len(value))
        pattern = patterns.compiled(metadata["pattern"]) if is_matched else None
        if pattern and not pattern.fullmatch(value):
            yield _constraints(shape)["pattern"]
        if metadata.get("enum") and value not in metadata["enum"]:
            yield _constraints(shape)["enum"]


def _broken_size(size: float, shape: Shape) -> Iterator[str]:
    metadata = shape.metadata
    if "max" in metadata and size > metadata["max"]:
        yield _constraints(shape)["max"]
    if "min" in metadata and size < metadata["min"]:
        yield _constraints(shape)["min"]


def _all_constraints(shape: Shape) -> str:
    """Return all constraints on a member of a list or map, as AWS lists them."""
    return ", ".join(text for name, text in _constraints(shape).items() if shape.metadata.get(name) not in (None, []))


def _constraints(shape: Shape) -> dict[str, str]:
    """Return the texts of all constraints that a shape may have, by their names in the model."""
    metadata = shape.metadata
    quantity = "value" if shape.type_name in _NUMBERS else "length"
    return {
        "max": f"Member must have {quantity} less than or equal to {metadata.get('max')}",
        "min": f"Member must have {quantity} greater than or equal to {metadata.get('min')}",
        "pattern": f"Member must satisfy regular expression pattern: {metadata.get('pattern')}",
        "enum": f"Member must satisfy enum value set: [{', '.join(metadata.get('enum', ()))}]",
    }


def _violation(value: Any, shape: Shape, where: str, broken: str) -> str:
    shown = "null" if value is None else f"'{_shown(value, shape)}'"
    return f"Value {shown} at '{where}' failed to satisfy constraint: {broken}"


def _shown(value: Any, shape: Shape) -> str:
    """Format a value as Java does; secrets and the contents of maps (environments) are not repeated."""
    if shape.metadata.get("sensitive"):
        return "*** Sensitive Data Redacted ***"
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key}=..." for key in value) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(_shown(item, shape.member) for item in value[:_MAX_LISTED]) + "]"
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."
