"""The model registry, called with boto3: groups, versions, unversioned packages, and models made from them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.model.definitions import MODEL, containers_of
from headrace.platform.control.model.packages import MODEL_PACKAGE, MODEL_PACKAGE_GROUP
from tests.platform.control.calls import CONTAINER, refusal
from tests.platform.control.support import IMAGE, ROLE, Platform

ARN = "arn:aws:sagemaker:us-east-1:123456789012:model-package"
SPECIFICATION = {
    "Containers": [{**CONTAINER, "Framework": "PYTORCH"}],
    "SupportedContentTypes": ["application/json"],
    "SupportedResponseMIMETypes": ["application/json"],
}
TYPED = {
    **SPECIFICATION,
    "SupportedTransformInstanceTypes": ["ml.m5.large"],
    "SupportedRealtimeInferenceInstanceTypes": ["ml.m5.large"],
}
CARD = {"ModelCardContent": '{"model_overview": {}}', "ModelCardStatus": "Draft"}


@pytest.fixture
def client(still_platform: Platform) -> Any:
    """A client of a platform with the group `Group`."""
    found = still_platform.client("sagemaker")
    found.create_model_package_group(ModelPackageGroupName="Group", Tags=[{"Key": "team", "Value": "x"}])
    return found


def register(client: Any, **more: Any) -> str:
    params = {"ModelPackageGroupName": "Group", "InferenceSpecification": SPECIFICATION, **more}
    arn: str = client.create_model_package(**params)["ModelPackageArn"]
    return arn


def test_a_group_is_described_tagged_listed_and_deleted_once_empty(client: Any) -> None:
    found = client.describe_model_package_group(ModelPackageGroupName=f"{ARN}-group/group")
    assert (found["ModelPackageGroupName"], found["ModelPackageGroupArn"]) == ("Group", f"{ARN}-group/group")
    assert found["ModelPackageGroupStatus"] == "Completed"
    assert found["CreatedBy"]["IamIdentity"]["Arn"].endswith(":assumed-role/HeadraceRole/headrace")
    assert client.list_tags(ResourceArn=f"{ARN}-group/group")["Tags"] == [{"Key": "team", "Value": "x"}]
    client.create_model_package_group(ModelPackageGroupName="other", ModelPackageGroupDescription="d")
    listed = client.list_model_package_groups(NameContains="gr", CrossAccountFilterOption="SameAccount")
    assert [group["ModelPackageGroupName"] for group in listed["ModelPackageGroupSummaryList"]] == ["Group"]
    elsewhere = client.list_model_package_groups(CrossAccountFilterOption="CrossAccount")
    assert elsewhere["ModelPackageGroupSummaryList"] == []
    register(client)
    with pytest.raises(client.exceptions.ConflictException, match="still contains Model Packages"):
        client.delete_model_package_group(ModelPackageGroupName="Group")
    client.delete_model_package(ModelPackageName="group/1")
    client.delete_model_package_group(ModelPackageGroupName="group")
    absent = f"ModelPackageGroup {ARN}-group/group does not exist."
    for call in (client.describe_model_package_group, client.delete_model_package_group):
        assert refusal(call, ModelPackageGroupName="group") == absent
    assert refusal(client.list_model_packages, ModelPackageGroupName="group") == absent


def test_a_policy_is_a_record_of_its_group(client: Any) -> None:
    group = {"ModelPackageGroupName": "Group"}
    calls = (client.get_model_package_group_policy, client.delete_model_package_group_policy)
    for call in calls:
        assert refusal(call, **group) == f"Cannot find resource policy for: {ARN}-group/group"
        assert refusal(call, ModelPackageGroupName="g") == f"Cannot find Model Package Group: {ARN}-group/g"
    client.put_model_package_group_policy(**group, ResourcePolicy="{}")
    assert client.get_model_package_group_policy(**group)["ResourcePolicy"] == "{}"
    register(client)
    client.delete_model_package_group_policy(**group)
    assert register(client) == f"{ARN}/group/2"


def test_versions_count_on_are_approved_and_are_described_as_they_were_registered(client: Any) -> None:
    metadata = {"CustomerMetadataProperties": {"a": "1", "b": "2"}, "ModelCard": CARD, "Domain": "d"}
    arns = [register(client, **(metadata if number == 1 else {})) for number in range(3)]
    assert arns == [f"{ARN}/group/{number}" for number in (1, 2, 3)]
    client.delete_model_package(ModelPackageName=arns[2])
    assert register(client, ModelApprovalStatus="Approved") == f"{ARN}/group/4"
    found = client.describe_model_package(ModelPackageName=arns[1])
    assert {name: found[name] for name in metadata} == metadata
    assert ("ModelPackageName" in found, found["ModelPackageVersion"]) == (False, 2)
    assert (found["ModelApprovalStatus"], found["ModelPackageStatus"]) == ("PendingManualApproval", "Completed")
    assert found["InferenceSpecification"] == SPECIFICATION
    assert "LastModifiedTime" not in found
    additional = {**SPECIFICATION, "Name": "second"}
    client.update_model_package(
        ModelPackageArn=arns[1],
        ModelApprovalStatus="Approved",
        ApprovalDescription="good",
        CustomerMetadataProperties={"b": "3", "c": "4"},
        CustomerMetadataPropertiesToRemove=["a"],
        AdditionalInferenceSpecificationsToAdd=[additional],
    )
    changed = client.describe_model_package(ModelPackageName="Group/2", IncludedData="MetadataOnly")
    assert changed["CustomerMetadataProperties"] == {"b": "3", "c": "4"}
    assert (changed["ModelApprovalStatus"], changed["ApprovalDescription"]) == ("Approved", "good")
    assert (changed["AdditionalInferenceSpecifications"], changed["Domain"]) == ([additional], "d")
    assert changed["ModelCard"] == {"ModelCardStatus": "Draft"}
    assert changed["LastModifiedTime"] > changed["CreationTime"]
    assert "different names" in refusal(
        client.update_model_package, ModelPackageArn=arns[1], AdditionalInferenceSpecificationsToAdd=[additional]
    )


def test_packages_are_listed_by_type_group_and_approval_in_pages(client: Any) -> None:
    for number in range(3):
        register(client, **({"ModelApprovalStatus": "Approved"} if number == 1 else {}))
    client.create_model_package(ModelPackageName="single", InferenceSpecification=TYPED)

    def versions(**params: Any) -> list[Any]:
        found = client.list_model_packages(**params)["ModelPackageSummaryList"]
        return [summary.get("ModelPackageVersion", summary.get("ModelPackageName")) for summary in found]

    cases: list[tuple[dict[str, Any], list[Any]]] = [
        ({}, ["single"]),
        ({"ModelPackageType": "Both"}, ["single", 3, 2, 1]),
        ({"ModelPackageType": "Versioned", "NameContains": "1"}, []),
        (
            {"ModelPackageType": "Versioned", "NameContains": "oup", "SortBy": "Name", "SortOrder": "Ascending"},
            [1, 2, 3],
        ),
        ({"ModelPackageGroupName": f"{ARN}-group/group", "ModelApprovalStatus": "Approved"}, [2]),
    ]
    assert [versions(**params) for params, _ in cases] == [expected for _, expected in cases]
    pages = client.get_paginator("list_model_packages").paginate(
        ModelPackageGroupName="Group", PaginationConfig={"PageSize": 2}
    )
    assert [len(page["ModelPackageSummaryList"]) for page in pages] == [2, 1]
    found = client.batch_describe_model_package(ModelPackageArnList=[f"{ARN}/group/1", f"{ARN}/group/9"])
    assert found["ModelPackageSummaries"][f"{ARN}/group/1"]["InferenceSpecification"] == SPECIFICATION
    error = found["BatchDescribeModelPackageErrorMap"][f"{ARN}/group/9"]
    assert error["ErrorResponse"] == f"ModelPackage {ARN}/group/9 does not exist."


def test_a_repeated_call_creates_one_package(client: Any, still_platform: Platform) -> None:
    for params in (
        {"ModelPackageGroupName": "Group", "InferenceSpecification": SPECIFICATION},
        {"ModelPackageName": "single", "InferenceSpecification": TYPED},
    ):
        arns = {client.create_model_package(**params, ClientToken="t")["ModelPackageArn"] for _ in range(2)}
        assert len(arns) == 1
    assert still_platform.store.count(MODEL_PACKAGE) == 2
    assert "Model Package already exists: " in refusal(
        client.create_model_package, ModelPackageName="Single", InferenceSpecification=TYPED
    )
    # A platform that was killed between its two writes has left the version 2.
    left = still_platform.store.get(MODEL_PACKAGE, "Group/1")
    assert left is not None
    still_platform.store.create(MODEL_PACKAGE, "Group/2", spec=left.spec)
    assert register(client) == f"{ARN}/group/3"


def test_calls_at_once_get_consecutive_versions(client: Any) -> None:
    client.create_model_package_group(ModelPackageGroupName="Many")
    with ThreadPoolExecutor(4) as calls:
        made = [calls.submit(register, client, ModelPackageGroupName="Many") for _ in range(6)]
    assert sorted(call.result() for call in made) == [f"{ARN}/many/{version}" for version in range(1, 7)]


def test_a_version_whose_group_is_deleted_meanwhile_is_not_left_behind(client: Any, still_platform: Platform) -> None:
    store = still_platform.store

    def delete_group() -> None:
        if store.count(MODEL_PACKAGE) and (group := store.get(MODEL_PACKAGE_GROUP, "Group")) is not None:
            store.remove(group)

    unsubscribe = store.subscribe(delete_group)
    assert "does not exist" in refusal(register, client=client)
    unsubscribe()
    assert store.count(MODEL_PACKAGE) == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ModelPackageName": "p"}, "Cannot determine which one to use"),
        ({"ModelPackageGroupName": "g"}, f"ModelPackageGroup {ARN}-group/g does not exist."),
        ({"ModelPackageGroupName": "arn:aws:sagemaker:us-east-1:1:model-package-group/g"}, "failed to satisfy"),
        ({"ModelPackageGroupName": f"{ARN}/group"}, f"ModelPackageGroup {ARN}/group does not exist."),
        ({"Tags": [{"Key": "a", "Value": "b"}]}, "has the tags of its group"),
        ({"CertifyForMarketplace": True}, "CertifyForMarketplace is not supported by Headrace"),
        ({"InferenceSpecification": {"Containers": [{"ModelDataUrl": "s3://b/k.tar.gz"}]}}, "has no Image"),
    ],
)
def test_a_package_that_is_not_one_is_refused(client: Any, params: dict[str, Any], message: str) -> None:
    assert message in refusal(register, client=client, **params)


def test_an_unversioned_package_needs_what_versions_may_leave_out(client: Any) -> None:
    create, named = client.create_model_package, {"ModelPackageName": "p"}
    assert refusal(create) == "Missing ARN. Give ModelPackageName or ModelPackageGroupName."
    assert "SupportedTransformInstanceTypes" in refusal(create, **named, InferenceSpecification=SPECIFICATION)
    assert "cannot have a SourceUri" in refusal(create, **named, InferenceSpecification=TYPED, SourceUri="s3://b/k")
    arn = create(**named, InferenceSpecification=TYPED, ModelApprovalStatus="PendingManualApproval")["ModelPackageArn"]
    assert "ModelApprovalStatus" not in client.describe_model_package(ModelPackageName="p")
    assert "does not apply" in refusal(client.update_model_package, ModelPackageArn=arn, ModelApprovalStatus="Approved")
    client.create_model(ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer={"ModelPackageName": "p"})


def test_a_model_has_the_container_of_its_approved_package(client: Any, still_platform: Platform) -> None:
    second = {"Image": IMAGE, "Environment": {"B": "2"}}
    additional = [
        {"Name": "second", "Containers": [second]},
        {"Name": "pipeline", "Containers": [second, CONTAINER]},
    ]
    arn = register(client, AdditionalInferenceSpecifications=additional)
    container = {"ModelPackageName": arn, "Environment": {"OWN": "1"}}
    pending = refusal(client.create_model, ModelName="m", PrimaryContainer=container)
    assert pending.startswith(f"ModelPackage {arn} has the ModelApprovalStatus PendingManualApproval")
    client.update_model_package(ModelPackageArn=arn, ModelApprovalStatus="Approved")
    client.create_model(ModelName="m", PrimaryContainer=container)
    for name, specification in (("n", "second"), ("pipeline", "pipeline")):
        packed = {"ModelPackageName": "Group/1", "InferenceSpecificationName": specification}
        client.create_model(ModelName=name, Containers=[packed])
    client.delete_model_package(ModelPackageName=arn)
    assert client.describe_model(ModelName="m")["PrimaryContainer"] == container
    served = {
        "m": [{**CONTAINER, "Environment": {**CONTAINER["Environment"], "OWN": "1"}}],
        "n": [second],
        "pipeline": [second, CONTAINER],
    }
    for name, expected in served.items():
        model = still_platform.store.get(MODEL, name)
        assert model is not None
        assert containers_of(model.spec.deployed()) == expected


@pytest.mark.parametrize(
    ("specification", "container", "message"),
    [
        (None, {}, "has no inference specification."),
        (SPECIFICATION, {"InferenceSpecificationName": "other"}, "has no inference specification other"),
        (SPECIFICATION, {"Image": IMAGE}, "has a ModelPackageName, and Image too"),
        ({"Containers": [{**CONTAINER, "ProductId": "p"}]}, {}, "Marketplace products are not supported"),
        (
            {
                "Containers": [
                    {
                        "Image": IMAGE,
                        "ModelDataSource": {
                            "S3DataSource": {
                                "S3Uri": "s3://b/p/",
                                "S3DataType": "S3Prefix",
                                "CompressionType": "None",
                                "ManifestS3Uri": "s3://b/m",
                            }
                        },
                    }
                ]
            },
            {},
            "ManifestS3Uri is not supported by Headrace",
        ),
    ],
)
def test_a_package_that_cannot_be_served_makes_no_model(
    client: Any, specification: dict[str, Any] | None, container: dict[str, Any], message: str
) -> None:
    given = {} if specification is None else {"InferenceSpecification": specification}
    arn = client.create_model_package(ModelPackageGroupName="Group", ModelApprovalStatus="Approved", **given)
    container = {"ModelPackageName": arn["ModelPackageArn"], **container}
    assert message in refusal(client.create_model, ModelName="m", PrimaryContainer=container)


def test_packages_that_are_not_there_are_named(client: Any) -> None:
    for call, params in (
        (client.describe_model_package, {"ModelPackageName": "Group/1"}),
        (client.delete_model_package, {"ModelPackageName": "Group/1"}),
        (client.update_model_package, {"ModelPackageArn": f"{ARN}/group/1"}),
        (client.create_model, {"ModelName": "m", "PrimaryContainer": {"ModelPackageName": "Group/1"}}),
    ):
        assert refusal(call, **params) == f"ModelPackage {ARN}/group/1 does not exist."
    with pytest.raises(ClientError, match="already exists"):
        client.create_model_package_group(ModelPackageGroupName="group")


def test_a_model_card_has_versions_with_a_status(client: Any) -> None:
    card = {"ModelCardName": "Card"}
    arn = client.create_model_card(**card, Content="{}", ModelCardStatus="Draft")["ModelCardArn"]
    assert arn.endswith(":model-card/card")
    with pytest.raises(client.exceptions.ConflictException, match="already exists"):
        client.create_model_card(ModelCardName="card", Content="{}", ModelCardStatus="Draft")
    client.update_model_card(ModelCardName=arn, Content='{"a": 1}')
    client.update_model_card(**card, ModelCardStatus="Approved")
    assert "cannot update both" in refusal(client.update_model_card, **card, Content="{}", ModelCardStatus="Draft")
    assert "no JSON object" in refusal(client.update_model_card, **card, Content="[]")
    newest = client.describe_model_card(**card)
    assert (newest["ModelCardVersion"], newest["Content"], newest["ModelCardStatus"]) == (2, '{"a": 1}', "Approved")
    assert client.describe_model_card(**card, IncludedData="MetadataOnly")["Content"] == ""
    first = client.describe_model_card(**card, ModelCardVersion=1)
    assert (first["Content"], first["ModelCardStatus"]) == ("{}", "Draft")
    page = client.list_model_card_versions(**card, MaxResults=1)
    rest = client.list_model_card_versions(**card, MaxResults=1, NextToken=page["NextToken"])
    numbers = [found["ModelCardVersionSummaryList"][0]["ModelCardVersion"] for found in (page, rest)]
    assert numbers == [2, 1]
    assert "NextToken" not in rest
    listed = client.list_model_cards(NameContains="car", ModelCardStatus="Approved")["ModelCardSummaries"]
    assert [found["ModelCardName"] for found in listed] == ["Card"]
    assert client.list_model_cards(ModelCardStatus="Draft")["ModelCardSummaries"] == []
    client.delete_model_card(**card)
    for call, params in ((client.describe_model_card, card), (client.list_model_card_versions, card)):
        with pytest.raises(client.exceptions.ResourceNotFound, match="Modelcard with name Card does not exist"):
            call(**params)
