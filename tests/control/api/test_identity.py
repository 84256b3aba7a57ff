"""The caller's identity and role, called with boto3."""

import pytest

from tests.control.support import ROLE, Platform


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
