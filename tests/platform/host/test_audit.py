"""Every control call of any protocol leaves a line in the log: who, from where, what, on what, and the result."""

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from headrace.core.telemetry import setup_logging
from headrace.platform.control.app import ControlApp, resource_of
from headrace.platform.host.access import bucket_call, console_call
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.store import open_store
from headrace.serving.http.audit import REPEAT_S, AuditedCall, AuditLog
from tests import plain_http
from tests.platform.control.support import AWS_SCOPE, IMAGE, ListedLogs
from tests.waiting import WAIT_S

from . import test_console_keys
from .named_apps import KEY, SECRET, platform


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    setup_logging(format="json", stream=stream)
    yield stream
    setup_logging()


def lines(log: io.StringIO, event: str = "call.finished") -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]


def client(url: str, service: str, secret: str = SECRET) -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=WAIT_S),
    )


def named(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        tuple(str(line.get(name, "")) for name in ("caller", "service", "operation", "resource", "status", "error"))
        for line in found
    ]


def test_operations_of_aws_leave_a_line_in_every_protocol(log: io.StringIO) -> None:
    store = open_store("sqlite://")
    control = ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=ListedLogs(), own_images={}, is_strict=False)
    container = {"Image": IMAGE, "Environment": {"TOKEN": "hidden-from-the-log"}}
    with platform(is_open=False, control=control) as url:
        sagemaker = client(url, "sagemaker")
        calls: tuple[tuple[Any, dict[str, Any]], ...] = (
            (sagemaker.create_model, {"ModelName": "m", "PrimaryContainer": container}),
            (sagemaker.create_model, {"ModelName": "m", "PrimaryContainer": container}),
            (sagemaker.delete_endpoint, {"EndpointName": "missing"}),
            (sagemaker.list_models, {}),
            (client(url, "sts").get_caller_identity, {}),
            (
                client(url, "cloudwatch").put_metric_data,
                {"Namespace": "n", "MetricData": [{"MetricName": "a", "Value": 1}]},
            ),
            (client(url, "logs").describe_log_streams, {"logGroupName": "/aws/sagemaker/Endpoints/e"}),
            (client(url, "application-autoscaling").describe_scalable_targets, {"ServiceNamespace": "sagemaker"}),
        )
        for call, parameters in calls:
            with suppress(ClientError):
                call(**parameters)
        with pytest.raises(ClientError):
            client(url, "sagemaker", secret="guessed").delete_model(ModelName="m")
    store.close()
    assert named(lines(log)) == [
        (KEY, "sagemaker", "CreateModel", "m", "200", ""),
        (KEY, "sagemaker", "CreateModel", "m", "400", "ValidationException"),
        (KEY, "sagemaker", "DeleteEndpoint", "missing", "400", "ValidationException"),
        (KEY, "sagemaker", "ListModels", "", "200", ""),
        (KEY, "sts", "GetCallerIdentity", "", "200", ""),
        (KEY, "cloudwatch", "PutMetricData", "n", "200", ""),
        (KEY, "logs", "DescribeLogStreams", "/aws/sagemaker/Endpoints/e", "400", "ResourceNotFoundException"),
        (KEY, "application-autoscaling", "DescribeScalableTargets", "", "200", ""),
    ]
    assert {line["address"] for line in lines(log)} == {"127.0.0.1"}
    (refused,) = lines(log, "request.refused")
    assert (refused["claimed_key"], refused["address"], refused["error"]) == (
        KEY,
        "127.0.0.1",
        "InvalidSignatureException",
    )
    for secret in ("hidden-from-the-log", SECRET, "guessed"):
        assert secret not in log.getvalue()


def test_buckets_and_the_console_leave_a_line_and_objects_none(log: io.StringIO) -> None:
    with platform(is_open=False) as url, plain_http.Client(timeout=WAIT_S) as http:
        http.headers["authorization"] = f"Bearer {SECRET}"
        for method, path in (
            ("PUT", "/bucket"),
            ("PUT", "/bucket?policy"),
            ("POST", "/bucket?delete"),
            ("GET", "/"),
            ("GET", "/bucket?list-type=2&prefix=hidden"),
            ("PUT", "/bucket/key"),
            ("GET", "/bucket/key?acl"),
            ("GET", "/console/api/traffic?endpoint=e"),
            ("GET", "/console"),
            ("DELETE", "/bucket/"),
        ):
            assert http.request(method, url + path).status_code == 200
    assert named(lines(log)) == [
        (KEY, "s3", "CreateBucket", "bucket", "200", ""),
        (KEY, "s3", "PutBucketPolicy", "bucket", "200", ""),
        (KEY, "s3", "DeleteObjects", "bucket", "200", ""),
        (KEY, "s3", "ListBuckets", "", "200", ""),
        (KEY, "s3", "ListObjects", "bucket", "200", ""),
        (KEY, "console", "GetTraffic", "e", "200", ""),
        (KEY, "s3", "DeleteBucket", "bucket", "200", ""),
    ]
    assert "hidden" not in log.getvalue()


def test_access_keys_leave_a_line_without_their_secrets(log: io.StringIO) -> None:
    with test_console_keys.platform(is_open=False) as (http, keys, mine):
        path = test_console_keys.PATH
        made = http.post(path, json={"note": "a note"}).json()
        assert http.get(path).status_code == 200
        assert http.delete(f"{path}/{made['id']}").status_code == 204
        assert http.delete(f"{path}/{mine.key_id}").status_code == 409
        assert len(keys.list()) == 1
    assert named(lines(log)) == [
        (mine.key_id, "headrace", "CreateAccessKey", made["id"], "201", ""),
        (mine.key_id, "headrace", "ListAccessKeys", "", "200", ""),
        (mine.key_id, "headrace", "DeleteAccessKey", made["id"], "204", ""),
        (mine.key_id, "headrace", "DeleteAccessKey", mine.key_id, "409", ""),
    ]
    assert made["secret"] not in log.getvalue()
    assert mine.secret not in log.getvalue()


def test_equal_reads_are_counted_within_a_minute_and_changes_never(log: io.StringIO) -> None:
    now_s = 0.0
    audit = AuditLog(clock=lambda: now_s)
    read = AuditedCall(service="sagemaker", operation="DescribeEndpoint", resource="e")
    scope: dict[str, Any] = {"client": ("10.0.0.1", 1)}
    for address in ("10.0.0.1", "10.0.0.2"):
        for _ in range(3):
            audit.write({"client": (address, 1)}, read, status=200, request_id="r")
    audit.write(scope, read, status=400, request_id="r")
    for _ in range(2):
        audit.write(scope, AuditedCall(service="sagemaker", operation="DeleteModel"), status=200, request_id="r")
    now_s = REPEAT_S
    audit.write(scope, read, status=200, request_id="r")
    told = [(line["address"], line["operation"], line["status"], line.get("repeated")) for line in lines(log)]
    assert told == [
        ("10.0.0.1", "DescribeEndpoint", 200, None),
        ("10.0.0.2", "DescribeEndpoint", 200, None),
        ("10.0.0.1", "DescribeEndpoint", 400, None),
        ("10.0.0.1", "DeleteModel", 200, None),
        ("10.0.0.1", "DeleteModel", 200, None),
        ("10.0.0.1", "DescribeEndpoint", 200, 2),
    ]
    assert {line["caller"] for line in lines(log)} == {"anonymous"}


@pytest.mark.parametrize(
    ("operation", "params", "resource"),
    [
        ("CreateEndpointConfig", {"EndpointConfigName": "c", "KmsKeyId": "k"}, "c"),
        ("CreateEndpoint", {"EndpointName": "e", "EndpointConfigName": "c"}, "e"),
        ("UpdateEndpointWeightsAndCapacities", {"EndpointName": "e"}, "e"),
        ("UpdateInferenceComponentRuntimeConfig", {"InferenceComponentName": "i"}, "i"),
        ("AddTags", {"ResourceArn": "arn", "Tags": [{"Key": "k", "Value": "v"}]}, "arn"),
        ("DeleteAlarms", {"AlarmNames": ["a", "b"]}, "a,b"),
        ("PutScalingPolicy", {"PolicyName": "p", "ResourceId": "endpoint/e/variant/v"}, "endpoint/e/variant/v"),
        ("CreateModel", {"PrimaryContainer": {"Environment": {"TOKEN": "x"}}}, ""),
        ("GetRole", {"RoleName": "r"}, "r"),
        ("", {}, ""),
    ],
)
def test_the_resource_of_a_call(operation: str, params: dict[str, Any], resource: str) -> None:
    assert resource_of(operation, params) == resource


@pytest.mark.parametrize("path", ["/", "//", "/b", "/b/", "/%62", "/b/%2F", "/b/k", "/" + "b" * 10_000])
@pytest.mark.parametrize("query", [b"", b"&" * 10_000, b"policy=" + b"x" * 10_000, b"\xff&acl", b"endpoint=%ff"])
def test_any_request_has_a_call_or_none(path: str, query: bytes) -> None:
    for method in ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"):
        scope = {"method": method, "path": path, "query_string": query, "headers": []}
        assert (bucket_call(scope) is None) == path.startswith(("/b/%", "/b/k"))
        assert console_call({**scope, "path": f"/console/api{path}"}) is not None
