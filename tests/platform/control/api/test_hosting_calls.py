"""
Edge cases of hosting operations that other SageMaker emulators test, called with boto3.

The list of cases follows the tests of moto 5 for models, endpoint configurations and endpoints; the code does not.
"""

import datetime as dt
from typing import Any

import pytest

from tests.platform.control.calls import VARIANT, make_config, refusal
from tests.platform.control.support import IMAGE, ROLE, Platform

TAGS = [{"Key": "team", "Value": "rivers"}, {"Key": "tier", "Value": "test"}]
LONG_AGO = dt.datetime(2021, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def client(still_platform: Platform) -> Any:
    made = still_platform.client("sagemaker")
    make_config(made)
    return made


def test_a_configuration_is_created_once_and_deleted_once(client: Any) -> None:
    assert refusal(client.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[VARIANT]).startswith(
        "Cannot create already existing endpoint configuration"
    )
    client.delete_endpoint_config(EndpointConfigName="c")
    for call in (client.describe_endpoint_config, client.delete_endpoint_config):
        assert refusal(call, EndpointConfigName="c").startswith("Could not find endpoint configuration")


def test_all_resources_are_created_with_tags_and_lose_them_when_deleted(client: Any) -> None:
    model = client.create_model(
        ModelName="tagged", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE}, Tags=TAGS
    )["ModelArn"]
    config = client.create_endpoint_config(EndpointConfigName="tagged", ProductionVariants=[VARIANT], Tags=TAGS)
    endpoint = client.create_endpoint(EndpointName="tagged", EndpointConfigName="tagged", Tags=TAGS)
    for arn in (model, config["EndpointConfigArn"], endpoint["EndpointArn"]):
        assert client.list_tags(ResourceArn=arn)["Tags"] == TAGS
    client.delete_model(ModelName="tagged")
    client.create_model(ModelName="tagged", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE})
    assert client.list_tags(ResourceArn=model)["Tags"] == []


def test_a_model_keeps_members_that_the_platform_does_not_use(client: Any) -> None:
    network = {"SecurityGroupIds": ["sg-123"], "Subnets": ["subnet-123"]}
    client.create_model(ModelName="in-vpc", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE}, VpcConfig=network)
    assert client.describe_model(ModelName="in-vpc")["VpcConfig"] == network


def test_creation_times_are_timestamps_and_filter_lists(client: Any) -> None:
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    described = client.describe_endpoint(EndpointName="e")
    lists = (
        (client.list_models, "Models", described["CreationTime"]),
        (client.list_endpoint_configs, "EndpointConfigs", described["CreationTime"]),
        (client.list_endpoints, "Endpoints", described["CreationTime"]),
    )
    assert described["CreationTime"] <= described["LastModifiedTime"]
    for call, member, created in lists:
        assert isinstance(created, dt.datetime)
        (listed,) = call(CreationTimeAfter=LONG_AGO)[member]
        assert isinstance(listed["CreationTime"], dt.datetime)
        assert call(CreationTimeBefore=LONG_AGO)[member] == []
    assert client.list_endpoints(LastModifiedTimeBefore=LONG_AGO)["Endpoints"] == []


def test_name_filters_ignore_case(client: Any) -> None:
    client.create_endpoint(EndpointName="My-Endpoint", EndpointConfigName="c")
    client.create_endpoint(EndpointName="other", EndpointConfigName="c")
    (found,) = client.list_endpoints(NameContains="my-END")["Endpoints"]
    assert found["EndpointName"] == "My-Endpoint"


def two_variants(client: Any) -> None:
    variants = [{**VARIANT, "VariantName": name} for name in ("one", "two")]
    client.create_endpoint_config(EndpointConfigName="two", ProductionVariants=variants)
    client.create_endpoint(EndpointName="e", EndpointConfigName="two")


def described(platform: Platform, client: Any) -> list[tuple[str, float, int]]:
    found = platform.wait_for(client, "e", "InService")["ProductionVariants"]
    return [(variant["VariantName"], variant["CurrentWeight"], variant["CurrentInstanceCount"]) for variant in found]


def test_both_variants_change_together(platform: Platform) -> None:
    client = platform.client("sagemaker")
    make_config(client)
    two_variants(client)
    platform.wait_for(client, "e", "InService")
    changes = [
        {"VariantName": "one", "DesiredWeight": 1.5, "DesiredInstanceCount": 2},
        {"VariantName": "two", "DesiredWeight": 0.5},
    ]
    client.update_endpoint_weights_and_capacities(EndpointName="e", DesiredWeightsAndCapacities=changes)
    assert described(platform, client) == [("one", 1.5, 2), ("two", 0.5, 1)]


@pytest.mark.parametrize("names", [("one", "missing"), ("one", "one")])
def test_a_partly_invalid_change_changes_nothing(platform: Platform, names: tuple[str, ...]) -> None:
    client = platform.client("sagemaker")
    make_config(client)
    two_variants(client)
    before = described(platform, client)
    changes = [{"VariantName": name, "DesiredWeight": 9.0} for name in names]
    message = refusal(
        client.update_endpoint_weights_and_capacities, EndpointName="e", DesiredWeightsAndCapacities=changes
    )
    assert names[1] in message
    assert described(platform, client) == before


def test_a_change_of_an_unknown_endpoint_is_refused(client: Any) -> None:
    change = [{"VariantName": "AllTraffic", "DesiredWeight": 1.0}]
    message = refusal(
        client.update_endpoint_weights_and_capacities, EndpointName="no", DesiredWeightsAndCapacities=change
    )
    assert message == 'Could not find endpoint "arn:aws:sagemaker:us-east-1:123456789012:endpoint/no".'
    assert refusal(client.update_endpoint, EndpointName="no", EndpointConfigName="c") == message


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ({"MemorySizeInMB": 1500}, {}, "MemorySizeInMB of 1500; expected 1024, 2048"),
        ({"ProvisionedConcurrency": 6}, {}, "ProvisionedConcurrency of 6; expected at most MaxConcurrency, 5"),
        ({"MaxConcurrency": 201}, {}, "Member must have value less than or equal to 200"),
        ({}, {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://b/o"}}}, "cannot have an AsyncInference"),
        ({}, {"InstanceType": "ml.m5.large"}, "has a ServerlessConfig, and instances too"),
    ],
)
def test_a_serverless_variant_that_cannot_be_is_refused(
    client: Any, config: dict[str, int], more: dict[str, Any], message: str
) -> None:
    serverless = {"MemorySizeInMB": 1024, "MaxConcurrency": 5, **config}
    variant = {"VariantName": "v", "ModelName": "m", "ServerlessConfig": serverless}
    variant |= {name: value for name, value in more.items() if name == "InstanceType"}
    rest = {name: value for name, value in more.items() if name not in variant}
    call = client.create_endpoint_config
    assert message in refusal(call, EndpointConfigName="c", ProductionVariants=[variant], **rest)


def test_a_serverless_variant_keeps_its_config_and_has_no_instance_count(client: Any) -> None:
    serverless = {
        "VariantName": "v",
        "ModelName": "m",
        "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 5},
    }
    client.create_endpoint_config(EndpointConfigName="serverless", ProductionVariants=[serverless])
    (found,) = client.describe_endpoint_config(EndpointConfigName="serverless")["ProductionVariants"]
    assert found["ServerlessConfig"] == serverless["ServerlessConfig"]
    assert "InitialInstanceCount" not in found


def test_an_endpoint_may_outlive_its_configuration_and_be_updated_to_another(platform: Platform) -> None:
    client = platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    platform.wait_for(client, "e", "InService")
    client.delete_endpoint_config(EndpointConfigName="c")
    make_config(client, "c2", InitialVariantWeight=3.0)
    client.update_endpoint(EndpointName="e", EndpointConfigName="c2")
    found = platform.wait_for(client, "e", "InService")
    assert (found["EndpointConfigName"], found["ProductionVariants"][0]["CurrentWeight"]) == ("c2", 3.0)
