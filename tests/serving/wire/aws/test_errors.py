"""Errors in the form of each protocol, as botocore reads them."""

import pytest

from headrace.serving.wire.aws import calls, errors, services
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import AwsCall
from headrace.serving.wire.aws.identify import Target
from tests.serving.wire.aws.client_side import error_of, parsed

PROTOCOLS = ("json", "rest-json", "smithy-rpc-v2-cbor", "query", "rest-xml")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("message", ["Could not find.", 'é <&> "東京"\r\n\t🙂', ""])
def test_code_and_message_arrive(protocol, message):
    response = calls.render_error(protocol, AwsError("SomeError", message), "the-id")

    assert response.status == 400
    assert error_of(protocol, response) == ("SomeError", message or _empty(protocol))


def _empty(protocol):
    return None if protocol in ("query", "rest-xml") else ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_any_message_is_rendered_as_a_valid_response(protocol):
    response = calls.render_error(protocol, AwsError("Some\r\nError", "a\x00b\ud800c\x1b"), "the-id")

    code, message = error_of(protocol, response)
    assert code.startswith("Some")
    assert message.startswith("a")
    assert all(value.isprintable() for _, value in response.headers)


def test_a_model_error_contains_its_members():
    members = {"OriginalStatusCode": 400, "OriginalMessage": "bad", "LogStreamArn": "arn"}
    call = AwsCall("sagemaker-runtime", "InvokeEndpoint", "rest-json")

    response = calls.render_error(call, AwsError("ModelError", "Received", members=members), "the-id")

    assert response.status == 424
    assert error_of("rest-json", response) == ("ModelError", "Received")
    shape = services.model("sagemaker-runtime").shape_for_error_code("ModelError")
    assert parsed("sagemaker-runtime", response, shape) == {"Message": "Received", **members}


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.validation_error("m"), "ValidationException", 400),
        (errors.throttled("m"), "ThrottlingException", 429),
        (AwsError("ModelNotReadyException", "m"), "ModelNotReadyException", 429),
        (AwsError("ServiceUnavailable", "m"), "ServiceUnavailable", 503),
        (AwsError("InternalFailure", "m"), "InternalFailure", 500),
        (AwsError("ResourceInUse", "m", status=409), "ResourceInUse", 409),
    ],
)
def test_a_code_determines_the_status(error, code, status):
    assert (error.code, error.http_status) == (code, status)


@pytest.mark.parametrize(
    ("code", "is_retried"), [("ThrottlingException", True), ("InternalFailure", True), ("ValidationException", False)]
)
def test_an_aws_error_is_retryable_if_sdks_retry_it(code, is_retried):
    assert AwsError(code, "m").retryable is is_retried


def test_statuses_agree_with_the_models():
    for service in services.MODELLED:
        for shape in services.model(service).error_shapes:
            status = shape.metadata.get("error", {}).get("httpStatusCode")
            if service == "sagemaker-runtime" and status:
                assert AwsError(shape.error_code, "m").http_status == status


def test_a_missing_resource_has_the_text_that_sdks_look_for():
    error = errors.not_found("endpoint", "arn:aws:sagemaker:us-east-1:123456789012:endpoint/e")

    assert error.code == "ValidationException"
    assert error.message == 'Could not find endpoint "arn:aws:sagemaker:us-east-1:123456789012:endpoint/e".'


def test_the_message_has_the_name_that_the_errors_shape_gives_it():
    call = AwsCall("sagemaker", "CreateModel", "json")

    response = calls.render_error(call, AwsError("ResourceInUse", "taken"), "the-id")
    other = calls.render_error(call, AwsError("ValidationException", "wrong"), "the-id")

    assert response.body == b'{"__type":"ResourceInUse","Message":"taken"}'
    assert other.body == b'{"__type":"ValidationException","message":"wrong"}'
    assert dict(other.headers)["x-amzn-errortype"] == "ValidationException"


def test_an_error_of_sts_contains_sender_or_receiver():
    target = Target(service="sts", protocol="query", operation="GetCallerIdentity")

    ours = calls.render_error(target, AwsError("InternalFailure", "m"), "the-id")
    theirs = calls.render_error(target, AwsError("AccessDenied", "m", status=403), "the-id")

    assert b"<Type>Receiver</Type>" in ours.body
    assert b"<Type>Sender</Type>" in theirs.body
    assert b'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"' in theirs.body
    assert b"<RequestId>the-id</RequestId>" in theirs.body


def test_s3_errors_have_their_own_format():
    response = calls.render_error("rest-xml", AwsError("AccessDenied", "Access Denied", status=403), "the-id")

    assert response.body == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message><RequestId>the-id</RequestId></Error>"
    )
    assert dict(response.headers) == {"content-type": "application/xml", "x-amz-request-id": "the-id"}


@pytest.mark.parametrize(
    ("target", "code", "status"),
    [
        (
            Target(service="DynamoDB_20120810", protocol="json", operation="ListTables"),
            "UnknownOperationException",
            400,
        ),
        (Target(service="sagemaker", protocol="json"), "UnknownOperationException", 400),
    ],
)
def test_errors_of_unknown_services_can_be_rendered(target, code, status):
    response = calls.render_error(target, errors.unknown_operation(target.service, target.operation), "the-id")

    assert response.status == status
    assert error_of("json", response)[0] == code


def test_the_representation_shows_code_message_and_status():
    assert repr(AwsError("Code", "text")) == "AwsError('Code', 'text', status=400)"


@pytest.mark.parametrize("protocol", ["json", "smithy-rpc-v2-cbor"])
def test_a_service_that_had_the_query_protocol_sends_both_names_of_an_error(protocol):
    call = AwsCall("cloudwatch", "DeleteAlarms", protocol)

    response = calls.render_error(call, AwsError("ResourceNotFound", "none", status=404), "the-id")
    strange = calls.render_error(call, AwsError("Strange", "m", status=500), "the-id")
    value = calls.render_error(call, AwsError("InvalidParameterValue", "m"), "the-id")

    assert dict(response.headers)["x-amzn-query-error"] == "ResourceNotFound;Sender"
    assert b"DashboardNotFoundError" not in response.body  # which has the same code, but is not of this operation
    assert dict(strange.headers)["x-amzn-query-error"] == "Strange;Receiver"
    assert b"InvalidParameterValueException" in value.body
    assert error_of(protocol, value) == ("InvalidParameterValue", "m")


def test_other_services_have_one_name_for_an_error():
    response = calls.render_error(AwsCall("sagemaker", "CreateModel", "json"), AwsError("ResourceInUse", "m"), "the-id")

    assert "x-amzn-query-error" not in dict(response.headers)
