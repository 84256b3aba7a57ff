"""The caller's identity and role, called with boto3."""

import pytest
from botocore.exceptions import ClientError

from tests.platform.control.support import ROLE, Platform


def test_every_caller_is_an_assumed_role(still_platform: Platform) -> None:
    identity = still_platform.client("sts").get_caller_identity()
    assert identity["Account"] == "123456789012"
    assert identity["Arn"] == "arn:aws:sts::123456789012:assumed-role/HeadraceRole/headrace"
    iam = still_platform.client("iam")
    assert iam.get_role(RoleName="HeadraceRole")["Role"]["Arn"] == ROLE
    simulated = iam.simulate_principal_policy(
        PolicySourceArn=ROLE, ActionNames=["sagemaker:CreateModel", "s3:GetObject"]
    )
    decisions = [(result["EvalActionName"], result["EvalDecision"]) for result in simulated["EvaluationResults"]]
    assert decisions == [("sagemaker:CreateModel", "allowed"), ("s3:GetObject", "allowed")]
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.get_user(UserName="alice")


def test_a_policy_simulation_is_answered_in_pages(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    actions, resources = [f"s3:Get{i}" for i in range(400)], [f"arn:aws:s3:::bucket-{i}" for i in range(400)]
    params = {"PolicySourceArn": ROLE, "ActionNames": actions, "ResourceArns": resources}
    first = iam.simulate_principal_policy(**params)
    assert (len(first["EvaluationResults"]), first["IsTruncated"]) == (100, True)
    params = {"PolicySourceArn": ROLE, "ActionNames": actions[:50], "ResourceArns": resources[:45]}
    pages = [*iam.get_paginator("simulate_principal_policy").paginate(**params, PaginationConfig={"PageSize": 1000})]
    assert [(len(page["EvaluationResults"]), page["IsTruncated"]) for page in pages] == [
        (1000, True),
        (1000, True),
        (250, False),
    ]
    assert [
        (result["EvalActionName"], result["EvalResourceName"]) for page in pages for result in page["EvaluationResults"]
    ] == [(action, resource) for action in actions[:50] for resource in resources[:45]]


def test_bad_limits_of_a_policy_simulation_are_refused(still_platform: Platform) -> None:
    iam = still_platform.client("iam")
    params = {"PolicySourceArn": ROLE, "ActionNames": ["s3:GetObject"]}
    with pytest.raises(ClientError, match="InvalidInput"):
        iam.simulate_principal_policy(**params, Marker="unknown")
    with pytest.raises(ClientError, match="ValidationError"):
        iam.simulate_principal_policy(**params, MaxItems=1001)
