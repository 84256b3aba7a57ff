"""
AWS JSON 1.0 and 1.1, and Smithy's RPC v2 with CBOR.

JSON: `POST /` with `X-Amz-Target: <prefix>.<Operation>`. CBOR: `POST /service/<prefix>/operation/<Operation>` with
`smithy-protocol: rpc-v2-cbor`, which responses repeat for clients to accept them.

A service that has moved here from the query protocol (CloudWatch) has two names for an error: that of the shape, which
is in `__type`, and the old code, which a header repeats, so that programs that compare codes keep working.
Source: Smithy, "awsQueryCompatible trait".
"""

from typing import Any

from botocore.model import OperationModel

from headrace.serving.wire.aws import cbor_values, json_values
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import Headers, HttpRequest, HttpResponse, header_value

_CBOR = ("content-type", "application/cbor")
_RPC_V2 = ("smithy-protocol", "rpc-v2-cbor")


def parse_json(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(json_values.decode(request.body), operation)


def parse_cbor(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(cbor_values.decode(request.body), operation)


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
    return HttpResponse(200, (_CBOR, *headers), cbor_values.encode(result, shape))


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
    """Render `__type` and the message."""
    headers = (_CBOR, _RPC_V2, ("x-amzn-requestid", request_id), *_query_error(error, operation))
    return HttpResponse(error.http_status, headers, cbor_values.dumps(_error_fields(error, operation)))


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
