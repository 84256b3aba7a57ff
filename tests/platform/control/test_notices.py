"""Members without effect are named in the response, and those that are refused in the error."""

from typing import Any

import pytest

from tests.platform.control.calls import CONTAINER, NEED, VARIANT, make_model, refusal
from tests.platform.control.support import ROLE, Platform

METRICS = {"ContainerMetricsConfig": {"MetricsEndpoints": [{"MetricsEndpointPath": "/m"}]}}
SOURCE = {"S3Uri": "s3://b/m/", "S3DataType": "S3Prefix", "CompressionType": "None"}
OUTPUT = {"S3OutputPath": "s3://b/out"}
SPECIFICATION = {"ModelName": "m", "ComputeResourceRequirements": NEED}


def notice(answer: dict[str, Any]) -> str:
    return str(answer["ResponseMetadata"]["HTTPHeaders"].get("x-headrace-notice", ""))


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}}, "VpcConfig"),
        ({"PrimaryContainer": {**CONTAINER, **METRICS}}, "PrimaryContainer.ContainerMetricsConfig"),
        (
            {
                "PrimaryContainer": {
                    "Image": CONTAINER["Image"],
                    "ModelDataSource": {"S3DataSource": {**SOURCE, "ETag": "a"}},
                }
            },
            "PrimaryContainer.ModelDataSource.S3DataSource.ETag",
        ),
    ],
)
def test_a_member_of_a_model_without_effect_is_named(still_platform: Platform, members: Any, path: str) -> None:
    client = still_platform.client("sagemaker")
    params = {"ModelName": "m", "ExecutionRoleArn": ROLE, "PrimaryContainer": CONTAINER, **members}
    assert f"{path} is kept. " in notice(client.create_model(**params))
    assert notice(client.describe_model(ModelName="m")) == ""


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}}, "VpcConfig"),
        ({"MetricsConfig": {"EnableEnhancedMetrics": True}}, "MetricsConfig.EnableEnhancedMetrics"),
        (
            {
                "CrossRegionTrafficConfig": {
                    "MaxInvocationsPerSecondPerInstance": 5,
                    "MaxCrossRegionPercentPerEndpoint": 10,
                }
            },
            "CrossRegionTrafficConfig",
        ),
        (
            {"AsyncInferenceConfig": {"OutputConfig": {**OUTPUT, "KmsKeyId": "k"}}},
            "AsyncInferenceConfig.OutputConfig.KmsKeyId",
        ),
        ({"ProductionVariants": [{**VARIANT, "VolumeSizeInGB": 5}]}, "ProductionVariants[0].VolumeSizeInGB"),
    ],
)
def test_a_member_of_a_configuration_without_effect_is_named(still_platform: Platform, members: Any, path: str) -> None:
    client = still_platform.client("sagemaker")
    make_model(client)
    params = {"EndpointConfigName": "c", "ProductionVariants": [VARIANT], **members}
    assert f"{path} is kept. " in notice(client.create_endpoint_config(**params))


def test_a_member_of_a_component_without_effect_is_named(platform: Platform) -> None:
    client = platform.client("sagemaker")
    make_model(client)
    host = {"VariantName": "v", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="c", ExecutionRoleArn=ROLE, ProductionVariants=[host])
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    platform.wait_for(client, "e", "InService")
    specification = {**SPECIFICATION, "DataCacheConfig": {"EnableCaching": True}}
    made = client.create_inference_component(
        InferenceComponentName="i", EndpointName="e", VariantName="v", Specification=specification
    )
    assert "Specification.DataCacheConfig is kept. Model files are always cached" in notice(made)


def test_a_member_that_would_change_the_result_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_model(client)
    layouts = [{"AcceleratorPartitionTypes": ["mig-3g.40gb"]}]
    for name, members in (
        (
            "ExplainerConfig",
            {"ExplainerConfig": {"ClarifyExplainerConfig": {"ShapConfig": {"ShapBaselineConfig": {}}}}},
        ),
        (
            "ProductionVariants[0].AcceleratorPartitionLayouts",
            {"ProductionVariants": [{**VARIANT, "AcceleratorPartitionLayouts": layouts}]},
        ),
    ):
        params = {"EndpointConfigName": "c", "ProductionVariants": [VARIANT], **members}
        assert f"{name} is not supported by Headrace: " in refusal(client.create_endpoint_config, **params)


def test_a_member_that_many_items_have_is_named_once(still_platform: Platform) -> None:
    client = still_platform.client("cloudwatch")
    data = [{"MetricName": f"m{number}", "Value": 1.0, "StorageResolution": 1} for number in range(50)]
    assert notice(client.put_metric_data(Namespace="n", MetricData=data)).count("StorageResolution is kept") == 1
