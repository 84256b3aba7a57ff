"""The limits of a key outside the gateway: operations of AWS, buckets, the console, metrics and the registry."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.serving.wire.key_limits import KeyLimits
from tests import plain_http
from tests.platform.control.support import ROLE
from tests.waiting import WAIT_S

from .named_apps import KEY, SECRET
from .test_sts import Clock, client, closed_platform

LIMITS = KeyLimits(models=("mine-*",), actions=("read", "sagemaker:DeleteEndpoint", "s3:PutObject", "sts:*"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with closed_platform(Clock(), limits=LIMITS) as (found, _):
        yield found


Connect = Callable[..., Any]


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Make clients of a service, which are closed after the test."""
    with ExitStack() as opened:
        yield lambda service, *credentials: opened.enter_context(closing(client(service, url, *credentials)))


def code_of(call: Callable[..., Any], **params: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as refused:
        call(**params)
    response = refused.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_operations_are_denied_in_the_words_of_their_protocol(connect: Connect) -> None:
    sagemaker = connect("sagemaker")
    sagemaker.list_endpoints()
    assert code_of(sagemaker.create_model, ModelName="m") == ("AccessDeniedException", 400)
    assert code_of(connect("sns").create_topic, Name="t") == ("AccessDenied", 403)
    assert code_of(connect("iam").create_role, RoleName="r", AssumeRolePolicyDocument="{}")[0] == "AccessDenied"
    assert connect("sts").get_caller_identity()["Account"]


def test_an_operation_that_names_an_endpoint_needs_the_right_to_it(connect: Connect) -> None:
    sagemaker = connect("sagemaker")
    assert code_of(sagemaker.delete_endpoint, EndpointName="mine-1")[0] == "ValidationException"  # there is none
    assert code_of(sagemaker.delete_endpoint, EndpointName="theirs")[0] == "AccessDeniedException"


def test_temporary_credentials_have_the_limits_of_their_key(connect: Connect) -> None:
    made = connect("sts").assume_role(RoleArn=ROLE, RoleSessionName="nightly")["Credentials"]
    assert code_of(connect("sagemaker", made).create_model, ModelName="m")[0] == "AccessDeniedException"


def test_buckets_are_read_and_written_as_the_actions_say(connect: Connect) -> None:
    s3 = connect("s3")

    def status(operation: str) -> int:
        link = s3.generate_presigned_url(operation, Params={"Bucket": "b", "Key": "k"})
        method = {"get_object": "GET", "put_object": "PUT"}.get(operation, "DELETE")
        return int(plain_http.request(method, link, timeout=WAIT_S).status_code)

    assert (status("get_object"), status("put_object"), status("delete_object")) == (200, 200, 403)
    assert code_of(s3.create_bucket, Bucket="b") == ("AccessDenied", 403)


def test_no_key_with_limits_manages_keys(url: str) -> None:
    """Whatever its actions are: it could give itself all rights."""
    bearer = {"Authorization": f"Bearer {SECRET}"}

    def status(path: str, method: str = "GET") -> int:
        return int(plain_http.request(method, url + path, headers=bearer, timeout=WAIT_S).status_code)

    assert (status("/console/api/home"), status("/metrics")) == (200, 200)
    with closed_platform(Clock(), limits=KeyLimits(actions=("*",))) as (other, _):
        for method in ("GET", "POST"):
            found = plain_http.request(method, f"{other}/console/api/keys", headers=bearer, timeout=WAIT_S)
            assert found.status_code == 403
            assert f"headrace keys limit {KEY}" in found.text
    with closed_platform(Clock(), limits=KeyLimits(models=("m",))) as (other, _):
        for path in ("/console/api/home", "/metrics"):
            assert plain_http.get(other + path, headers=bearer, timeout=WAIT_S).status_code == 403


def test_the_registry_is_read_but_not_written(url: str) -> None:
    with closed_platform(Clock(), limits=KeyLimits(actions=("ecr:*Get*",))) as (other, _):
        password = plain_http.get(f"{other}/v2/", auth=(KEY, SECRET), timeout=WAIT_S)
        pushed = plain_http.post(f"{other}/v2/a/blobs/uploads/", auth=(KEY, SECRET), timeout=WAIT_S)
    assert password.status_code == 200
    assert (pushed.status_code, "ecr:PutImage" in pushed.text) == (403, True)
