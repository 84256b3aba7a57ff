"""AWS JSON 1.0 and 1.1: `POST /` with `X-Amz-Target: <prefix>.<Operation>`, JSON in, JSON out."""

from typing import Any

from botocore.model import OperationModel

from headrace.wire.aws import json_values
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest, HttpResponse, header_value
from headrace.wire.aws.query_errors import query_error_headers, type_of


def parse_input(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    return json_values.params_from_json(json_values.decode(request.body), operation)


def render_output(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    """Render a result; without an output shape (deletes) the body is empty."""
    shape = operation.output_shape
    body = b"" if shape is None else json_values.encode(json_values.to_json(result, shape))
    return HttpResponse(200, _headers(_content_type(operation), request_id), body)


def render_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    """Render `{"__type": code, "message": ...}`, with the message under the name that the error's shape gives it."""
    fields = {
        "__type": type_of(error.code, operation),
        message_name(operation, error.code): error.message,
        **error.members,
    }
    content_type = _content_type(operation) if operation else "application/x-amz-json-1.1"
    error_type = ("x-amzn-errortype", header_value(str(fields["__type"])))
    headers = (*_headers(content_type, request_id), error_type, *query_error_headers(error, operation))
    return HttpResponse(error.http_status, headers, json_values.encode(fields))


def message_name(operation: OperationModel | None, code: str) -> str:
    """Return `message` or `Message`: SDKs read both, but fill an exception's members by the shape's name."""
    shape = operation.service_model.shape_for_error_code(code) if operation else None
    return next((name for name in shape.members if name.lower() == "message"), "message") if shape else "message"


def _content_type(operation: OperationModel) -> str:
    return f"application/x-amz-json-{operation.metadata.get('jsonVersion', '1.1')}"


def _headers(content_type: str, request_id: str) -> tuple[tuple[str, str], ...]:
    return (("content-type", content_type), ("x-amzn-requestid", request_id))
