"""Types of resources with rules of their own."""

import json
from collections.abc import Iterator

import pytest

from headrace.platform.control.loops.experiments import Experiments
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE, running_platform

from .conftest import Stacks

POLICY = """
Resources:
  Policy:
    Type: AWS::IAM::ManagedPolicy
    Properties:
      PolicyDocument: {Version: "2012-10-17", Statement: [{Effect: Allow, Action: "s3:Get%s", Resource: "*"}]}
Outputs: {Arn: {Value: !Ref Policy}}
"""
PACKAGE = {
    "Resources": {
        "Group": {"Type": "AWS::SageMaker::ModelPackageGroup", "Properties": {"ModelPackageGroupName": "g"}},
        "Package": {
            "Type": "AWS::SageMaker::ModelPackage",
            "Properties": {
                "ModelPackageGroupName": {"Fn::Select": [1, {"Fn::Split": ["/", {"Ref": "Group"}]}]},
                "ModelApprovalStatus": "PendingManualApproval",
                "InferenceSpecification": {
                    "Containers": [{"Image": IMAGE}],
                    "SupportedContentTypes": ["application/json"],
                    "SupportedResponseMIMETypes": ["application/json"],
                },
            },
        },
    },
    "Outputs": {"Arn": {"Value": {"Ref": "Package"}}},
}
VARIANT = {
    "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]},
    "InfrastructureConfig": {
        "InfrastructureType": "RealTimeInference",
        "RealTimeInferenceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 1},
    },
}
EXPERIMENT = {
    "Resources": {
        "Model": {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ExecutionRoleArn": ROLE,
                "PrimaryContainer": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2"}},
            },
        },
        "Config": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                "ProductionVariants": [
                    {
                        "VariantName": "first",
                        "ModelName": VARIANT["ModelName"],
                        "InitialInstanceCount": 1,
                        "InstanceType": "ml.g5.2xlarge",
                    }
                ]
            },
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {"EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]}},
        },
        "Experiment": {
            "Type": "AWS::SageMaker::InferenceExperiment",
            "Properties": {
                "Type": "ShadowMode",
                "RoleArn": ROLE,
                "EndpointName": {"Fn::GetAtt": ["Endpoint", "EndpointName"]},
                "ModelVariants": [{"VariantName": "first", **VARIANT}, {"VariantName": "shadow", **VARIANT}],
                "ShadowModeConfig": {
                    "SourceModelVariantName": "first",
                    "ShadowModelVariants": [{"ShadowModelVariantName": "shadow", "SamplingPercentage": 50}],
                },
            },
        },
    },
    "Outputs": {"Name": {"Value": {"Ref": "Experiment"}}},
}

AROUND = """
Resources:
  Topic:
    Type: AWS::SNS::Topic
    Properties: {TopicName: around, DisplayName: %s, Tags: [{Key: k, Value: %s}]}
  Hook:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Topic, Protocol: http, Endpoint: "http://127.0.0.1:9/"}
  Policy:
    Type: AWS::S3::BucketPolicy
    Properties: {Bucket: b, PolicyDocument: {Version: "2012-10-17", Statement: []}}
  Images:
    Type: AWS::ECR::Repository
    Properties: {ImageTagMutability: MUTABLE, EmptyOnDelete: true, Tags: [{Key: k, Value: %s}]}
Outputs: {Uri: {Value: !GetAtt Images.RepositoryUri}}
"""


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with running_platform(
        has_stacks=True, also=lambda store, _: Experiments(store=store, aws_scope=AWS_SCOPE).run()
    ) as platform:
        yield Stacks(platform, platform.client("cloudformation"))


def output(stack: dict) -> str:
    (found,) = stack["Outputs"]
    return found["OutputValue"]


def test_a_managed_policy_gets_versions_and_keeps_its_arn(stacks: Stacks) -> None:
    iam, capabilities = stacks.platform.client("iam"), {"Capabilities": ["CAPABILITY_IAM"]}
    arn = output(stacks.create("policy", POLICY % 0, **capabilities))
    for number in range(1, 7):
        assert output(stacks.update("policy", POLICY % number, **capabilities)) == arn
    versions = iam.list_policy_versions(PolicyArn=arn)["Versions"]
    assert len(versions) == 5
    default = next(version["VersionId"] for version in versions if version["IsDefaultVersion"])
    document = iam.get_policy_version(PolicyArn=arn, VersionId=default)["PolicyVersion"]["Document"]
    assert (default, document["Statement"][0]["Action"]) == ("v7", "s3:Get6")
    assert stacks.delete("policy")["StackStatus"] == "DELETE_COMPLETE"
    assert not iam.list_policies(Scope="Local")["Policies"]


def test_a_model_package_is_approved_in_place_and_replaced_by_another_version(stacks: Stacks) -> None:
    sagemaker = stacks.platform.client("sagemaker")
    arn = output(stacks.create("package", json.dumps(PACKAGE)))
    assert arn.endswith(":model-package/g/1")
    approved = json.dumps(PACKAGE).replace("PendingManualApproval", "Approved")
    assert output(stacks.update("package", approved)) == arn
    assert sagemaker.describe_model_package(ModelPackageName=arn)["ModelApprovalStatus"] == "Approved"
    other = approved.replace('["application/json"], "Supp', '["text/csv"], "Supp')
    assert output(stacks.update("package", other)).endswith(":model-package/g/2")
    (package,) = sagemaker.list_model_packages(ModelPackageGroupName="g")["ModelPackageSummaryList"]
    assert package["ModelPackageVersion"] == 2
    assert stacks.delete("package")["StackStatus"] == "DELETE_COMPLETE"


def test_an_experiment_runs_changes_and_is_stopped_before_it_is_deleted(stacks: Stacks) -> None:
    sagemaker = stacks.platform.client("sagemaker")
    found = stacks.create("shadows", json.dumps(EXPERIMENT))
    assert found["StackStatus"] == "CREATE_COMPLETE", stacks.reason("shadows", "Experiment")
    name = output(found)
    assert sagemaker.describe_inference_experiment(Name=name)["Status"] == "Running"
    more = json.dumps(EXPERIMENT).replace('"SamplingPercentage": 50', '"SamplingPercentage": 80')
    assert output(stacks.update("shadows", more)) == name
    described = sagemaker.describe_inference_experiment(Name=name)
    assert described["ShadowModeConfig"]["ShadowModelVariants"][0]["SamplingPercentage"] == 80
    assert stacks.delete("shadows")["StackStatus"] == "DELETE_COMPLETE"
    assert not sagemaker.list_inference_experiments()["InferenceExperiments"]
    assert not sagemaker.list_endpoints()["Endpoints"]


def test_topics_subscriptions_and_repositories_are_changed_in_place(stacks: Stacks) -> None:
    sns, ecr = stacks.platform.client("sns"), stacks.platform.client("ecr")
    uri = output(stacks.create("around", AROUND % ("a", "1", "1")))
    (repository,) = ecr.describe_repositories()["repositories"]
    (topic,) = sns.list_topics()["Topics"]
    (subscription,) = sns.list_subscriptions_by_topic(**topic)["Subscriptions"]
    assert (repository["repositoryUri"], subscription["SubscriptionArn"]) == (uri, "PendingConfirmation")
    assert output(stacks.update("around", AROUND % ("b", "2", "2"))) == uri
    assert sns.get_topic_attributes(**topic)["Attributes"]["DisplayName"] == "b"
    tags = sns.list_tags_for_resource(ResourceArn=topic["TopicArn"])["Tags"]
    assert (
        tags[0]["Value"]
        == ecr.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"][0]["Value"]
        == "2"
    )
    assert stacks.delete("around")["StackStatus"] == "DELETE_COMPLETE"
    assert ecr.describe_repositories()["repositories"] == sns.list_topics()["Topics"] == []
