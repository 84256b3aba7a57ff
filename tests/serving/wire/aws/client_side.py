"""botocore as a client: it sends our calls and parses our responses."""

import io
from datetime import UTC, datetime
from urllib.parse import urlencode

from botocore.awsrequest import HeadersDict
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.http import HttpRequest

PROTOCOLS = {
    "application-autoscaling": "json",
    "cloudwatch": "json",
    "iam": "query",
    "logs": "json",
    "sagemaker": "json",
    "sagemaker-runtime": "rest-json",
    "sts": "query",
}


def request_of(service, name, params, protocol=None):
    """The HTTP request for a call, not signed."""
    operation = services.operation(service, name)
    serializer = create_serializer(protocol or PROTOCOLS[service], include_validation=False)
    made = serializer.serialize_to_request(as_client_sees(params, operation.input_shape), operation)
    body = made["body"]
    return HttpRequest(
        method=made["method"],
        path=made["url_path"],
        query=urlencode(made["query_string"] or {}, doseq=True),
        headers={key.lower(): str(value) for key, value in made["headers"].items()},
        body=urlencode(body).encode() if isinstance(body, dict) else body,
    )


def result_of(service, name, response, protocol=None):
    """The value that boto3 returns for a response, without the metadata."""
    operation = services.operation(service, name)
    body = io.BytesIO(response.body) if operation.has_streaming_output else response.body
    result = parsed(service, response, operation.output_shape, body=body, protocol=protocol)
    result.pop("ResponseMetadata", None)
    return {key: value.read() if isinstance(value, io.BytesIO) else value for key, value in result.items()}


def error_of(protocol, response):
    """Code and message as boto3 reads them from an error."""
    parser = create_parser(protocol)
    facts = {
        "status_code": response.status,
        "headers": HeadersDict(dict(response.headers)),
        "body": response.body,
    }
    error = parser.parse(facts, None)
    return error["Error"]["Code"], error["Error"]["Message"]


def parsed(service, response, shape, *, body=None, protocol=None):
    """botocore's parse of a response by a shape."""
    facts = {
        "status_code": response.status,
        "headers": HeadersDict(dict(response.headers)),
        "body": response.body if body is None else body,
        "context": {"operation_name": "test"},
    }
    return create_parser(protocol or PROTOCOLS[service]).parse(facts, shape)


def as_client_sees(value, shape):
    """Our values as boto3 returns them: timestamps are datetimes."""
    if shape is None:
        return {}
    kind = shape.type_name
    if kind == "structure":
        return {name: as_client_sees(item, shape.members[name]) for name, item in value.items()}
    if kind == "list":
        return [as_client_sees(item, shape.member) for item in value]
    if kind == "map":
        return {key: as_client_sees(item, shape.value) for key, item in value.items()}
    if kind == "timestamp":
        return datetime.fromtimestamp(value, UTC)
    return value
