"""JumpStart's public hub, and the licences of its models, called with boto3."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.jumpstart.catalogue import shipped_rows
from tests.platform.control.calls import refusal
from tests.platform.control.support import IMAGE, ROLE, Platform

HUB = {"HubName": "SageMakerPublicHub", "HubContentType": "Model"}
GATED = "meta-textgeneration-llama-2-7b-f"


def test_the_hub_lists_and_describes_the_models_of_the_catalogue(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    assert client.list_hubs()["HubSummaries"][0]["HubArn"] == client.describe_hub(HubName=HUB["HubName"])["HubArn"]
    names: list[str] = []
    more: dict[str, Any] = {}
    while more is not None:
        page = client.list_hub_contents(**HUB, MaxResults=100, **more)
        names += [summary["HubContentName"] for summary in page["HubContentSummaries"]]
        more = {"NextToken": page["NextToken"]} if "NextToken" in page else None
    assert names == sorted(shipped_rows())
    assert client.list_hub_contents(**{**HUB, "HubContentType": "Notebook"})["HubContentSummaries"] == []
    versions = client.list_hub_content_versions(**HUB, HubContentName=GATED, MinVersion="2.0.0", SortOrder="Descending")
    listed = [summary["HubContentVersion"] for summary in versions["HubContentSummaries"]]
    assert (listed[0], listed[-1]) == (shipped_rows()[GATED].version, shipped_rows()[GATED].versions[0])
    found = client.describe_hub_content(**HUB, HubContentName=GATED)
    assert found["HubContentArn"].endswith(f":aws:hub-content/SageMakerPublicHub/Model/{GATED}/{listed[0]}")
    document = json.loads(found["HubContentDocument"])
    assert document["HostingArtifactUri"].startswith("s3://jumpstart-private-cache-prod-us-east-1/")
    assert document["HostingEulaUri"].endswith(f"{GATED}.txt")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({**HUB, "HubName": "mine", "HubContentName": "x"}, "Could not find hub mine. Headrace has no private hubs"),
        ({**HUB, "HubContentName": "x"}, "`headrace jumpstart add x --model MODEL` adds it"),
        ({**HUB, "HubContentName": GATED, "HubContentVersion": "0.1.0"}, "Could not find version 0.1.0"),
    ],
)
def test_what_the_hub_lacks_is_named(still_platform: Platform, params: dict[str, Any], message: str) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(client.exceptions.ResourceNotFound, match=message):
        client.describe_hub_content(**params)


def test_a_model_of_the_marketplace_is_refused_as_without_a_subscription(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    found = client.describe_hub_content(**HUB, HubContentName="cohere-gpt-medium")
    package = json.loads(found["HubContentDocument"])["HostingModelPackageArn"]
    model = {"ModelName": "sold", "ExecutionRoleArn": ROLE, "PrimaryContainer": {"ModelPackageName": package}}
    assert "is not subscribed to the Marketplace listing" in refusal(client.create_model, **model)
    assert "is not subscribed" in refusal(client.describe_model_package, ModelPackageName=package)


def test_private_hubs_are_refused_by_name(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(ClientError, match="CreateHub is not supported by Headrace"):
        client.create_hub(HubName="mine", HubDescription="x")


def test_a_gated_model_needs_the_consent_to_its_licence(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    document = json.loads(client.describe_hub_content(**HUB, HubContentName=GATED)["HubContentDocument"])
    data = {"S3Uri": document["HostingArtifactUri"], "S3DataType": "S3Prefix", "CompressionType": "None"}

    def create(name: str, **more: Any) -> Any:
        source = {"S3DataSource": {**data, **more}}
        return {
            "ModelName": name,
            "ExecutionRoleArn": ROLE,
            "PrimaryContainer": {"Image": IMAGE, "ModelDataSource": source},
        }

    for more in ({}, {"ModelAccessConfig": {"AcceptEula": False}}):
        assert refusal(client.create_model, **create("gated", **more)).startswith(
            "The AcceptEula value must be explicitly defined as True in order to accept the end-user license "
            f'agreement (EULA) that this "{data["S3Uri"]}" model requires.'
        )
    accepted = {"ModelAccessConfig": {"AcceptEula": True}}
    client.create_model(**create("accepted", **accepted))
    stored = client.describe_model(ModelName="accepted")["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert stored == {**data, **accepted}
