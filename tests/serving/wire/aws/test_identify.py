"""Identification of the service and operation of a request."""

import pytest
from botocore.loaders import Loader
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.identify import Target, identify

FORM = {"content_type": "application/x-www-form-urlencoded; charset=utf-8"}


def request(method="POST", path="/", query="", body=b"", **headers):
    return HttpRequest(method, path, query, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def scoped(service):
    credential = f"AKIA/20260101/us-east-1/{service}/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0"


S3 = Target(service="s3", protocol="rest-xml")
SERVED = ("sagemaker", "sagemaker-runtime")


def test_services_that_sign_as_sagemaker_are_named_by_their_paths():
    """The table is compared with botocore's models; `/v1/training-sessions` belongs to OpenAI's API by its path."""
    loader, found = Loader(), {}
    for service in loader.list_available_services("service-2"):
        if service.startswith("sagemaker") and service not in SERVED:
            model = loader.load_service_model(service, "service-2")
            if model["metadata"].get("signingName", model["metadata"]["endpointPrefix"]) == "sagemaker":
                uris = (operation["http"]["requestUri"] for operation in model["operations"].values())
                found |= {uri.split("/")[1]: service for uri in uris if not uri.startswith("/v1/")}
    assert len(found) > 8
    for part, service in found.items():
        signed = request("POST", f"/{part}/x", authorization=scoped("sagemaker"))
        assert identify(signed) == Target(service=service, protocol="rest-json")
        assert identify(request("GET", f"/{part}/x", authorization=scoped("s3"))) == S3, "it may be a bucket"


@pytest.mark.parametrize(
    ("request_", "target"),
    [
        (
            request(path="/endpoints/a/invocations"),
            Target(service="sagemaker-runtime", protocol="rest-json", operation="InvokeEndpoint"),
        ),
        (
            request(path="/endpoints/a/invocations-response-stream", authorization=scoped("sagemaker")),
            Target(service="sagemaker-runtime", protocol="rest-json", operation="InvokeEndpointWithResponseStream"),
        ),
        (
            request(path="/endpoints/a%2Fb/async-invocations"),
            Target(service="sagemaker-runtime", protocol="rest-json", operation="InvokeEndpointAsync"),
        ),
        (
            request(path="/endpoints/a/unheard-of", authorization=scoped("sagemaker")),
            Target(service="sagemaker-runtime", protocol="rest-json"),
        ),
        (request(path="/endpoints/a/invocations", authorization=scoped("s3")), S3),
        (request("GET", path="/endpoints/a/invocations"), S3),
        (
            request(x_amz_target="SageMaker.CreateModel", authorization=scoped("sagemaker")),
            Target(service="sagemaker", protocol="json", operation="CreateModel"),
        ),
        (
            request(x_amz_target="Logs_20140328.GetLogEvents"),
            Target(service="logs", protocol="json", operation="GetLogEvents"),
        ),
        (
            request(x_amz_target="AnyScaleFrontendService.PutScalingPolicy"),
            Target(service="application-autoscaling", protocol="json", operation="PutScalingPolicy"),
        ),
        (
            request(x_amz_target="TrentService.ListKeys", authorization=scoped("kms")),
            Target(service="kms", protocol="json", operation="ListKeys"),
        ),
        (
            request(x_amz_target="Foo.CreateModel", authorization=scoped("sagemaker")),
            Target(service="Foo", protocol="json", operation="CreateModel"),
        ),
        (
            request(x_amz_target="DynamoDB_20120810.ListTables"),
            Target(service="DynamoDB_20120810", protocol="json", operation="ListTables"),
        ),
        (
            request(path="/service/GraniteServiceVersion20100801/operation/ListMetrics", smithy_protocol="rpc-v2-cbor"),
            Target(service="cloudwatch", protocol="smithy-rpc-v2-cbor", operation="ListMetrics"),
        ),
        (
            request(
                path="/base/service/GraniteServiceVersion20100801/operation/No",
                smithy_protocol="rpc-v2-cbor",
                authorization=scoped("monitoring"),
            ),
            Target(service="cloudwatch", protocol="smithy-rpc-v2-cbor", operation="No"),
        ),
        (
            request(path="/service/Elsewhere/operation/Get", smithy_protocol="rpc-v2-cbor"),
            Target(service="Elsewhere", protocol="smithy-rpc-v2-cbor", operation="Get"),
        ),
        (request("PUT", path="/service/a/operation/b"), S3),
        (request(x_amz_target=""), Target(service="unknown", protocol="json", operation="")),
        (
            request(body=b"Action=GetCallerIdentity&Version=2011-06-15", **FORM),
            Target(service="sts", protocol="query", operation="GetCallerIdentity"),
        ),
        (
            request(body=b"Action=GetRole&RoleName=r", authorization=scoped("iam"), **FORM),
            Target(service="iam", protocol="query", operation="GetRole"),
        ),
        (
            request("GET", query="Action=GetCallerIdentity&Version=2011-06-15"),
            Target(service="sts", protocol="query", operation="GetCallerIdentity"),
        ),
        (
            request(
                "GET",
                query="Action=GetCallerIdentity&X-Amz-Credential=A%2F20260101%2Fus-east-1%2Fsts%2Faws4_request",
            ),
            Target(service="sts", protocol="query", operation="GetCallerIdentity"),
        ),
        (request(body=b"Action=GetRole", **FORM), Target(service="iam", protocol="query", operation="GetRole")),
        (request(authorization=scoped("sts"), **FORM), Target(service="sts", protocol="query")),
        (request(authorization=scoped("ecr")), Target(service="ecr", protocol="json")),
        (
            request(
                path="/service/GraniteServiceVersion20100801/operation/PutMetricData",
                authorization=scoped("monitoring"),
            ),
            Target(service="cloudwatch", protocol="json"),
        ),
        (request("PUT", path="/bucket/key", authorization=scoped("s3")), S3),
        (request("GET"), S3),
        (request("GET", path="/bucket", query="list-type=2&prefix=a"), S3),
        (request("POST", path="/bucket", query="delete", authorization=scoped("s3")), S3),
        (request("PUT", path="/bucket/key", query="X-Amz-Credential=A%2Fd%2Fr%2Fs3%2Faws4_request"), S3),
    ],
)
def test_the_service_of_a_request_is_identified(request_, target):
    assert identify(request_) == target


@given(
    method=st.sampled_from(["GET", "POST", "PUT"]),
    path=st.text(max_size=20).map(lambda text: "/" + text),
    query=st.text("&=X-AmzCredntil%2F/", max_size=40),
    headers=st.dictionaries(
        st.sampled_from(["authorization", "x-amz-target", "content-type"]),
        st.text(max_size=20) | st.just("Credential=/////aws4_request") | st.just(FORM["content_type"]),
    ),
    body=st.binary(max_size=30),
)
def test_identification_never_fails(method, path, query, headers, body):
    assert identify(HttpRequest(method, path, query, headers, body)).protocol


def test_identification_never_fails_on_a_very_long_form():
    many = b"&".join(b"a%d=1" % number for number in range(20_000))

    assert identify(request(body=many, **FORM)) == S3


def test_only_the_beginning_of_a_form_is_searched_for_its_action():
    padding = b"a=" + b"%41" * 2000 + b"&"

    found = identify(request(body=padding + b"Action=GetRole&" + padding, **FORM))
    cut = identify(
        request(body=padding + b"b=" + b"x" * (8192 - len(padding) - 21) + b"&Action=DeleteAlarmsNot", **FORM)
    )

    assert found == Target(service="iam", protocol="query", operation="GetRole")
    assert cut == S3


def test_a_form_whose_body_was_not_read_is_answered_as_a_form():
    assert identify(request(**FORM)) == Target(service="unknown", protocol="query")
    assert identify(request(path="/bucket", **FORM)) == S3
