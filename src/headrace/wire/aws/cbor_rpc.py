"""Smithy's RPC v2 with CBOR: `POST /service/<prefix>/operation/<Operation>`, `smithy-protocol: rpc-v2-cbor`."""

from typing import Any

from botocore.model import OperationModel

from headrace.wire.aws import cbor_values, json_values
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest, HttpResponse
from headrace.wire.aws.json_rpc import message_name
from headrace.wire.aws.query_errors import query_error_headers, type_of

_CONTENT_TYPE = ("content-type", "application/cbor")


def parse_input(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(cbor_values.decode(request.body), operation)


def render_output(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    """Render a result; without an output shape there is no body and no content type."""
    shape = operation.output_shape
    if shape is None:
        return HttpResponse(200, _headers(request_id), b"")
    return HttpResponse(200, (_CONTENT_TYPE, *_headers(request_id)), cbor_values.encode(result, shape))


def render_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    """Render `__type` and the message, under the name that the error's shape gives it."""
    fields = {
        "__type": type_of(error.code, operation),
        message_name(operation, error.code): error.message,
        **error.members,
    }
    headers = (_CONTENT_TYPE, *_headers(request_id), *query_error_headers(error, operation))
    return HttpResponse(error.http_status, headers, cbor_values.dumps(fields))


def _headers(request_id: str) -> tuple[tuple[str, str], ...]:
    """Return the headers, which must name the protocol for clients to accept the response."""
    return (("smithy-protocol", "rpc-v2-cbor"), ("x-amzn-requestid", request_id))
