"""IAM's roles and policies as records, called with boto3 in the order of Terraform and of notebooks."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.api.context import CallContext
from headrace.platform.host.operations import operations_of
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.conftest import still_platform, strict_platform
from tests.platform.control.support import AWS_SCOPE, ROLE, ListedLogs, Platform

__all__ = ["still_platform", "strict_platform"]

TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]}
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
MANAGED = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"


def code_of(call: Callable[..., Any], **params: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_role_lives_as_terraform_manages_it(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    made = iam.create_role(
        RoleName="r", Path="/ml/", AssumeRolePolicyDocument=json.dumps(TRUST), Tags=[{"Key": "a", "Value": "1"}]
    )["Role"]
    assert made["Arn"] == "arn:aws:iam::123456789012:role/ml/r"
    found = iam.get_role(RoleName="r")["Role"]
    assert (found["AssumeRolePolicyDocument"], found["MaxSessionDuration"], found["Tags"]) == (
        TRUST,
        3600,
        made["Tags"],
    )
    assert code_of(iam.create_role, RoleName="r", AssumeRolePolicyDocument="{}") == ("MalformedPolicyDocument", 400)
    again = {"RoleName": "r", "AssumeRolePolicyDocument": json.dumps(TRUST)}
    assert code_of(iam.create_role, **again) == ("EntityAlreadyExists", 409)
    iam.update_role(RoleName="r", Description="d", MaxSessionDuration=7200)
    iam.update_assume_role_policy(RoleName="r", PolicyDocument=json.dumps(POLICY))
    iam.put_role_permissions_boundary(RoleName="r", PermissionsBoundary=MANAGED)
    iam.tag_role(RoleName="r", Tags=[{"Key": "b", "Value": "2"}])
    iam.untag_role(RoleName="r", TagKeys=["a"])
    found = iam.get_role(RoleName="r")["Role"]
    assert (found["Description"], found["MaxSessionDuration"]) == ("d", 7200)
    assert found["AssumeRolePolicyDocument"] == POLICY
    assert found["PermissionsBoundary"]["PermissionsBoundaryArn"] == MANAGED
    assert iam.list_role_tags(RoleName="r")["Tags"] == [{"Key": "b", "Value": "2"}]
    iam.delete_role_permissions_boundary(RoleName="r")
    assert "PermissionsBoundary" not in iam.get_role(RoleName="r")["Role"]
    iam.create_role(RoleName="other", AssumeRolePolicyDocument=json.dumps(TRUST))
    assert [role["RoleName"] for role in iam.list_roles(PathPrefix="/ml/")["Roles"]] == ["r"]
    pages = iam.get_paginator("list_roles").paginate(PaginationConfig={"PageSize": 1})
    assert [[role["RoleName"] for role in page["Roles"]] for page in pages] == [["other"], ["r"]]


def test_a_role_with_policies_is_not_deleted(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    iam.create_role(RoleName="r", AssumeRolePolicyDocument=json.dumps(TRUST))
    iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument=json.dumps(POLICY))
    assert iam.list_role_policies(RoleName="r")["PolicyNames"] == ["p"]
    assert iam.get_role_policy(RoleName="r", PolicyName="p")["PolicyDocument"] == POLICY
    iam.attach_role_policy(RoleName="r", PolicyArn=MANAGED)
    attached = [{"PolicyName": "AmazonSageMakerFullAccess", "PolicyArn": MANAGED}]
    assert iam.list_attached_role_policies(RoleName="r")["AttachedPolicies"] == attached
    found = iam.get_policy(PolicyArn=MANAGED)["Policy"]
    assert (found["PolicyName"], found["Path"], found["AttachmentCount"]) == ("AmazonSageMakerFullAccess", "/", 1)
    assert iam.list_instance_profiles_for_role(RoleName="r")["InstanceProfiles"] == []
    assert code_of(iam.delete_role, RoleName="r") == ("DeleteConflict", 409)
    iam.detach_role_policy(RoleName="r", PolicyArn=MANAGED)
    assert code_of(iam.detach_role_policy, RoleName="r", PolicyArn=MANAGED) == ("NoSuchEntity", 404)
    assert code_of(iam.delete_role, RoleName="r") == ("DeleteConflict", 409)
    iam.delete_role_policy(RoleName="r", PolicyName="p")
    iam.delete_role(RoleName="r")
    assert code_of(iam.delete_role, RoleName="r") == ("NoSuchEntity", 404)


def test_a_managed_policy_has_versions_and_roles(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    made = iam.create_policy(PolicyName="p", PolicyDocument=json.dumps(POLICY), Description="d")["Policy"]
    arn = made["Arn"]
    assert (arn, made["DefaultVersionId"]) == ("arn:aws:iam::123456789012:policy/p", "v1")
    assert iam.get_policy_version(PolicyArn=arn, VersionId="v1")["PolicyVersion"]["Document"] == POLICY
    for _ in range(4):
        second = iam.create_policy_version(PolicyArn=arn, PolicyDocument=json.dumps(TRUST), SetAsDefault=True)
    assert second["PolicyVersion"]["VersionId"] == "v5"
    assert code_of(iam.create_policy_version, PolicyArn=arn, PolicyDocument=json.dumps(TRUST)) == ("LimitExceeded", 409)
    assert iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"] == "v5"
    assert code_of(iam.delete_policy_version, PolicyArn=arn, VersionId="v5") == ("DeleteConflict", 409)
    iam.set_default_policy_version(PolicyArn=arn, VersionId="v1")
    assert code_of(iam.delete_policy, PolicyArn=arn) == ("DeleteConflict", 409)
    for version in ("v2", "v3", "v4", "v5"):
        iam.delete_policy_version(PolicyArn=arn, VersionId=version)
    assert [version["VersionId"] for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]] == ["v1"]
    missing = arn + "q"
    assert code_of(iam.attach_role_policy, RoleName="HeadraceRole", PolicyArn=missing) == ("NoSuchEntity", 404)
    iam.attach_role_policy(RoleName="HeadraceRole", PolicyArn=arn)
    assert iam.get_policy(PolicyArn=arn)["Policy"]["AttachmentCount"] == 1
    roles = iam.list_entities_for_policy(PolicyArn=arn)["PolicyRoles"]
    assert [role["RoleName"] for role in roles] == ["HeadraceRole"]
    assert code_of(iam.delete_policy, PolicyArn=arn) == ("DeleteConflict", 409)
    iam.detach_role_policy(RoleName="HeadraceRole", PolicyArn=arn)
    iam.tag_policy(PolicyArn=arn, Tags=[{"Key": "a", "Value": "1"}])
    assert iam.list_policy_tags(PolicyArn=arn)["Tags"] == [{"Key": "a", "Value": "1"}]
    assert [policy["Arn"] for policy in iam.list_policies(Scope="Local")["Policies"]] == [arn]
    iam.delete_policy(PolicyArn=arn)
    assert code_of(iam.get_policy, PolicyArn=arn) == ("NoSuchEntity", 404)


def test_service_linked_roles_are_made_once_and_deleted_by_their_own_call(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    service = "sagemaker.application-autoscaling.amazonaws.com"
    name = "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
    role = iam.create_service_linked_role(AWSServiceName=service)["Role"]
    assert (role["RoleName"], role["Path"]) == (name, f"/aws-service-role/{service}/")
    assert code_of(iam.create_service_linked_role, AWSServiceName=service) == ("InvalidInput", 400)
    assert code_of(iam.delete_role, RoleName=name) == ("UnmodifiableEntity", 400)
    task = iam.delete_service_linked_role(RoleName=name)["DeletionTaskId"]
    assert iam.get_service_linked_role_deletion_status(DeletionTaskId=task)["Status"] == "SUCCEEDED"


def test_any_role_exists_unless_the_platform_is_strict(still_platform: Platform, strict_platform: Platform) -> None:
    assert still_platform.client("iam").get_role(RoleName="any")["Role"]["Arn"].endswith(":role/any")
    iam, sts = strict_platform.client("iam"), strict_platform.client("sts")
    assert iam.get_role(RoleName="HeadraceRole")["Role"]["Arn"] == ROLE
    assert code_of(iam.get_role, RoleName="any") == ("NoSuchEntity", 404)
    assume = {"RoleArn": ROLE.replace("HeadraceRole", "any"), "RoleSessionName": "s1"}
    assert code_of(sts.assume_role, **assume) == ("AccessDenied", 403)
    iam.create_role(RoleName="any", AssumeRolePolicyDocument=json.dumps(TRUST))
    assert sts.assume_role(**assume)["AssumedRoleUser"]["Arn"].endswith(":assumed-role/any/s1")
    assert code_of(sts.assume_role, **assume, DurationSeconds=7200) == ("ValidationError", 400)
    assert code_of(sts.assume_role, **assume, Policy="{}") == ("ValidationError", 400)


def test_a_platform_may_demand_that_roles_exist(still_platform: Platform) -> None:
    iam, create = still_platform.client("iam"), operations_of(checks_roles=True)["sagemaker", "CreateModelCard"]
    logs: Any = ListedLogs()
    context = CallContext(store=still_platform.store, aws_scope=AWS_SCOPE, now_s=0.0, logs=logs)
    card = {"Content": "{}", "ModelCardStatus": "Draft"}
    create(context, {**card, "ModelCardName": "a", "ExecutionRoleArn": ROLE})
    unknown = {**card, "ModelCardName": "b", "ExecutionRoleArn": f"{ROLE}2"}
    with pytest.raises(AwsError, match=r"HeadraceRole2\. Please ensure that the role exists"):
        create(context, unknown)
    iam.create_role(RoleName="HeadraceRole2", AssumeRolePolicyDocument=json.dumps(TRUST))
    create(context, unknown)


def test_a_dashboard_is_put_listed_changed_and_deleted(still_platform: Platform) -> None:
    cloudwatch = still_platform.client("cloudwatch")
    for name in ("b", "ab", "a"):
        assert cloudwatch.put_dashboard(DashboardName=name, DashboardBody="{}")["DashboardValidationMessages"] == []
    body = '{"widgets":[]}'
    cloudwatch.put_dashboard(DashboardName="a", DashboardBody=body)
    found = cloudwatch.get_dashboard(DashboardName="a")
    assert (found["DashboardBody"], found["DashboardArn"]) == (body, "arn:aws:cloudwatch::123456789012:dashboard/a")
    entries = cloudwatch.list_dashboards(DashboardNamePrefix="a")["DashboardEntries"]
    assert [(entry["DashboardName"], entry["Size"]) for entry in entries] == [("a", len(body)), ("ab", 2)]
    assert code_of(cloudwatch.put_dashboard, DashboardName="a b", DashboardBody="{}") == ("InvalidParameterInput", 400)
    bad = code_of(cloudwatch.put_dashboard, DashboardName="a", DashboardBody="[]")
    assert bad == ("InvalidParameterInput", 400)
    assert code_of(cloudwatch.delete_dashboards, DashboardNames=["a", "c"]) == ("ResourceNotFound", 404)
    cloudwatch.delete_dashboards(DashboardNames=["a", "ab"])
    assert [entry["DashboardName"] for entry in cloudwatch.list_dashboards()["DashboardEntries"]] == ["b"]
    assert code_of(cloudwatch.get_dashboard, DashboardName="a") == ("ResourceNotFound", 404)
