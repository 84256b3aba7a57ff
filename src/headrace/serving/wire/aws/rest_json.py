"""REST-JSON, the protocol of the runtime: parameters in path, headers and query, and a body that is forwarded."""

import functools
import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from botocore.model import OperationModel, Shape

from headrace.serving.wire.aws import json_values, scalars
from headrace.serving.wire.aws.errors import AwsError, malformed
from headrace.serving.wire.aws.http import Headers, HttpRequest, HttpResponse, header_value
from headrace.serving.wire.aws.identify import MAX_FORM_FIELDS
from headrace.serving.wire.aws.rpc import message_name


def parse_input(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    shape = operation.input_shape
    params: dict[str, Any] = {}
    if shape is None:
        return params
    match = _path_pattern(operation.http["requestUri"]).fullmatch(request.path)
    if match is None:
        raise AwsError("UnknownOperationException", "The path does not belong to the operation.", status=404)
    labels = {name: unquote(text, errors="replace") for name, text in match.groupdict().items()}
    query: dict[str, list[str]] = {}
    try:
        for name, text in parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS):
            query.setdefault(name, []).append(text)
    except ValueError as error:
        raise malformed(f"The query string has more than {MAX_FORM_FIELDS} fields.") from error
    for name, member in shape.members.items():
        value = _outside_body(name, member, request, labels, query)
        if value is not None:
            params[name] = value
    params.update(_from_body(shape, request.body))
    return params


def render_output(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    status, headers = _response_head(operation, result, request_id)
    shape = operation.output_shape
    if shape is None:
        return HttpResponse(status, headers, b"")
    payload = shape.serialization.get("payload")
    if payload is None:
        in_body = {name: value for name, value in result.items() if not _location(shape.members.get(name))}
        return HttpResponse(status, headers, json_values.encode(json_values.to_json(in_body, shape)))
    value, member = result.get(payload), shape.members[payload]
    if member.type_name in ("blob", "string"):
        return HttpResponse(status, headers, value.encode() if isinstance(value, str) else bytes(value or b""))
    return HttpResponse(status, headers, json_values.encode(json_values.to_json(value or {}, member)))


def _response_head(operation: OperationModel, result: dict[str, Any], request_id: str) -> tuple[int, Headers]:
    """
    Return status and headers of a successful response.

    Content-Type is the result's if it is a header of the model. Otherwise it is omitted for a forwarded body, and JSON
    for all others.
    """
    shape = operation.output_shape
    headers = [("x-amzn-requestid", request_id)]
    status = int(operation.http.get("responseCode", 200))
    if shape is None:
        return status, tuple(headers)
    for name, member in shape.members.items():
        if result.get(name) is None:
            continue
        if _location(member) == "header":
            text = header_value(scalars.to_text(result[name], member, timestamp_format="rfc822"))
            headers.append((member.serialization.get("name", name).lower(), text))
        elif _location(member) == "statusCode":
            status = int(result[name])
    if "payload" not in shape.serialization:
        headers.append(("content-type", "application/json"))
    return status, tuple(headers)


def render_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    """Render the code in a header, and the message and other members of the error's shape in the body."""
    name = message_name(operation, error.code)
    headers = (
        ("content-type", "application/json"),
        ("x-amzn-requestid", request_id),
        ("x-amzn-errortype", header_value(error.code)),
    )
    return HttpResponse(error.http_status, headers, json_values.encode({name: error.message, **error.members}))


@functools.cache
def _path_pattern(template: str) -> re.Pattern[str]:
    """Compile a template such as `/endpoints/{EndpointName}/invocations`; `{Key+}` also matches slashes."""
    parts = re.split(r"\{(\w+)(\+?)\}", template.partition("?")[0])
    pattern = re.escape(parts[0])
    for name, greedy, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        pattern += f"(?P<{name}>{'.+' if greedy else '[^/]+'}){re.escape(literal)}"
    return re.compile(pattern + "/?")


def _outside_body(
    name: str, member: Shape, request: HttpRequest, labels: dict[str, str], query: dict[str, list[str]]
) -> Any:
    """Return the value of a member outside the body; None if it was not sent, or is in the body."""
    location = _location(member)
    sent_as = member.serialization.get("name", name)
    where = json_values.member_path("", name)
    if location == "uri":
        return scalars.from_text(labels[sent_as], member, where) if sent_as in labels else None
    if location == "header":
        text = request.headers.get(sent_as.lower())
        return None if text is None else scalars.from_text(text.strip(), member, where)
    if location == "querystring" and sent_as in query:
        if member.type_name == "list":
            return [scalars.from_text(text, member.member, where) for text in query[sent_as]]
        return scalars.from_text(query[sent_as][-1], member, where)
    return None


def _from_body(shape: Shape, body: bytes) -> dict[str, Any]:
    payload = shape.serialization.get("payload")
    if payload is not None and shape.members[payload].type_name in ("blob", "string"):
        is_required = payload in shape.required_members
        return {payload: body} if body or is_required else {}
    target = shape.members[payload] if payload else shape
    value = json_values.decode(body)
    read: dict[str, Any] = json_values.from_json({} if value is None else value, target)
    if payload:
        return {payload: read}
    return {name: item for name, item in read.items() if not _location(shape.members[name])}


def _location(member: Shape | None) -> str | None:
    location: str | None = member.serialization.get("location") if member is not None else None
    return location
