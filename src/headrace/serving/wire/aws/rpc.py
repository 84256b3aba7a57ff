"""
AWS JSON 1.0 and 1.1, and Smithy's RPC v2 with CBOR.

JSON: `POST /` with `X-Amz-Target: <prefix>.<Operation>`. CBOR: `POST /service/<prefix>/operation/<Operation>` with
`smithy-protocol: rpc-v2-cbor`, which responses repeat for clients to accept them.

A service that has moved here from the query protocol (CloudWatch) has two names for an error: that of the shape, which
is in `__type`, and the old code, which a header repeats, so that programs that compare codes keep working.
Source: Smithy, "awsQueryCompatible trait".

RPC v2 uses only tag 1 of CBOR, seconds since 1970. All other tags are refused, because decoding them does work
(compiling an expression, raising to a power) that an unauthenticated client must not trigger. Decoded values have the
types of JSON, except for blobs, so that `json_values.from_json` can convert them by shape.
"""

import io
from types import MappingProxyType
from typing import Any

import cbor2
from botocore.model import OperationModel, Shape

from headrace.serving.wire.aws import json_values, scalars
from headrace.serving.wire.aws.errors import AwsError, malformed, too_many_values
from headrace.serving.wire.aws.http import Headers, HttpRequest, HttpResponse, header_value
from headrace.serving.wire.json_size import MAX_CONTAINERS, MAX_VALUES

_CBOR = ("content-type", "application/cbor")
_RPC_V2 = ("smithy-protocol", "rpc-v2-cbor")


def parse_json(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(json_values.decode(request.body), operation)


def parse_cbor(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(decode_cbor(request.body), operation)


def render_json(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    """Render a result; without an output shape (deletes) the body is empty."""
    shape = operation.output_shape
    body = b"" if shape is None else json_values.encode(json_values.to_json(result, shape))
    return HttpResponse(200, (_json_type(operation), ("x-amzn-requestid", request_id)), body)


def render_cbor(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    """Render a result; without an output shape there is no body and no content type."""
    shape, headers = operation.output_shape, (_RPC_V2, ("x-amzn-requestid", request_id))
    if shape is None:
        return HttpResponse(200, headers, b"")
    return HttpResponse(200, (_CBOR, *headers), _dump_cbor(json_values.to_plain(result, shape, _scalar_to_cbor)))


def render_json_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    """Render `{"__type": code, "message": ...}`."""
    fields = _error_fields(error, operation)
    headers = (
        _json_type(operation),
        ("x-amzn-requestid", request_id),
        ("x-amzn-errortype", header_value(str(fields["__type"]))),
        *_query_error(error, operation),
    )
    return HttpResponse(error.http_status, headers, json_values.encode(fields))


def render_cbor_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    headers = (_CBOR, _RPC_V2, ("x-amzn-requestid", request_id), *_query_error(error, operation))
    return HttpResponse(error.http_status, headers, _dump_cbor(_error_fields(error, operation)))


def message_name(operation: OperationModel | None, code: str) -> str:
    """Return `message` or `Message`: SDKs read both, but fill an exception's members by the shape's name."""
    shape = operation.service_model.shape_for_error_code(code) if operation else None
    return next((name for name in shape.members if name.lower() == "message"), "message") if shape else "message"


def _json_type(operation: OperationModel | None) -> tuple[str, str]:
    version = operation.metadata.get("jsonVersion", "1.1") if operation else "1.1"
    return "content-type", f"application/x-amz-json-{version}"


def _error_fields(error: AwsError, operation: OperationModel | None) -> dict[str, Any]:
    kind = error.code
    if operation is not None and _is_query_compatible(operation):
        # Two shapes may share a code: that of the operation comes first.
        own = next((shape for shape in operation.error_shapes if shape.error_code == kind), None)
        shape = own or operation.service_model.shape_for_error_code(kind)
        kind = kind if shape is None else str(shape.name)
    return {"__type": kind, message_name(operation, error.code): error.message, **error.members}


def _query_error(error: AwsError, operation: OperationModel | None) -> Headers:
    """Return the header `x-amzn-query-error: <code>;<blame>` for services that send it."""
    if operation is None or not _is_query_compatible(operation):
        return ()
    blame = "Receiver" if error.http_status >= 500 else "Sender"
    return (("x-amzn-query-error", f"{header_value(error.code).replace(';', ' ')};{blame}"),)


def _is_query_compatible(operation: OperationModel) -> bool:
    return "awsQueryCompatible" in operation.service_model.metadata


_MAX_DEPTH = 64
_EPOCH_TAG = 1
_UNCOUNTED_BYTES = 16 * 1024
"""Shorter bodies are decoded at once; an empty list is one byte, and decoding it takes a microsecond."""
_SLICE_BYTES = 1024
_MOST_INFO = 23
"""The largest argument that is a part of the first byte of an item; 24 to 27 say how many bytes follow."""
_INDEFINITE = 31
_BYTES, _TEXT, _ARRAY, _MAP = range(2, 6)


def _refuse(*_: Any) -> Any:
    raise ValueError("Only tag 1 (seconds since 1970) is supported.")


def _as_number(value: Any, *_: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("Tag 1 must be followed by a number.")  # noqa: TRY004 -- handled like any other wrong byte
    return value


_BUILT_IN_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_TAG_DECODERS = MappingProxyType(dict.fromkeys(_BUILT_IN_TAGS, _refuse) | {_EPOCH_TAG: _as_number})


def decode_cbor(body: bytes) -> Any:
    """Decode a body; an empty one is an empty structure. Raises `AwsError`: no such CBOR, or too many values."""
    if not body:
        return {}
    if len(body) > _UNCOUNTED_BYTES:
        _check_size(body)
    try:
        value = cbor2.load(
            _Slices(body),
            read_size=_SLICE_BYTES,
            semantic_decoders=_TAG_DECODERS,
            tag_hook=_refuse,
            max_depth=_MAX_DEPTH,
        )
    except (cbor2.CBORDecodeError, RecursionError) as error:
        raise malformed(f"The request body is not valid CBOR: {error.__cause__ or error}.") from error
    return _plain(value)


class _Slices(io.BytesIO):
    """
    A body that the decoder reads in slices, by a method in Python.

    The decoder holds the GIL between such calls: 49,000 empty lists at once are 10 ms.
    """

    def read(self, num_bytes: int | None = -1, /) -> bytes:
        """Return the next bytes; another thread may take the GIL meanwhile."""
        return super().read(num_bytes)


def _dump_cbor(value: Any) -> bytes:
    """Encode plain values; characters that UTF-8 cannot encode become question marks."""
    try:
        return cbor2.dumps(value)
    except UnicodeEncodeError:
        return cbor2.dumps(json_values.encodable(value))


def _check_size(body: bytes) -> None:
    """
    Count the values before they are decoded, which holds the GIL: 4 million empty lists took 3 s. Accepts any bytes.

    Raises:
        AwsError: there are too many.
    """
    position = values = containers = 0
    while position < len(body):
        kind, info = body[position] >> 5, body[position] & 31
        position += 1
        argument = info
        if _MOST_INFO < info < _INDEFINITE:
            width = 1 << (info - _MOST_INFO - 1)
            argument = int.from_bytes(body[position : position + width])
            position += width
        if kind in (_BYTES, _TEXT) and info != _INDEFINITE:
            position += argument
        values += 1
        containers += kind in (_ARRAY, _MAP)
        if values > MAX_VALUES or containers > MAX_CONTAINERS:
            raise too_many_values(
                f"The request body has more than {MAX_VALUES} values or {MAX_CONTAINERS} maps and lists. Send less."
            )


def _plain(value: Any) -> Any:
    """Return plain values: `undefined` becomes null, keys must be text, and values of JSON's types or bytes."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise malformed("A map in the request body has a key that is not a text.")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or value is cbor2.undefined:
        return None
    if isinstance(value, (str, bytes, bool, int, float)):
        return value
    raise malformed("The request body has an unknown simple value of CBOR.")


def _scalar_to_cbor(value: Any, shape: Shape) -> Any:
    kind = shape.type_name
    if kind == "timestamp":
        return cbor2.CBORTag(_EPOCH_TAG, scalars.from_moment(value, "unixTimestamp"))
    if kind == "blob":
        return value.encode() if isinstance(value, str) else bytes(value)
    return float(value) if kind in ("float", "double") else value
