"""
Conversion between JSON and values by a shape of a service's model.

Types are checked here, with the texts of AWS's `SerializationException`; `validation` checks constraints. Members that
are unknown to the model are omitted, as on AWS, because newer clients may send them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from botocore.model import OperationModel, Shape

from headrace.core.errors import PayloadTooLarge
from headrace.serving.wire.aws import scalars
from headrace.serving.wire.aws.errors import malformed, too_many_values
from headrace.serving.wire.framing import without_bom
from headrace.serving.wire.json_size import UNCOUNTED_BYTES, check_json_size

_A: Mapping[str, str] = {
    "boolean": "a Boolean",
    "double": "a Double",
    "float": "a Float",
    "integer": "an Integer",
    "long": "a Long",
    "string": "a String",
}


def decode(body: bytes) -> Any:
    """
    Decode a JSON body; an empty one is an empty object.

    Raises:
        AwsError: the body is not JSON, or has too many values.
    """
    body = without_bom(body)
    if not body.strip():
        return {}
    try:
        if len(body) > UNCOUNTED_BYTES:
            check_json_size(body)
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"The request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise malformed("The request body is nested too deep.") from error
    except PayloadTooLarge as error:
        raise too_many_values(error.message) from error


def encode(value: object) -> bytes:
    """Encode compact JSON; characters that UTF-8 cannot encode become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(value))


def from_json(value: Any, shape: Shape, where: str = "") -> Any:
    """
    Convert a decoded JSON value, not null, to a value of a shape; `where` is the path of the member, for errors.

    Raises:
        AwsError: the value has another type.
    """
    reader = _READERS.get(shape.type_name)
    if reader is not None:
        return reader(value, shape, where)
    if not isinstance(value, bool if shape.type_name == "boolean" else str):
        raise _wrong(value, shape, where)
    return value


def params_from_json(value: Any, operation: OperationModel) -> dict[str, Any]:
    """Convert a decoded body to the parameters of a call. Raises `AwsError`: a value has another type."""
    if operation.input_shape is None:
        return {}
    params: dict[str, Any] = from_json({} if value is None else value, operation.input_shape)
    return params


def to_json(value: Any, shape: Shape) -> Any:
    """Convert a value of a shape to JSON; members that are unknown to the shape are omitted."""
    return to_plain(value, shape, _scalar_to_json)


def to_plain(value: Any, shape: Shape, scalar: Callable[[Any, Shape], Any]) -> Any:
    """Convert a value of a shape to dicts, lists and what `scalar` returns; unknown members are omitted."""
    kind = shape.type_name
    if kind == "structure":
        if shape.is_document_type:
            return value
        return {
            member.serialization.get("name", name): to_plain(value[name], member, scalar)
            for name, member in shape.members.items()
            if value.get(name) is not None
        }
    if kind == "list":
        return [None if item is None else to_plain(item, shape.member, scalar) for item in value]
    if kind == "map":
        return {key: to_plain(item, shape.value, scalar) for key, item in value.items() if item is not None}
    return scalar(value, shape)


def member_path(where: str, name: str) -> str:
    """Return the path of a structure's member in AWS's format: `productionVariants.1.member.variantName`."""
    own = name[:1].lower() + name[1:]
    return f"{where}.{own}" if where else own


def _scalar_to_json(value: Any, shape: Shape) -> Any:
    kind = shape.type_name
    if kind == "timestamp":
        return scalars.from_moment(value, shape.serialization.get("timestampFormat", "unixTimestamp"))
    if kind == "blob":
        return scalars.blob_text(value)
    if kind in ("float", "double") and not math.isfinite(value):
        return scalars.float_text(float(value))
    return value


def encodable(value: Any) -> Any:
    """Return values with question marks for characters that UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value


def _read_structure(value: Any, shape: Shape, where: str) -> Any:
    if shape.is_document_type:
        return value
    if not isinstance(value, dict):
        raise _wrong(value, shape, where)
    read = {}
    for name, member in shape.members.items():
        item = value.get(member.serialization.get("name", name))
        if item is not None:
            read[name] = from_json(item, member, member_path(where, name))
    if shape.is_tagged_union and len(read) > 1:
        raise malformed(f"Only one of {', '.join(read)} may be set (at '{where}').")
    return read


def _read_list(value: Any, shape: Shape, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, shape, where)
    member = shape.member
    return [
        None if item is None else from_json(item, member, f"{where}.{number}.member")
        for number, item in enumerate(value, 1)
    ]


def _read_map(value: Any, shape: Shape, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, shape, where)
    member = shape.value
    return {
        key: None if item is None else from_json(item, member, f"{where}.{key}.member") for key, item in value.items()
    }


def _read_integer(value: Any, shape: Shape, where: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, shape, where)
    return scalars.in_range(value, shape.type_name, where)


def _read_float(value: Any, shape: Shape, where: str) -> float:
    if isinstance(value, str) and (special := scalars.special_float(value)) is not None:
        return special
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, shape, where)
    try:
        return float(value)
    except OverflowError as error:
        raise malformed(f"NUMBER_VALUE is too large for {_A[shape.type_name]} (at '{where}').") from error


def _read_timestamp(value: Any, shape: Shape, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong(value, shape, where)
    return scalars.moment(value, where)


def _read_blob(value: Any, shape: Shape, where: str) -> bytes:
    if isinstance(value, bytes):  # from CBOR, which needs no base64
        return value
    if not isinstance(value, str):
        raise _wrong(value, shape, where)
    return scalars.blob(value, where)


_READERS: Mapping[str, Callable[[Any, Shape, str], Any]] = {
    "blob": _read_blob,
    "double": _read_float,
    "float": _read_float,
    "integer": _read_integer,
    "list": _read_list,
    "long": _read_integer,
    "map": _read_map,
    "structure": _read_structure,
    "timestamp": _read_timestamp,
}


def _token(value: Any) -> str:
    """Return the name of a value's type in Java's JSON parser, which AWS's texts use."""
    if isinstance(value, bool):
        return "TRUE_VALUE" if value else "FALSE_VALUE"
    return "STRING_VALUE" if isinstance(value, str | bytes) else "NUMBER_VALUE"


def _wrong(value: Any, shape: Shape, where: str) -> Exception:
    """Return the error for a value of another type, in the words of AWS."""
    at = f" (at '{where}')" if where else ""
    if isinstance(value, dict | list):
        kind = "structure or map" if isinstance(value, dict) else "list"
        return malformed(f"Start of {kind} found where not expected{at}.")
    if shape.type_name in ("structure", "list", "map"):
        return malformed(f"{_token(value)} found where a structure, map or list was expected{at}.")
    expected = _A.get(shape.type_name, f"a {shape.type_name.capitalize()}")
    return malformed(f"{_token(value)} can not be converted to {expected}{at}.")
