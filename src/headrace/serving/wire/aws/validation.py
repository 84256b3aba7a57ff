r"""
Validation of the constraints in a service's model, with AWS's error texts.

botocore's validator checks only required, type and `min`; a server must also check `max`, `pattern` and `enum`, which
are in the model: "1 validation error detected: Value '0' at 'productionVariants.1.member.initialInstanceCount' failed
to satisfy constraint: Member must have value greater than or equal to 1".

Patterns are translated from Java's regular expressions to Python's: `\w`, `\d` and `\s` are ASCII only, a value must
match entirely, and `\p{...}` names a Unicode category.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from botocore.model import OperationModel, Shape

from headrace.serving.wire.aws.errors import constraint_error
from headrace.serving.wire.aws.json_values import member_path

_ASCII_CLASSES = {"ASCII": r"\x00-\x7f", "Alnum": "a-zA-Z0-9", "Print": r"\x20-\x7e"}
_REPAIRS = (
    (re.compile(r"\\u10000-\\u10FFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # Java allows only four digits here
    (re.compile(r"\\uD800\\uDC00-\\uDBFF\\uDFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # surrogate pairs
    (re.compile(r"\$\{\d+,\d+\}"), "$"),
    (re.compile(r"\\z"), r"\\Z"),
    (re.compile(r"\\w-_"), r"\\w\\-_"),
    (re.compile(r"\\w-\\/"), r"\\w\\-/"),
    (
        re.compile(r"\(\[-a-z0-9\]\*\[a-z0-9\]\)\{0,39\}\?"),
        "([-a-z0-9]*[a-z0-9])?",
    ),  # avoids backtracking in exponential time, as the next one does
    (re.compile(r"\(\?:\[\._\\-/a-z0-9\*\]\?\[a-z0-9\*\]\+\)\*"), r"(?:[._\\-/]?[a-z0-9*])*"),
)
_ASSIGNED = (range(0x33480), range(0xE0000, 0xE01F0))
"""All characters but those for private use; those in between are unassigned, or letters of a later Unicode."""
_PROPERTY = re.compile(r"\\p\{(?P<name>\w+)\}")


@functools.cache
def compiled(pattern: str) -> re.Pattern[str] | None:
    """
    Compile a pattern for use with `fullmatch`.

    Returns None for a pattern with features of Java only, which is then not checked. The models that the tests read
    have none; a later botocore may have one, and requests must not fail because of it.
    """
    for wrong, right in _REPAIRS:
        pattern = wrong.sub(right, pattern)
    try:
        return re.compile(_with_properties(pattern), re.ASCII)
    except re.error:
        return None


def _with_properties(pattern: str) -> str:
    r"""Replace `\p{L}` by its ranges of characters, in brackets unless it is inside brackets."""
    parts, last = [], 0
    for match in _PROPERTY.finditer(pattern):
        before = pattern[: match.start()]
        ranges = _ASCII_CLASSES.get(match["name"]) or _category(match["name"])
        is_in_brackets = before.rfind("[") > before.rfind("]")
        parts += [pattern[last : match.start()], ranges if is_in_brackets else f"[{ranges}]"]
        last = match.end()
    return "".join([*parts, pattern[last:]])


@functools.cache
def _category(name: str) -> str:
    """Return the characters of a category (`L`, `Zs`) as the inside of brackets. Takes about 30 ms, once."""
    ranges: list[list[int]] = []
    for code in itertools.chain(*_ASSIGNED):
        if not unicodedata.category(chr(code)).startswith(name):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


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
        pattern = compiled(metadata["pattern"]) if is_matched else None
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
