"""Models and endpoint configurations, called with boto3."""

from typing import Any

import pytest

from tests.platform.control.calls import CONTAINER, NEED, host, make_model, refusal
from tests.platform.control.support import IMAGE, ROLE, Platform

DIRECT = {"InferenceExecutionConfig": {"Mode": "Direct"}}


def named(name: str) -> dict[str, Any]:
    return {**CONTAINER, "ContainerHostname": name}


def test_a_model_with_several_containers_is_described_and_used_where_they_are_supported(
    still_platform: Platform,
) -> None:
    client = still_platform.client("sagemaker")
    client.create_model(ModelName="serial", Containers=[CONTAINER, CONTAINER])
    containers = [named("one"), named("two")]
    client.create_model(ModelName="direct", Containers=containers, **DIRECT)
    found = client.describe_model(ModelName="direct")
    assert (found["Containers"], found["InferenceExecutionConfig"]) == (containers, {"Mode": "Direct"})
    serverless = {"MemorySizeInMB": 1024, "MaxConcurrency": 1}
    variant = {"VariantName": "v", "ModelName": "serial", "ServerlessConfig": serverless}
    message = refusal(client.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[variant])
    assert "several containers, which a ServerlessConfig does not support" in message
    source = {"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/in"}}}
    message = refusal(
        client.create_transform_job,
        TransformJobName="j",
        ModelName="direct",
        TransformInput=source,
        TransformOutput={"S3OutputPath": "s3://b/out"},
        TransformResources={"InstanceType": "ml.m5.large", "InstanceCount": 1},
    )
    assert "InferenceExecutionConfig.Mode Direct; expected Serial" in message
    host(client, "hosts")
    message = refusal(
        client.create_inference_component,
        InferenceComponentName="ic",
        EndpointName="hosts",
        VariantName="AllTraffic",
        Specification={"ModelName": "serial", "ComputeResourceRequirements": NEED},
        RuntimeConfig={"CopyCount": 1},
    )
    assert "Model serial has the containers container-1, container-2; expected one." in message


def test_a_model_is_described_as_it_was_created(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    arn = make_model(client)
    found = client.describe_model(ModelName="m")
    assert found["PrimaryContainer"] == CONTAINER
    assert (found["ModelArn"], found["ExecutionRoleArn"], found["EnableNetworkIsolation"]) == (arn, ROLE, False)
    assert refusal(client.create_model, ModelName="m", PrimaryContainer=CONTAINER).startswith(
        "Cannot create already existing model"
    )
    client.delete_model(ModelName="m")
    for call in (client.describe_model, client.delete_model):
        assert refusal(call, ModelName="m") == f'Could not find model "{arn}".'


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "Neither PrimaryContainer nor Containers"),
        ({"PrimaryContainer": CONTAINER, "Containers": [CONTAINER]}, "Both PrimaryContainer and Containers"),
        ({"Containers": [CONTAINER] * 16}, "less than or equal to 15"),
        ({"Containers": [named("a"), CONTAINER]}, "1 of 2 containers have a ContainerHostname"),
        ({"Containers": [named("a"), named("a")]}, "Two containers have the ContainerHostname a"),
        ({"Containers": [named("a"), CONTAINER], **DIRECT}, "expected Containers with a ContainerHostname each"),
        ({"PrimaryContainer": named("a"), **DIRECT}, "expected Containers with a ContainerHostname each"),
        ({"PrimaryContainer": {"ModelDataUrl": "s3://b/k.tar.gz"}}, "has no Image"),
        ({"PrimaryContainer": {**CONTAINER, "Mode": "MultiModel"}}, "expected the S3 prefix of the models"),
        ({"PrimaryContainer": {"Image": IMAGE, "Mode": "MultiModel"}}, "no ModelDataUrl; expected the S3 prefix"),
        (
            {"PrimaryContainer": {**CONTAINER, "MultiModelConfig": {"ModelCacheSetting": "Disabled"}}},
            "without Mode MultiModel",
        ),
        ({"PrimaryContainer": {**CONTAINER, "InferenceSpecificationName": "s"}}, "without ModelPackageName"),
        ({"PrimaryContainer": CONTAINER, "Tags": [{"Key": "a", "Value": "1"}] * 2}, "Duplicate tag keys"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    still_platform: Platform, params: dict[str, Any], message: str
) -> None:
    client = still_platform.client("sagemaker")
    assert message in refusal(client.create_model, ModelName="m", **params)


def test_a_friendly_platform_takes_local_paths_and_any_role(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    client.create_model(
        ModelName="m",
        ExecutionRoleArn="arn-of-some-role-or-other",
        PrimaryContainer={"Image": "my/server", "ModelDataUrl": "/models/small"},
    )


def test_a_strict_platform_refuses_what_aws_refuses(strict_platform: Platform) -> None:
    client = strict_platform.client("sagemaker")
    assert "ExecutionRoleArn" in refusal(client.create_model, ModelName="m", PrimaryContainer=CONTAINER)
    assert "Requested image my/server not found" in refusal(
        client.create_model, ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": "my/server"}
    )
    bad_url = {"Image": IMAGE, "ModelDataUrl": "/models/small"}
    assert "modelDataUrl" in refusal(
        client.create_model, ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer=bad_url
    )


def test_models_and_configurations_are_listed(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    for name in ("m1", "m2", "other"):
        make_model(client, name)
    client.create_endpoint_config(
        EndpointConfigName="c1",
        ProductionVariants=[{"VariantName": "v", "ModelName": "m1", "InstanceType": "ml.m5.large"}],
    )
    found = client.list_models(NameContains="m", SortOrder="Ascending")["Models"]
    assert [model["ModelName"] for model in found] == ["m1", "m2"]
    (config,) = client.list_endpoint_configs()["EndpointConfigs"]
    described = client.describe_endpoint_config(EndpointConfigName="c1")
    assert config["EndpointConfigArn"] == described["EndpointConfigArn"]
    (variant,) = described["ProductionVariants"]
    assert (variant["InitialInstanceCount"], variant["InitialVariantWeight"]) == (1, 1.0)


def test_a_token_of_another_list_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    for name in ("m1", "m2"):
        make_model(client, name)
    token = client.list_models(SortBy="Name", MaxResults=1)["NextToken"]
    assert "NextToken" in refusal(client.list_models, NextToken=token)
    assert "NextToken" in refusal(client.list_models, NextToken="no token")


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ([{"VariantName": "v", "ModelName": "no", "InstanceType": "ml.m5.large"}], "Could not find model"),
        ([{"VariantName": "v", "ModelName": "m"}], "no InstanceType"),
        ([{"VariantName": "v", "InstanceType": "ml.m5.large"}], "names no model"),
        ([{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}] * 2, "have the name v"),
        ([{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.x9.large"}], "enum"),
    ],
)
def test_a_configuration_that_cannot_be_deployed_is_refused(
    still_platform: Platform, variants: list[dict[str, Any]], message: str
) -> None:
    client = still_platform.client("sagemaker")
    make_model(client)
    found = refusal(client.create_endpoint_config, EndpointConfigName="c", ProductionVariants=variants)
    assert message in found


def test_an_asynchronous_configuration_without_a_location_for_responses_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_model(client)
    found = refusal(
        client.create_endpoint_config,
        EndpointConfigName="c",
        ProductionVariants=[{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}],
        AsyncInferenceConfig={"OutputConfig": {"S3FailurePath": "s3://b/failed"}},
    )
    assert "has no S3OutputPath" in found
