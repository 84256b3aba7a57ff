"""Search, called with boto3: which resources an expression finds, in which order and pages."""

from typing import Any

import pytest

from tests.platform.control.calls import CONTAINER, refusal
from tests.platform.control.support import ROLE, Platform

TAGS = [{"Key": "team", "Value": "blue"}]
SPECIFICATION = {
    "Containers": [CONTAINER],
    "SupportedContentTypes": ["application/json"],
    "SupportedResponseMIMETypes": ["application/json"],
}


@pytest.fixture
def client(still_platform: Platform) -> Any:
    found = still_platform.client("sagemaker")
    for name in ("a", "b"):
        found.create_model(ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=CONTAINER, Tags=TAGS[: name == "b"])
    found.create_model_package_group(ModelPackageGroupName="g")
    for status in ("Approved", "Rejected", "Approved"):
        found.create_model_package(
            ModelPackageGroupName="g",
            InferenceSpecification=SPECIFICATION,
            ModelApprovalStatus=status,
            CustomerMetadataProperties={"stage": status},
        )
    content = '{"model_overview": {"model_id": "arn:m"}, "model_package_details": {"model_package_group_name": "g"}}'
    found.create_model_card(ModelCardName="card", Content=content, ModelCardStatus="Draft")
    return found


def condition(name: str, value: str | None = None, operator: str | None = None) -> dict[str, str]:
    given = {"Name": name, "Value": value, "Operator": operator}
    return {key: text for key, text in given.items() if text is not None}


def search(client: Any, resource: str, *filters: dict[str, str], **more: Any) -> list[Any]:
    expression = {"SearchExpression": {"Filters": list(filters), **more}} if filters else {}
    pages = client.get_paginator("search").paginate(Resource=resource, SortBy="CreationTime", **expression)
    key = {"ModelPackage": "ModelPackageVersion"}.get(resource, f"{resource}Name")
    results = [result[resource] for page in pages for result in page["Results"]]
    return [result.get("Model", result)[key] for result in results]


def test_an_expression_finds_what_fits(client: Any) -> None:
    approved = condition("ModelApprovalStatus", "Approved")
    cases: list[tuple[list[Any], list[Any]]] = [
        (search(client, "Model"), ["b", "a"]),
        (search(client, "Model", condition("ModelName", "a")), ["a"]),
        (search(client, "Model", condition("Model.ModelName", "b")), ["b"]),
        (search(client, "Model", condition("Tags.team", "blue")), ["b"]),
        (search(client, "Model", condition("Tags.team", operator="NotExists")), ["a"]),
        (search(client, "Model", condition("ExecutionRoleArn", ":role/", "Contains")), ["b", "a"]),
        (search(client, "Model", condition("CreationTime", "2001-01-01T00:00:00", "GreaterThan")), ["b", "a"]),
        (search(client, "Model", condition("ModelName", "a,c", "In")), ["a"]),
        (search(client, "ModelPackage", approved), [3, 1]),
        (search(client, "ModelPackage", approved, condition("ModelPackageVersion", "1", "GreaterThan")), [3]),
        (search(client, "ModelPackage", condition("ModelPackageVersion", "2"), approved, Operator="Or"), [3, 2, 1]),
        (search(client, "ModelPackage", condition("CustomerMetadataProperties.stage", "Rejected")), [2]),
        (search(client, "ModelPackage", condition("ModelApprovalStatus", "Approved", "NotEquals")), [2]),
        (search(client, "ModelPackageGroup", condition("ModelPackageGroupName", "g")), ["g"]),
        (search(client, "ModelCard", condition("ModelId", "arn:m")), ["card"]),
        (search(client, "ModelCard", condition("ModelPackageGroupName", "other")), []),
        (search(client, "Endpoint"), []),
        (search(client, "TrainingJob", condition("ModelArtifacts.S3ModelArtifacts", "s3://b/m")), []),
    ]
    assert [found for found, _ in cases] == [expected for _, expected in cases]


def test_results_are_pages_with_the_members_of_the_resource(client: Any) -> None:
    first = client.search(Resource="Model", SortBy="ModelName", SortOrder="Ascending", MaxResults=1)
    assert first["Results"][0]["Model"]["Model"]["PrimaryContainer"] == CONTAINER
    second = client.search(Resource="Model", SortBy="ModelName", SortOrder="Ascending", NextToken=first["NextToken"])
    assert [result["Model"]["Model"]["Tags"] for result in second["Results"]] == [TAGS]
    assert "NextToken" not in second
    wrong = {"Filters": [condition("CreationTime", "soon", "LessThan")]}
    assert "expected a number or a time" in refusal(client.search, Resource="Model", SearchExpression=wrong)
    missing = {"Filters": [condition("ModelName", operator="Contains")]}
    assert "has no Value" in refusal(client.search, Resource="Model", SearchExpression=missing)
