"""Smithy's RPC v2 with CBOR: what botocore sends and reads, and malformed requests."""

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.serving.wire.aws import calls, rpc, services
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import AwsCall, HttpRequest
from tests.serving.wire.aws.client_side import as_client_sees, request_of, result_of
from tests.serving.wire.aws.shape_values import values

PROTOCOL = "smithy-rpc-v2-cbor"
OPERATIONS = [
    "PutMetricData",
    "GetMetricData",
    "GetMetricStatistics",
    "PutMetricAlarm",
    "DescribeAlarms",
    "ListMetrics",
]
quick = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize("name", OPERATIONS)
@quick
@given(data=st.data())
def test_parameters_arrive_unchanged(name, data):
    operation = services.operation("cloudwatch", name)
    params = data.draw(values(operation.input_shape))

    arrived = rpc.parse_cbor(operation, request_of("cloudwatch", name, params, PROTOCOL))

    assert arrived == params


@pytest.mark.parametrize("name", OPERATIONS)
@quick
@given(data=st.data())
def test_results_arrive_unchanged(name, data):
    shape = services.operation("cloudwatch", name).output_shape
    result = {} if shape is None else data.draw(values(shape))

    response = calls.render(AwsCall("cloudwatch", name, PROTOCOL), result, "the-id")

    assert result_of("cloudwatch", name, response, PROTOCOL) == as_client_sees(result, shape)
    assert dict(response.headers)["smithy-protocol"] == "rpc-v2-cbor"
    assert dict(response.headers)["x-amzn-requestid"] == "the-id"


def test_an_operation_without_a_result_has_no_body_and_no_content_type():
    response = calls.render(AwsCall("cloudwatch", "PutMetricData", PROTOCOL), {}, "the-id")

    assert response.body == b""
    assert "content-type" not in dict(response.headers)


def test_text_that_utf8_cannot_encode_does_not_break_the_response():
    call = AwsCall("cloudwatch", "ListMetrics", PROTOCOL)

    response = calls.render(call, {"Metrics": [{"MetricName": "a\ud800"}]}, "the-id")

    assert cbor2.loads(response.body) == {"Metrics": [{"MetricName": "a?"}]}


def parse(body, name="ListMetrics", service="GraniteServiceVersion20100801"):
    path = f"/service/{service}/operation/{name}"
    return calls.parse(HttpRequest("POST", path, "", {"smithy-protocol": "rpc-v2-cbor"}, body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xa0",
        b"\xf6",
        b"\xbf\xff",
        cbor2.dumps({"MetricName": None}),
        cbor2.dumps({"MetricName": cbor2.undefined}),
        cbor2.dumps({"Newer": {"a": [1.5, b"x", True]}}),
    ],
)
def test_empty_parameters_may_be_sent_in_several_ways(body):
    assert parse(body).params == {}


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\xa1",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x81" * 1000 + b"\x01",
        b"\xa1\x61a\x61\xff",
        b"\xa1\x01\x02",
        b"\xa1\x61a\xf8\x50",
        cbor2.dumps({"MetricName": cbor2.CBORTag(35, "(a+)+$")}),
        cbor2.dumps({"MetricName": cbor2.CBORTag(5, [2**30, 1])}),
        cbor2.dumps({"MetricName": cbor2.CBORTag(1, "now")}),
        cbor2.dumps({"MetricName": cbor2.CBORTag(123456, "x")}),
        cbor2.dumps({"MetricName": 5}),
        cbor2.dumps({"MetricName": b"bytes"}),
        cbor2.dumps({"MetricName": 2**70}),
        cbor2.dumps(["a list"]),
    ],
)
def test_requests_that_violate_the_protocol_are_refused(body):
    with pytest.raises(AwsError) as raised:
        parse(body)

    assert (raised.value.code, raised.value.http_status) == ("SerializationException", 400)


@pytest.mark.parametrize("shift", range(9))
def test_values_arrive_unchanged_wherever_the_slices_of_a_body_begin(shift):
    numbers = [1.5, 2**33, 70_000, 300]
    datum = {"MetricName": "é" * 200, "Values": numbers * 20, "Timestamp": cbor2.CBORTag(1, 1_700_000_000)}
    params = {"Namespace": "n" * (240 + shift), "MetricData": [datum] * 20}

    arrived = parse(cbor2.dumps(params), "PutMetricData").params

    assert arrived == params | {"MetricData": [datum | {"Timestamp": 1_700_000_000.0}] * 20}


@given(body=st.binary(max_size=80))
def test_any_bytes_are_a_call_or_a_refusal(body):
    outcome = outcome_of(body)

    assert isinstance(outcome, AwsCall) or 400 <= outcome.http_status < 500


def outcome_of(body):
    try:
        return parse(body, "PutMetricData")
    except AwsError as error:
        return error


@pytest.mark.parametrize(
    ("name", "service"),
    [("NoSuch", "GraniteServiceVersion20100801"), ("ListModels", "SageMaker"), ("List", "Elsewhere")],
)
def test_services_without_the_protocol_are_unknown_operations(name, service):
    with pytest.raises(AwsError) as raised:
        parse(b"", name, service)

    assert raised.value.code == "UnknownOperationException"


def test_constraints_of_the_model_are_enforced():
    with pytest.raises(AwsError, match="Member must not be null"):
        parse(cbor2.dumps({"Namespace": "n"}), "GetMetricStatistics")
