"""We parse requests of botocore, and botocore parses our responses."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.serving.wire.aws import calls, query, rest_json, rpc, services
from headrace.serving.wire.aws.http import AwsCall
from tests.serving.wire.aws.client_side import PROTOCOLS, as_client_sees, parsed, request_of, result_of
from tests.serving.wire.aws.shape_values import texts, values, xml_texts

PARSERS = {"json": rpc.parse_json, "rest-json": rest_json.parse_input, "query": query.parse_input}
OPERATIONS = [
    *(
        ("sagemaker", f"{verb}{noun}")
        for noun in ("Model", "EndpointConfig", "Endpoint", "InferenceComponent")
        for verb in ("Create", "Describe", "Delete")
    ),
    *(
        ("sagemaker", f"List{noun}")
        for noun in ("Models", "EndpointConfigs", "Endpoints", "InferenceComponents", "Tags")
    ),
    ("sagemaker", "UpdateEndpoint"),
    ("sagemaker", "UpdateEndpointWeightsAndCapacities"),
    ("sagemaker", "AddTags"),
    ("sagemaker", "DeleteTags"),
    ("sagemaker-runtime", "InvokeEndpoint"),
    ("sagemaker-runtime", "InvokeEndpointAsync"),
    ("sagemaker-runtime", "InvokeEndpointWithResponseStream"),
    ("logs", "DescribeLogGroups"),
    ("logs", "DescribeLogStreams"),
    ("logs", "FilterLogEvents"),
    ("logs", "GetLogEvents"),
    ("application-autoscaling", "PutScalingPolicy"),
    ("application-autoscaling", "DescribeScalingActivities"),
    ("cloudwatch", "GetMetricStatistics"),
    ("sts", "GetCallerIdentity"),
    ("sts", "AssumeRole"),
    ("iam", "GetRole"),
    ("iam", "SimulatePrincipalPolicy"),
]
quick = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def name_of(pair):
    return ".".join(pair)


@pytest.mark.parametrize("pair", OPERATIONS, ids=name_of)
@quick
@given(data=st.data())
def test_parameters_arrive_unchanged(pair, data):
    service, name = pair
    operation = services.operation(service, name)
    min_size = 1 if PROTOCOLS[service] == "query" else 0
    params = {} if operation.input_shape is None else data.draw(values(operation.input_shape, min_size=min_size))
    if "Body" in getattr(operation.input_shape, "required_members", []):
        params.setdefault("Body", b"")
    request = request_of(service, name, params)

    arrived = PARSERS[PROTOCOLS[service]](operation, request)

    if not params.get("Body", True) and name == "InvokeEndpointAsync":
        del params["Body"]  # no body and an empty one look the same on the wire
    assert arrived == params


@pytest.mark.parametrize("pair", [pair for pair in OPERATIONS if "Stream" not in pair[1]], ids=name_of)
@quick
@given(data=st.data())
def test_results_arrive_unchanged(pair, data):
    service, name = pair
    shape = services.operation(service, name).output_shape
    protocol = PROTOCOLS[service]
    text = xml_texts if protocol == "query" else texts
    result = {} if shape is None else data.draw(values(shape, text=text))
    if "Body" in getattr(shape, "required_members", []):
        result.setdefault("Body", b"")

    response = calls.render(AwsCall(service, name, protocol), result, "the-id")

    expected = as_client_sees(result, shape)
    assert result_of(service, name, response) == expected


@pytest.mark.parametrize("pair", OPERATIONS, ids=name_of)
def test_a_request_without_its_required_members_is_refused_or_needs_none(pair):
    service, name = pair
    operation = services.operation(service, name)
    required = getattr(operation.input_shape, "required_members", [])
    elsewhere = {"EndpointName": "e"} if service == "sagemaker-runtime" else {}
    request = request_of(service, name, elsewhere)

    if [member for member in required if member not in ("EndpointName", "Body")] or (required and not elsewhere):
        with pytest.raises(calls.AwsError, match="Member must not be null"):
            calls.parse(request)
    else:
        assert calls.parse(request).operation == name


def test_members_that_are_not_in_the_output_shape_are_omitted():
    call = AwsCall("sagemaker", "DescribeModel", "json")

    response = calls.render(call, {"ModelName": "m", "Tags": [], "CreationTime": 1.5, "ModelArn": None})

    assert response.body == b'{"ModelName":"m","CreationTime":1.5}'


def test_a_delete_returns_an_empty_body():
    response = calls.render(AwsCall("sagemaker", "DeleteModel", "json"), {}, "the-id")

    assert (response.status, response.body) == (200, b"")
    assert ("x-amzn-requestid", "the-id") in response.headers


def test_the_request_id_is_where_clients_of_each_protocol_look():
    for service, name in (("sagemaker", "ListModels"), ("sts", "GetCallerIdentity")):
        call = AwsCall(service, name, PROTOCOLS[service])

        response = calls.render(call, {}, "the-id")

        shape = services.operation(service, name).output_shape
        assert parsed(service, response, shape)["ResponseMetadata"]["RequestId"] == "the-id"


def test_an_asynchronous_invocation_returns_its_locations_in_headers():
    call = AwsCall("sagemaker-runtime", "InvokeEndpointAsync", "rest-json")
    result = {"InferenceId": "i", "OutputLocation": "s3://b/o", "FailureLocation": "s3://b/f"}

    response = calls.render(call, result, "the-id")

    assert response.status == 202
    assert response.body == b'{"InferenceId":"i"}'
    assert dict(response.headers)["x-amzn-sagemaker-outputlocation"] == "s3://b/o"
    assert result_of("sagemaker-runtime", "InvokeEndpointAsync", response) == result


def test_a_forwarded_body_keeps_its_content_type():
    call = AwsCall("sagemaker-runtime", "InvokeEndpoint", "rest-json")

    plain = calls.render(call, {"Body": b"\xff\x00"}, "the-id")
    typed = calls.render(call, {"Body": b"{}", "ContentType": "application/json"}, "the-id")

    assert plain.body == b"\xff\x00"
    assert "content-type" not in dict(plain.headers)
    assert dict(typed.headers)["content-type"] == "application/json"


def test_a_value_cannot_inject_a_second_header():
    call = AwsCall("sagemaker-runtime", "InvokeEndpoint", "rest-json")

    response = calls.render(call, {"Body": b"", "CustomAttributes": "a\r\nx-evil: 1\x00 \u20ac"}, "the-id")

    assert dict(response.headers)["x-amzn-sagemaker-custom-attributes"] == "a  x-evil: 1  ?"


def test_a_null_member_counts_as_absent():
    request = request_of("sagemaker", "ListModels", {})

    call = calls.parse(
        type(request)(request.method, "/", "", request.headers, b'{"MaxResults": null, "New": {"a": 1}}')
    )

    assert call.params == {}


@pytest.mark.parametrize("target", ["SageMaker.ListModels", "com.amazonaws.sagemaker#SageMaker.ListModels"])
@pytest.mark.parametrize("body", [b"", b"{}", b" \n", b"null"])
def test_empty_parameters_may_be_sent_in_several_ways(target, body):
    request = request_of("sagemaker", "ListModels", {})
    headers = {**request.headers, "x-amz-target": target}

    assert calls.parse(type(request)("POST", "/", "", headers, body)).params == {}
