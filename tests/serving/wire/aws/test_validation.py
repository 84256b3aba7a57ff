"""Requests are validated against the models with AWS's texts, and requests of real SDKs are valid."""

import json
import re
import warnings

import pytest

from headrace.serving.wire.aws import calls, services, validation
from headrace.serving.wire.aws.errors import AwsError
from tests.serving.wire.aws.client_side import request_of

TGI = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.0.1-tgi1.0.3-gpu-py39-cu118-ubuntu20.04"
)
ROLE = "arn:aws:iam::123456789012:role/service-role/SageMaker"
MODEL = {
    "ModelName": "tgi-2026-01-01-00-00-00-000",
    "ExecutionRoleArn": ROLE,
    "PrimaryContainer": {
        "Image": TGI,
        "Environment": {"HF_MODEL_ID": "a/b", "SAGEMAKER_PROGRAM": "", "SAGEMAKER_CONTAINER_LOG_LEVEL": "20"},
        "ModelDataSource": {
            "S3DataSource": {"S3Uri": "s3://bucket/prefix/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        },
    },
    "Tags": [{"Key": "owner", "Value": "Zoë 東京 @home"}],
}
VARIANT = {
    "VariantName": "AllTraffic",
    "ModelName": "m",
    "InitialInstanceCount": 1,
    "InstanceType": "ml.g5.2xlarge",
    "InitialVariantWeight": 1.0,
    "ModelDataDownloadTimeoutInSeconds": 600,
    "ContainerStartupHealthCheckTimeoutInSeconds": 300,
    "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
}
CONFIG = {"EndpointConfigName": "c", "ProductionVariants": [VARIANT], "EnableNetworkIsolation": False}
COMPONENT = {
    "InferenceComponentName": "huggingface-pytorch-tgi-inference-20260101-1-2",
    "EndpointName": "e",
    "VariantName": "AllTraffic",
    "Specification": {
        "ModelName": "m",
        "StartupParameters": {"ContainerStartupHealthCheckTimeoutInSeconds": 300},
        "ComputeResourceRequirements": {
            "MinMemoryRequiredInMb": 40960,
            "NumberOfCpuCoresRequired": 6,
            "NumberOfAcceleratorDevicesRequired": 1,
        },
    },
    "RuntimeConfig": {"CopyCount": 4},
}


def parse(service, name, params):
    return calls.parse(request_of(service, name, params)).params


def refused(service, name, params):
    with pytest.raises(AwsError) as caught:
        parse(service, name, params)
    return caught.value


def one(constraint, *, at, value):
    shown = "null" if value is None else f"'{value}'"
    return f"1 validation error detected: Value {shown} at '{at}' failed to satisfy constraint: {constraint}"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("CreateModel", MODEL),
        ("CreateEndpointConfig", CONFIG),
        ("CreateEndpoint", {"EndpointName": "e", "EndpointConfigName": "c", "Tags": []}),
        ("CreateInferenceComponent", COMPONENT),
    ],
)
def test_requests_of_the_sdks_are_valid(name, params):
    assert parse("sagemaker", name, params) == params


@pytest.mark.parametrize(
    ("change", "at", "value", "constraint"),
    [
        ({"InitialInstanceCount": 0}, "initialInstanceCount", "0", "Member must have value greater than or equal to 1"),
        ({"VolumeSizeInGB": 513}, "volumeSizeInGB", "513", "Member must have value less than or equal to 512"),
        (
            {"RoutingConfig": {"RoutingStrategy": "BEST"}},
            "routingConfig.routingStrategy",
            "BEST",
            "Member must satisfy enum value set: [LEAST_OUTSTANDING_REQUESTS, RANDOM",
        ),
        (
            {"VariantName": "-bad"},
            "variantName",
            "-bad",
            "Member must satisfy regular expression pattern: [a-zA-Z0-9]",
        ),
        ({"VariantName": None}, "variantName", None, "Member must not be null"),
    ],
)
def test_a_violated_constraint_has_awss_text(change, at, value, constraint):
    variant = {name: item for name, item in {**VARIANT, **change}.items() if item is not None}

    error = refused("sagemaker", "CreateEndpointConfig", {**CONFIG, "ProductionVariants": [variant]})

    assert error.code == "ValidationException"
    assert error.message.startswith(one(constraint, at=f"productionVariants.1.member.{at}", value=value))


def test_a_name_that_is_too_long_violates_its_length():
    error = refused("sagemaker", "DescribeEndpoint", {"EndpointName": "a" * 64})

    assert error.message.startswith(
        f"2 validation errors detected: Value '{'a' * 64}' at 'endpointName' failed to satisfy constraint: "
        "Member must have length less than or equal to 63; "
    )


def test_several_violations_are_in_one_message():
    error = refused("sagemaker", "CreateModel", {"ModelName": "a_b", "ExecutionRoleArn": "r"})

    assert error.message.startswith("3 validation errors detected: Value 'a_b' at 'modelName' failed")
    assert error.message.count("; Value 'r' at 'executionRoleArn'") == 2


def test_violations_of_list_members_name_the_list():
    vpc = {"SecurityGroupIds": ["sg-1", "sg 2"], "Subnets": ["subnet-1"]}

    error = refused("sagemaker", "CreateModel", {"ModelName": "m", "VpcConfig": vpc})

    assert error.message.startswith(
        one(
            "Member must satisfy constraint: [Member must have length less than or equal to 32, ",
            at="vpcConfig.securityGroupIds",
            value="[sg-1, sg 2]",
        )
    )


def test_the_content_of_a_map_is_not_repeated():
    container = {"Image": TGI, "Environment": {"HF_TOKEN": "hf_secret", "bad-name": "x"}}

    error = refused("sagemaker", "CreateModel", {"ModelName": "m", "PrimaryContainer": container})

    assert "at 'primaryContainer.environment' failed to satisfy constraint: Map keys must satisfy" in error.message
    assert "HF_TOKEN" in error.message
    assert "hf_secret" not in error.message


def test_secrets_are_not_repeated():
    request = request_of("sagemaker-runtime", "InvokeEndpoint", {"EndpointName": "e", "CustomAttributes": "c" * 2000})

    with pytest.raises(AwsError) as caught:
        calls.parse(request)

    assert "ccc" not in caught.value.message
    assert "Redacted" in caught.value.message


@pytest.mark.parametrize(
    ("service", "name", "params", "code"),
    [
        ("sagemaker", "DescribeModel", {}, "ValidationException"),
        ("application-autoscaling", "DescribeScalingActivities", {}, "ValidationException"),
        ("logs", "GetLogEvents", {}, "InvalidParameterException"),
        ("iam", "GetRole", {}, "ValidationError"),
        ("sagemaker-runtime", "InvokeEndpoint", {"EndpointName": "-"}, "ValidationError"),
    ],
)
def test_each_service_has_its_own_code(service, name, params, code):
    assert refused(service, name, params).code == code


def test_a_session_cannot_be_opened_on_a_stream():
    params = {"EndpointName": "e", "Body": b"", "SessionId": "NEW_SESSION"}

    assert parse("sagemaker-runtime", "InvokeEndpoint", params) == params
    assert refused("sagemaker-runtime", "InvokeEndpointWithResponseStream", params).code == "ValidationError"


def test_the_length_of_a_forwarded_body_is_not_checked():
    params = {"EndpointName": "e", "Body": b"x" * 7_000_000}

    assert parse("sagemaker-runtime", "InvokeEndpoint", params) == params


def test_constraints_of_free_shapes_are_not_checked():
    params = {"ModelName": "m", "ExecutionRoleArn": "any", "PrimaryContainer": {"Image": "i", "ModelDataUrl": "/local"}}
    request = request_of("sagemaker", "CreateModel", params)

    assert calls.parse(request, free_shapes=frozenset({"RoleArn", "Url"})).params == params
    with pytest.raises(AwsError, match="3 validation errors detected"):
        calls.parse(request)


def test_a_thousand_violations_give_a_short_message():
    tags = [{"Key": "", "Value": "\x00"} for _ in range(1000)]

    error = refused(
        "sagemaker", "AddTags", {"ResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:model/m", "Tags": tags}
    )

    assert error.message.startswith("2001 validation errors detected: ")
    assert error.message.count("failed to satisfy constraint") == 20


def test_a_long_value_is_cut():
    assert len(refused("sagemaker", "DescribeEndpoint", {"EndpointName": "a" * 10_000_000}).message) < 2000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"MaxResults": "5"}, "STRING_VALUE can not be converted to an Integer (at 'maxResults')."),
        ({"MaxResults": True}, "TRUE_VALUE can not be converted to an Integer (at 'maxResults')."),
        ({"MaxResults": 1.5}, "NUMBER_VALUE can not be converted to an Integer (at 'maxResults')."),
        ({"MaxResults": 2**31}, "NUMBER_VALUE does not fit into 32 bits (at 'maxResults')."),
        ({"NameContains": 5}, "NUMBER_VALUE can not be converted to a String (at 'nameContains')."),
        ({"NameContains": []}, "Start of list found where not expected (at 'nameContains')."),
        ({"NameContains": {}}, "Start of structure or map found where not expected (at 'nameContains')."),
        ({"CreationTimeAfter": "soon"}, "'soon' is not a timestamp (at 'creationTimeAfter')."),
        ([], "Start of list found where not expected."),
        ("x", "STRING_VALUE found where a structure, map or list was expected."),
    ],
)
def test_a_value_of_another_type_does_not_serialise(value, message):
    request = request_of("sagemaker", "ListModels", {})

    with pytest.raises(AwsError) as caught:
        calls.parse(type(request)("POST", "/", "", request.headers, json.dumps(value).encode()))

    assert (caught.value.code, caught.value.message) == ("SerializationException", message)


def test_a_whole_number_may_be_written_as_a_float():
    request = request_of("sagemaker", "ListModels", {})

    call = calls.parse(
        type(request)("POST", "/", "", request.headers, b'{"MaxResults": 5.0, "CreationTimeAfter": 1e9}')
    )

    assert call.params == {"MaxResults": 5, "CreationTimeAfter": 1e9}


def test_only_one_member_of_a_union_may_be_set():
    shape = services.operation("sagemaker", "CreateAutoMLJobV2").input_shape.members["AutoMLProblemTypeConfig"]
    assert shape.is_tagged_union
    config = {"ImageClassificationJobConfig": {}, "TextClassificationJobConfig": {"ContentColumn": "a"}}
    request = request_of("sagemaker", "CreateAutoMLJobV2", {"AutoMLProblemTypeConfig": config})

    with pytest.raises(AwsError, match="Only one of ImageClassificationJobConfig, TextClassificationJobConfig may"):
        calls.parse(request)


def test_nothing_in_a_list_may_be_null():
    request = request_of("sagemaker", "DeleteTags", {})
    body = b'{"ResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:model/m", "TagKeys": ["a", null]}'

    with pytest.raises(AwsError, match=r"at 'tagKeys' failed to satisfy constraint: .*Member must not be null"):
        calls.parse(type(request)("POST", "/", "", request.headers, body))


def test_a_value_without_constraints_has_no_violations():
    shape = services.operation("sagemaker", "CreateModel").input_shape

    assert list(validation.violations(MODEL, shape)) == []


def all_patterns():
    found = set()
    for service in services.MODELLED:
        model = services.model(service)
        for name in model.shape_names:
            found.add(model.shape_for(name).metadata.get("pattern"))
    return sorted(found - {None})


def test_every_pattern_of_every_model_compiles_without_a_warning():
    found = all_patterns()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pattern in found:
            assert isinstance(validation.compiled(pattern), re.Pattern)
    assert len(found) > 300


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "Zoë 東京 ٣ a_b.c:d/e=f+g-h@i", True),
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "a;b", False),
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "a\nb", False),
        (r"([\p{L}\p{Z}\p{N}_.:\/=+\-@]*)${1,128}", "a b", True),
        (r"[\p{L}\p{M}\p{Z}\p{S}\p{N}\p{P}]*", "a+b, é€ 🙂!", True),
        (r"[\p{L}\p{M}\p{Z}\p{S}\p{N}\p{P}]*", "a\x00", False),
        (r"\p{ASCII}*", "abc\n", True),
        (r"\p{ASCII}*", "é", False),
        (r"\A\S[\p{Print}]*\z", "a b", True),
        (r"\A\S[\p{Print}]*\z", " ab", False),
        (r"\A\S[\p{Print}]*\z", "ab\n", False),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*", "a\t🙂", True),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*", "\x01", False),
        (r"[\u0009\u000A\u000D\u0020-\u007E\u0085\u00A0-\uD7FF\uE000-\uFFFD\u10000-\u10FFFF]+", "a🙂", True),
        (r"[\w-_]*", "a-b_c", True),
        (r"\d{12}", "123456789012", True),
        (r"\d{12}", "١٢٣٤٥٦٧٨٩٠١٢", False),
        (r"[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?", "a-b--c", True),
        (r"[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?", "a" * 60 + "!", False),
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", "a--b", True),
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", "ab-", False),
    ],
)
def test_a_pattern_means_what_it_means_in_java(pattern, text, matches):
    assert bool(validation.compiled(pattern).fullmatch(text)) is matches


def test_a_pattern_that_only_java_supports_is_not_checked():
    assert validation.compiled(r"(?<name>x)") is None


NEARLY = ["a", "a-", "-", "1.", "a/", ":", " a", "arn:aws:"]


def test_texts_that_nearly_match_are_refused_fast():
    """A name must not keep a server busy: with catastrophic backtracking this test would not end."""
    for service in services.MODELLED:
        model = services.model(service)
        for shape in (model.shape_for(name) for name in model.shape_names):
            if "pattern" in shape.metadata:
                size = min(2 * shape.metadata.get("max", 5000), 10_000)
                for part in NEARLY:
                    text = "a" + (part * size)[: max(0, size - 2)] + "\x00"
                    validation.compiled(shape.metadata["pattern"]).fullmatch(text)
