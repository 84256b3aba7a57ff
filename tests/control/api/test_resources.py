"""Models, configurations, tags, identity and what is not there, as boto3 sees them."""

from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from headrace.platform.operations import OPERATIONS
from headrace.wire.aws import services
from tests.control.support import IMAGE, ROLE, Platform
from tests.waiting import WAIT_S

CONTAINER = {"Image": IMAGE, "ModelDataUrl": "s3://b/model.tar.gz", "Environment": {"A": "1"}}


def make_model(client: Any, name: str = "m", **more: Any) -> str:
    arn: str = client.create_model(ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=CONTAINER, **more)[
        "ModelArn"
    ]
    return arn


def refusal(call: Any, **params: Any) -> str:
    """Message of a ValidationException."""
    with pytest.raises(ClientError) as caught:
        call(**params)
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    message: str = caught.value.response["Error"]["Message"]
    return message


def test_a_model_is_what_it_was_made_of(still_platform: Platform) -> None:
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
        ({"Containers": [CONTAINER, CONTAINER]}, "2 containers"),
        ({"PrimaryContainer": {"ModelDataUrl": "s3://b/k.tar.gz"}}, "has no Image"),
        ({"PrimaryContainer": {**CONTAINER, "Mode": "MultiModel"}}, "MultiModel is not supported"),
        ({"PrimaryContainer": {"ModelPackageName": "p"}}, "Model packages"),
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
    assert [one["ModelName"] for one in found] == ["m1", "m2"]
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


def test_tags_are_added_listed_and_taken_away(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    arn = make_model(client, "My-Model", Tags=[{"Key": "a", "Value": "1"}])
    added = client.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])["Tags"]
    assert added == [{"Key": "a", "Value": "3"}, {"Key": "b", "Value": "2"}]
    client.delete_tags(ResourceArn=arn, TagKeys=["a", "c"])
    assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    assert "Could not find" in refusal(client.list_tags, ResourceArn=arn + "x")
    many = [{"Key": f"k{number}", "Value": ""} for number in range(50)]
    assert "at most 50" in refusal(client.add_tags, ResourceArn=arn, Tags=many)


def test_every_caller_is_an_assumed_role(still_platform: Platform) -> None:
    identity = still_platform.client("sts").get_caller_identity()
    assert identity["Account"] == "123456789012"
    assert identity["Arn"] == "arn:aws:sts::123456789012:assumed-role/HeadraceRole/headrace"
    iam = still_platform.client("iam")
    assert iam.get_role(RoleName="HeadraceRole")["Role"]["Arn"] == ROLE
    simulated = iam.simulate_principal_policy(
        PolicySourceArn=ROLE, ActionNames=["sagemaker:CreateModel", "s3:GetObject"]
    )
    decisions = [(one["EvalActionName"], one["EvalDecision"]) for one in simulated["EvaluationResults"]]
    assert decisions == [("sagemaker:CreateModel", "allowed"), ("s3:GetObject", "allowed")]
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.get_user(UserName="alice")


def test_unsupported_operations_are_refused_by_name(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(ClientError, match="CreateTrainingPlan is not supported by Headrace"):
        client.create_training_plan(TrainingPlanName="p", TrainingPlanOfferingId="o")
    body = b"no JSON at all"
    target = {"X-Amz-Target": "SageMaker.CreateTrainingJob", "Content-Type": "application/x-amz-json-1.1"}
    answer = httpx.post(still_platform.url, content=body, headers=target, timeout=WAIT_S)
    assert (answer.status_code, "CreateTrainingJob is not supported" in answer.text) == (400, True)
    with pytest.raises(ClientError, match="Could not find inference component"):
        client.delete_inference_component(InferenceComponentName="i")


def test_all_operations_that_are_answered_are_in_the_models() -> None:
    assert all(operation in services.operation_names(service) for service, operation in OPERATIONS)


def test_a_body_without_end_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    environment = {f"k{number}": "x" * 1000 for number in range(100)}
    container = {**CONTAINER, "Environment": environment}
    with pytest.raises(ClientError) as caught:
        client.create_model(ModelName="m", Containers=[container] * 45)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
