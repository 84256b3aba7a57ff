"""
Entry point of the AWS protocols: parses a request into an `AwsCall`, and renders its result or error as a response.

    try:
        call = calls.parse(request)
        response = calls.render(call, handler(call.params), request_id)
    except AwsError as error:
        response = calls.render_error(identify(request), error, request_id)
"""

from collections.abc import Set as AbstractSet
from typing import Any

from botocore.model import OperationModel

from headrace.serving.wire.aws import query, rest_json, rpc, services, validation
from headrace.serving.wire.aws.errors import AwsError, malformed, unknown_operation, unknown_service
from headrace.serving.wire.aws.http import AwsCall, HttpRequest, HttpResponse, Protocol
from headrace.serving.wire.aws.identify import UNKNOWN, Target, identify

_PROTOCOLS = {
    "json": (rpc.parse_json, rpc.render_json, rpc.render_json_error),
    "rest-json": (rest_json.parse_input, rest_json.render_output, rest_json.render_error),
    "smithy-rpc-v2-cbor": (rpc.parse_cbor, rpc.render_cbor, rpc.render_cbor_error),
    "query": (query.parse_input, query.render_output, query.render_error),
}
"""The functions that parse a call, render its result, and render an error."""
_BY_GET = ("Describe", "Get", "List", "ConfirmSubscription")
"""Name prefixes of operations that a GET may call: those that only read, and one with a secret token in its link."""


def parse(request: HttpRequest, *, free_shapes: AbstractSet[str] = frozenset()) -> AwsCall:
    """
    Parse a request of any service but S3, with its whole body, and validate it against the service's model.

    The constraints of `free_shapes`, scalars such as `RoleArn`, are not checked: Headrace accepts more than AWS.

    Raises:
        AwsError: the only exception, for any bytes.
    """
    target = identify(request)
    operation = _known(target)
    if operation is None or target.protocol not in operation.service_model.metadata["protocols"]:
        raise _unknown(target)
    _check_method(target, operation, request)
    try:
        params = _PROTOCOLS[target.protocol][0](operation, request)
        validation.check(operation, params, free_shapes=free_shapes)
    except RecursionError as error:
        raise malformed("The request is nested too deep.") from error
    return AwsCall(target.service, operation.name, target.protocol, params)


def render(call: AwsCall, result: dict[str, Any], request_id: str = "") -> HttpResponse:
    """
    Render the result of an operation: members by the model's names, timestamps as seconds since 1970 or datetimes.

    Members that are None or unknown to the model are omitted.
    """
    return _PROTOCOLS[call.protocol][1](services.operation(call.service, call.operation), result, request_id)


def render_error(spoken: AwsCall | Target | Protocol, error: AwsError, request_id: str = "") -> HttpResponse:
    """Render an error in the protocol of a call, or of a request that could not be parsed."""
    protocol = spoken if isinstance(spoken, str) else spoken.protocol
    if protocol == "rest-xml":
        return query.render_s3_error(error, request_id=request_id)
    operation = None if isinstance(spoken, str) else _known(spoken)
    return _PROTOCOLS[protocol][2](error, operation=operation, request_id=request_id)


def _check_method(target: Target, operation: OperationModel, request: HttpRequest) -> None:
    """
    Refuse a change by GET, whose `Action` is in the query string: an image in any web page could trigger it.

    A browser names the page that sends a POST (`Origin`), but not the page that loads an image.
    """
    if target.protocol == "query" and request.method != "POST" and not operation.name.startswith(_BY_GET):
        message = f"{operation.name} is not accepted by {request.method}; expected POST, which every SDK sends."
        raise AwsError("MethodNotAllowed", message, status=405)


def _unknown(target: Target) -> AwsError:
    """Return the error for an operation that no model has, or whose service is not served."""
    is_query = target.protocol == "query"
    status = 404 if target.protocol == "rest-json" else 400
    if target.service not in {*services.MODELLED, UNKNOWN}:
        code = "InvalidAction" if is_query else "UnknownOperationException"
        return unknown_service(target.service, target.operation, code=code, status=status)
    if is_query:
        name = target.operation or "None"
        return AwsError("InvalidAction", f"Could not find operation {name} for service {target.service}.")
    return unknown_operation(target.service, target.operation, status=status)


def _known(spoken: AwsCall | Target) -> OperationModel | None:
    name = spoken.operation
    if name is None or name not in services.operation_names(spoken.service):
        return None
    return services.operation(spoken.service, name)
