"""Stacks by boto3: create, update, replace, roll back, delete, change sets and exports."""

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.pages import DOCS, steps_of
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE

from .conftest import Stacks

HOSTING = f"""
Description: An endpoint that scales
Parameters:
  Most: {{Type: Number, Default: 2}}
  Step: {{Type: String, Default: one, NoEcho: true}}
Resources:
  Model:
    Type: AWS::SageMaker::Model
    Properties:
      ExecutionRoleArn: {ROLE}
      PrimaryContainer: {{Image: "{IMAGE}", Environment: {{HF_MODEL_ID: smollm2, STEP: !Ref Step}}}}
  Config:
    Type: AWS::SageMaker::EndpointConfig
    Properties:
      ProductionVariants:
        - VariantName: AllTraffic
          ModelName: !GetAtt Model.ModelName
          InitialInstanceCount: "1"
          InstanceType: ml.g5.2xlarge
  Endpoint:
    Type: AWS::SageMaker::Endpoint
    Properties:
      EndpointName: !Sub "${{AWS::StackName}}-endpoint"
      EndpointConfigName: !GetAtt Config.EndpointConfigName
      Tags: [{{Key: own, Value: a}}]
  Target:
    Type: AWS::ApplicationAutoScaling::ScalableTarget
    Properties:
      MinCapacity: 1
      MaxCapacity: !Ref Most
      ResourceId: !Sub "endpoint/${{Endpoint.EndpointName}}/variant/AllTraffic"
      ScalableDimension: sagemaker:variant:DesiredInstanceCount
      ServiceNamespace: sagemaker
      ScheduledActions:
        - ScheduledActionName: night
          Schedule: cron(0 22 * * ? *)
          ScalableTargetAction: {{MinCapacity: 1}}
Outputs:
  Name: {{Value: !GetAtt Endpoint.EndpointName, Export: {{Name: !Sub "${{AWS::StackName}}:name"}}}}
"""
ROLES = json.dumps(
    {
        "Resources": {
            "Role": {
                "Type": "AWS::IAM::Role",
                "Properties": {
                    "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []},
                    "ManagedPolicyArns": ["arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"],
                    "Policies": [
                        {"PolicyName": "own", "PolicyDocument": {"Version": "2012-10-17", "Statement": []}},
                    ],
                },
            },
            "Policy": {
                "Type": "AWS::IAM::Policy",
                "Properties": {
                    "PolicyName": "inline",
                    "Roles": [{"Ref": "Role"}],
                    "PolicyDocument": {"Version": "2012-10-17", "Statement": []},
                },
            },
            "Managed": {
                "Type": "AWS::IAM::ManagedPolicy",
                "Properties": {
                    "Roles": [{"Ref": "Role"}],
                    "PolicyDocument": {"Version": "2012-10-17", "Statement": []},
                },
            },
            "Log": {"Type": "AWS::Logs::LogGroup", "Properties": {"RetentionInDays": 7}},
            "Dashboard": {"Type": "AWS::CloudWatch::Dashboard", "Properties": {"DashboardBody": '{"widgets": []}'}},
            "Group": {"Type": "AWS::SageMaker::ModelPackageGroup"},
            "Topic": {"Type": "AWS::SNS::Topic"},
        },
        "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Role", "Arn"]}}},
    }
)


def alarms(**thresholds: object) -> str:
    """A template with an alarm for each name."""
    return json.dumps(
        {
            "Resources": {
                name: {
                    "Type": "AWS::CloudWatch::Alarm",
                    "Properties": {
                        "AlarmName": f"alarm-{name}",
                        "Namespace": "n",
                        "MetricName": "m",
                        "Statistic": "Sum",
                        "Period": 60,
                        "EvaluationPeriods": 1,
                        "ComparisonOperator": "GreaterThanThreshold",
                        "Threshold": threshold,
                    },
                }
                for name, threshold in thresholds.items()
            }
        }
    )


def refusal(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def test_an_endpoint_is_created_updated_without_interruption_and_deleted_in_reverse_order(stacks: Stacks) -> None:
    client, sagemaker = stacks.client, stacks.platform.client("sagemaker")
    found = stacks.create("host", HOSTING, Tags=[{"Key": "team", "Value": "x"}])
    assert (found["StackStatus"], found["Description"]) == ("CREATE_COMPLETE", "An endpoint that scales")
    assert found["Parameters"] == [
        {"ParameterKey": "Most", "ParameterValue": "2"},
        {"ParameterKey": "Step", "ParameterValue": "****"},
    ]
    assert found["Outputs"] == [{"OutputKey": "Name", "OutputValue": "host-endpoint", "ExportName": "host:name"}]
    endpoint = sagemaker.describe_endpoint(EndpointName="host-endpoint")
    assert endpoint["EndpointStatus"] == "InService"
    tags = sagemaker.list_tags(ResourceArn=endpoint["EndpointArn"])["Tags"]
    assert tags == [{"Key": "own", "Value": "a"}, {"Key": "team", "Value": "x"}]
    made = [name for name, state in stacks.events("host") if state == "CREATE_COMPLETE"]
    assert made == ["Model", "Config", "Endpoint", "Target", "host"]
    scaling = stacks.platform.client("application-autoscaling")
    (action,) = scaling.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    assert action["ScheduledActionName"] == "night"

    parameters = [{"ParameterKey": "Step", "ParameterValue": "two"}, {"ParameterKey": "Most", "ParameterValue": "3"}]
    found = stacks.update("host", HOSTING.replace("key: own", "key: own"), Parameters=parameters)
    assert found["StackStatus"] == "UPDATE_COMPLETE"
    (model,) = sagemaker.list_models()["Models"]  # the old one was deleted
    described = sagemaker.describe_model(ModelName=model["ModelName"])
    assert described["PrimaryContainer"]["Environment"]["STEP"] == "two"
    assert sagemaker.describe_endpoint(EndpointName="host-endpoint")["CreationTime"] == endpoint["CreationTime"]
    (target,) = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert target["MaxCapacity"] == 3
    same = [{"ParameterKey": name, "UsePreviousValue": True} for name in ("Step", "Most")]
    answer = refusal(client.update_stack, StackName="host", UsePreviousTemplate=True, Parameters=same)
    assert answer == "ValidationError: No updates are to be performed."

    importing = 'Resources: {M: {Type: AWS::CDK::Metadata}}\nOutputs: {O: {Value: !ImportValue "host:name"}}'
    assert stacks.create("user", importing)["Outputs"] == [{"OutputKey": "O", "OutputValue": "host-endpoint"}]
    assert client.list_imports(ExportName="host:name")["Imports"] == ["user"]
    assert "Export host:name cannot be deleted as it is in use by user" in refusal(
        client.delete_stack, StackName="host"
    )
    stacks.delete("user")
    deleted = stacks.delete("host")
    assert (deleted["StackStatus"], "DeletionTime" in deleted) == ("DELETE_COMPLETE", True)
    gone = [name for name, state in stacks.events(deleted["StackId"]) if state == "DELETE_COMPLETE"]
    assert gone[-5:] == ["Target", "Endpoint", "Config", "Model", "host"]
    assert not sagemaker.list_models()["Models"]
    assert not sagemaker.list_endpoints()["Endpoints"]
    assert "Stack with id host does not exist" in refusal(client.describe_stacks, StackName="host")
    assert deleted["StackId"] in [stack["StackId"] for stack in client.list_stacks()["StackSummaries"]]


def test_a_failed_create_is_rolled_back_and_a_failed_update_returns_to_what_was_there(stacks: Stacks) -> None:
    cloudwatch = stacks.platform.client("cloudwatch")

    def thresholds() -> dict[str, float]:
        found = cloudwatch.describe_alarms(AlarmNamePrefix="alarm-")["MetricAlarms"]
        return {alarm["AlarmName"]: alarm["Threshold"] for alarm in found}

    refused = alarms(a=1, b=2).replace('"Period": 60', '"Period": 7', 1)
    found = stacks.create("broken", refused)
    assert found["StackStatus"] == "ROLLBACK_COMPLETE"
    assert "Period" in stacks.reason("broken", "a")
    assert not thresholds()
    assert "is in ROLLBACK_COMPLETE state" in refusal(
        stacks.client.update_stack, StackName="broken", TemplateBody=refused
    )
    assert stacks.create("kept", refused, DisableRollback=True)["StackStatus"] == "CREATE_FAILED"
    arn = stacks.client.create_stack(StackName="never", TemplateBody=refused, OnFailure="DELETE")["StackId"]
    assert stacks.settled(arn)["StackStatus"] == "DELETE_COMPLETE"
    for name in ("broken", "kept"):
        stacks.delete(name)

    assert stacks.create("good", alarms(a=1, b=2))["StackStatus"] == "CREATE_COMPLETE"
    # b depends on nothing: a is updated, c is created and b removed, or not begun, before d fails
    after = json.loads(alarms(a=9, c=3, d=4))
    after["Resources"]["d"]["DependsOn"] = ["a", "c"]
    after["Resources"]["d"]["Properties"]["Period"] = 7
    found = stacks.update("good", json.dumps(after))
    assert found["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert thresholds() == {"alarm-a": 1, "alarm-b": 2}
    assert {name for name, state in stacks.events("good") if state == "DELETE_COMPLETE"} == {"c", "d"}
    stack = stacks.client.describe_stack_resources(StackName="good")["StackResources"]
    assert {resource["LogicalResourceId"] for resource in stack} == {"a", "b"}

    taken = stacks.create("taken", alarms(a=5))  # the alarm of another stack, which is left as it is
    assert taken["StackStatus"] == "ROLLBACK_COMPLETE"
    assert stacks.reason("taken", "a") == "alarm-a already exists"
    assert thresholds()["alarm-a"] == 1
    renamed = alarms(a=1, b=2).replace("GreaterThanThreshold", "LessThanThreshold").replace("alarm-b", "alarm-z")
    assert stacks.update("good", renamed)["StackStatus"] == "UPDATE_COMPLETE"
    assert thresholds() == {"alarm-a": 1, "alarm-z": 2}
    for name in ("good", "taken"):
        stacks.delete(name)
    assert not thresholds()


def test_parts_of_roles_and_groups_are_put_and_deleted_by_their_own_operations(stacks: Stacks) -> None:
    iam, logs = stacks.platform.client("iam"), stacks.platform.client("logs")
    answer = refusal(stacks.client.create_stack, StackName="roles", TemplateBody=ROLES)
    assert answer == "InsufficientCapabilitiesException: Requires capabilities : [CAPABILITY_IAM]"
    found = stacks.create("roles", ROLES, Capabilities=["CAPABILITY_IAM"])
    outputs = {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}
    role = outputs["Arn"].rpartition("/")[2]
    assert role.startswith("roles-Role-")
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == ["inline", "own"]
    assert len(iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]) == 2
    changed = json.loads(ROLES)
    resources = changed["Resources"]
    del resources["Role"]["Properties"]["Policies"]
    del resources["Dashboard"]
    resources["Role"]["Properties"]["ManagedPolicyArns"] = ["arn:aws:iam::aws:policy/Other"]
    resources["Log"] |= {"Properties": {"RetentionInDays": 14}, "DeletionPolicy": "Retain"}
    found = stacks.update("roles", json.dumps(changed), Capabilities=["CAPABILITY_IAM"])
    assert found["StackStatus"] == "UPDATE_COMPLETE"
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == ["inline"]
    attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    assert {policy["PolicyName"] for policy in attached} > {"Other"}
    assert stacks.delete("roles")["StackStatus"] == "DELETE_COMPLETE"
    assert not iam.list_roles()["Roles"]
    (group,) = logs.describe_log_groups()["logGroups"]
    assert group["retentionInDays"] == 14


def test_change_sets_show_changes_and_are_executed(stacks: Stacks) -> None:
    client = stacks.client
    made = client.create_change_set(
        StackName="cs", ChangeSetName="first", ChangeSetType="CREATE", TemplateBody=alarms(a=1, b=2), Description="d"
    )
    assert client.describe_stacks(StackName="cs")["Stacks"][0]["StackStatus"] == "REVIEW_IN_PROGRESS"
    assert stacks.events("cs") == [("cs", "REVIEW_IN_PROGRESS")]  # SAM reads the time of the first event
    shown = client.describe_change_set(ChangeSetName=made["Id"])
    assert (shown["Status"], shown["ExecutionStatus"], shown["StackId"]) == (
        "CREATE_COMPLETE",
        "AVAILABLE",
        made["StackId"],
    )
    assert [change["ResourceChange"]["Action"] for change in shown["Changes"]] == ["Add", "Add"]
    client.execute_change_set(ChangeSetName="first", StackName="cs")
    assert stacks.settled("cs")["StackStatus"] == "CREATE_COMPLETE"
    assert client.describe_change_set(ChangeSetName=made["Id"])["ExecutionStatus"] == "EXECUTE_COMPLETE"

    same = {"StackName": "cs", "ChangeSetName": "same", "TemplateBody": alarms(a=1, b=2)}
    client.create_change_set(**same)
    shown = client.describe_change_set(StackName="cs", ChangeSetName="same")
    assert (shown["Status"], shown["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
    assert shown["StatusReason"].startswith("The submitted information didn't contain changes.")
    assert "cannot be executed" in refusal(client.execute_change_set, StackName="cs", ChangeSetName="same")
    assert "AlreadyExistsException" in refusal(client.create_change_set, **same)
    client.delete_change_set(StackName="cs", ChangeSetName="same")

    changed = alarms(a=5, c=1).replace("alarm-a", "alarm-other")
    client.create_change_set(StackName="cs", ChangeSetName="second", TemplateBody=changed)
    shown = client.describe_change_set(StackName="cs", ChangeSetName="second")
    changes = [change["ResourceChange"] for change in shown["Changes"]]
    assert [(change["Action"], change["LogicalResourceId"], change.get("Replacement")) for change in changes] == [
        ("Modify", "a", "True"),
        ("Add", "c", None),
        ("Remove", "b", None),
    ]
    targets = {detail["Target"]["Name"]: detail["Target"]["RequiresRecreation"] for detail in changes[0]["Details"]}
    assert targets == {"AlarmName": "Always", "Threshold": "Never"}
    assert [listed["ChangeSetName"] for listed in client.list_change_sets(StackName="cs")["Summaries"]][-1] == "second"
    client.execute_change_set(ChangeSetName="second", StackName="cs")
    assert stacks.settled("cs")["StackStatus"] == "UPDATE_COMPLETE"
    client.update_termination_protection(StackName="cs", EnableTerminationProtection=True)
    assert "TerminationProtection is enabled" in refusal(client.delete_stack, StackName="cs")
    client.update_termination_protection(StackName="cs", EnableTerminationProtection=False)
    stacks.delete("cs")
    for call in (client.describe_change_set, client.execute_change_set):
        assert "ValidationError: Stack [cs] does not exist" in refusal(call, StackName="cs", ChangeSetName="second")


def test_the_template_of_a_cdk_application_is_deployed(stacks: Stacks) -> None:
    """The template of `examples/infrastructure/app.mjs` by `cdk synth`: rules, and a parameter for the bootstrap."""
    client = stacks.client
    template = Path(__file__).with_name("cdk_hosting.json").read_text()
    assert stacks.platform.client("ssm").get_parameter(Name="/cdk-bootstrap/hnb659fds/version")["Parameter"]["Value"]
    summary = client.get_template_summary(TemplateBody=template)
    assert "AWS::SageMaker::Endpoint" in summary["ResourceTypes"]
    assert client.validate_template(TemplateBody=template)["Parameters"][0]["ParameterKey"] == "BootstrapVersion"
    found = stacks.create("Hosting", template, Capabilities=["CAPABILITY_NAMED_IAM"])
    assert found["StackStatus"] == "CREATE_COMPLETE"
    assert found["Parameters"][0]["ResolvedValue"] == "30"
    assert client.get_template(StackName="Hosting")["TemplateBody"] == json.loads(template)
    detail = client.describe_stack_resource(StackName="Hosting", LogicalResourceId="Endpoint")["StackResourceDetail"]
    assert detail["ResourceStatus"] == "CREATE_COMPLETE"
    owner = client.describe_stack_resources(PhysicalResourceId=detail["PhysicalResourceId"])["StackResources"]
    assert {resource["StackName"] for resource in owner} == {"Hosting"}
    assert len(client.list_stack_resources(StackName="Hosting")["StackResourceSummaries"]) == 9
    stacks.delete("Hosting")


def test_the_code_of_the_page_runs(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", stacks.platform.url),
        ("AWS_DEFAULT_REGION", AWS_SCOPE.region),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ):
        monkeypatch.setenv(name, value)
    code = next(step.code for step in steps_of(DOCS / "infrastructure-as-code.md") if step.language == "python")
    exec(code, {})
    deleted = stacks.client.list_stacks()["StackSummaries"]
    assert "monitoring" in [stack["StackName"] for stack in deleted]


def test_calls_are_refused_in_the_words_of_aws(stacks: Stacks) -> None:
    client, body, create = stacks.client, alarms(x=1), stacks.client.create_stack
    url, bucket = "https://s3.amazonaws.com/b/k", "Resources: {B: {Type: AWS::S3::Bucket}}"
    stacks.create("once", body)
    for message, call, params in (
        ("AlreadyExistsException: Stack [once] already exists", create, {"StackName": "once"}),
        ("ValidationError: Stack [none] does not exist", client.update_stack, {"StackName": "none"}),
        ("Member must satisfy regular expression pattern", create, {"StackName": "a_b"}),
        ("Either DisableRollback or OnFailure", create, {"DisableRollback": True, "OnFailure": "DELETE"}),
        ("length less than or equal to 51200", create, {"TemplateBody": " " * 51_201}),
        ("TemplateURL needs an object storage", create, {"TemplateURL": url}),
        ("Mode EXPRESS is not supported", create, {"DeploymentConfig": {"Mode": "EXPRESS"}}),
        ("StackPolicyBody is not supported by Headrace", create, {"StackPolicyBody": "{}"}),
        ("Unrecognized resource types: [AWS::S3::Bucket]", create, {"TemplateBody": bucket}),
    ):
        more = {} if {"TemplateURL", "TemplateBody"} & params.keys() else {"TemplateBody": body}
        assert message in refusal(call, **{"StackName": "n", **more, **params}), message
    assert "ParameterNotFound" in refusal(stacks.platform.client("ssm").get_parameter, Name="/other")
    client.delete_stack(StackName="none")
    stacks.delete("once")
