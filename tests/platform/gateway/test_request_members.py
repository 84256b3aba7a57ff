"""The headers of runtime requests: what no endpoint has is refused by name, and text is read in every encoding."""

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from .async_parts import OUTPUT, MemoryObjects
from .conftest import Running, accepting
from .routes import component, route, variant


def refusal(call: Any, **members: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**{"EndpointName": "ep", "Body": b"{}", **members})
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    message: str = caught.value.response["Error"]["Message"]
    return message


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        (
            "TargetModel",
            "a.tar.gz",
            "Endpoint ep is not a multi-model endpoint and does not support target model header.",
        ),
        ("TargetContainerHostname", "second", "Endpoint ep is not a multi-container endpoint and does not support"),
        ("EnableExplanations", "`true`", "Endpoint ep does not have an explainer and does not support"),
        ("EnableExplanations", "[0]>`0.8`", "Endpoint ep does not have an explainer and does not support"),
        ("TargetVariant", "other", "Variant other not found"),
        ("InferenceComponentName", "adapter", "Inference Component adapter of account 123456789012 not found"),
    ],
)
def test_what_the_endpoint_does_not_have_is_refused_by_name(gateway, member: str, value: str, message: str) -> None:
    worker = gateway.serve()
    calls = [gateway.boto.invoke_endpoint]
    if member in ("TargetContainerHostname", "TargetVariant", "InferenceComponentName"):
        calls.append(gateway.boto.invoke_endpoint_with_response_stream)
    for call in calls:
        assert message in refusal(call, **{member: value})
    assert worker.asked == []


def test_an_unknown_endpoint_is_reported_before_its_lack_of_models(gateway) -> None:
    message = refusal(gateway.boto.invoke_endpoint, EndpointName="none", TargetModel="a.tar.gz")
    assert message.startswith("Endpoint none of account")


def test_members_are_refused_on_endpoints_of_components_too(gateway) -> None:
    worker = gateway.worker()
    gateway.put(route(variant("AllTraffic"), components=[component("a", [worker.url])]))
    message = refusal(gateway.boto.invoke_endpoint, InferenceComponentName="a", TargetModel="m")
    assert "is not a multi-model endpoint" in message


@pytest.mark.parametrize(
    "member", ["TargetVariant", "TargetModel", "CustomAttributes", "PrefixAwareId", "SessionId", "Accept"]
)
def test_other_members_than_locations_are_ascii(gateway, member: str) -> None:
    worker = gateway.serve()
    found = refusal(gateway.boto.invoke_endpoint, **{member: "é日"})
    assert "1 validation error detected: Value '" in found
    assert f"at '{member[0].lower()}{member[1:]}' failed to satisfy constraint" in found
    assert worker.asked == []


@pytest.fixture
def asynchronous(tmp_path, objects: MemoryObjects) -> Iterator[Running]:
    with accepting(tmp_path, objects) as made:
        yield made


@pytest.mark.parametrize(
    ("header", "uri"),
    [
        ("s3://in/é.json".encode(), "s3://in/é.json"),
        ("s3://in/日本/a b+c.json".encode(), "s3://in/日本/a b+c.json"),
        ("s3://in/é.json".encode("latin-1"), "s3://in/é.json"),
        ("s3://in/e\u0301.json".encode(), "s3://in/e\u0301.json"),
        (b"s3://in/a%20b%2520c+d.json", "s3://in/a%20b%2520c+d.json"),
        ("https://in.s3.us-east-1.amazonaws.com/é.json".encode(), "https://in.s3.us-east-1.amazonaws.com/é.json"),
    ],
)
def test_an_input_location_is_read_in_utf_8_or_latin_1(
    asynchronous: Running, objects: MemoryObjects, header: bytes, uri: str
) -> None:
    objects.objects[uri] = (b"input", "application/json")
    worker = asynchronous.serve(async_output=OUTPUT)
    where = urlsplit(asynchronous.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port)
    try:
        connection.putrequest("POST", "/endpoints/ep/async-invocations")
        connection.putheader("X-Amzn-SageMaker-InputLocation", header)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:13]) == (202, b'{"InferenceId')
    finally:
        connection.close()
    asynchronous.until(lambda: objects.puts, "the outcome")
    assert [asked.body for asked in worker.asked] == [b"input"]
