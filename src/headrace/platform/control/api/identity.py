"""
The operations of STS and IAM that SDKs call: caller identity, roles and permissions.

All callers have the same assumed role, not a user: SageMaker's SDK derives the execution role of models from the
caller, and refuses users.
"""

from urllib.parse import quote

from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator
from headrace.serving.wire.aws.scope import AwsScope, partition_of

ROLE_NAME = "HeadraceRole"
"""The role that callers have assumed."""
SESSION_NAME = "headrace"
_ROLE_CREATED_S = 1_700_000_000.0
_PAGE_SIZE = 100
"""Results on a page without MaxItems. Source: IAM API reference, SimulatePrincipalPolicy."""
_PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidInput", "The Marker is not one of this list. Begin without it."),
    member="Marker",
)


def assumed_role_arn(aws_scope: AwsScope) -> str:
    """Return the ARN of every caller."""
    role = f"assumed-role/{ROLE_NAME}/{SESSION_NAME}"
    return f"arn:{partition_of(aws_scope.region)}:sts::{aws_scope.account}:{role}"


def role_arn(aws_scope: AwsScope, name: str) -> str:
    return f"arn:{partition_of(aws_scope.region)}:iam::{aws_scope.account}:role/{name}"


def get_caller_identity(context: CallContext, _params: Json) -> Json:
    return {
        "UserId": f"{_role_id(ROLE_NAME)}:{SESSION_NAME}",
        "Account": context.aws_scope.account,
        "Arn": assumed_role_arn(context.aws_scope),
    }


def created_by(aws_scope: AwsScope) -> Json:
    """Return the `UserContext` of every caller."""
    principal = f"{_role_id(ROLE_NAME)}:{SESSION_NAME}"
    return {"IamIdentity": {"Arn": assumed_role_arn(aws_scope), "PrincipalId": principal}}


def get_role(context: CallContext, params: Json) -> Json:
    """Answer GetRole: every name is a role, with all permissions."""
    name = params["RoleName"]
    trust = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"sagemaker.amazonaws.com"},'
    return {
        "Role": {
            "Path": "/",
            "RoleName": name,
            "RoleId": _role_id(name),
            "Arn": role_arn(context.aws_scope, name),
            "CreateDate": _ROLE_CREATED_S,
            "AssumeRolePolicyDocument": quote(trust + '"Action":"sts:AssumeRole"}]}'),
            "MaxSessionDuration": 43_200,
        }
    }


def simulate_principal_policy(_context: CallContext, params: Json) -> Json:
    """Answer SimulatePrincipalPolicy: everything is allowed. Only the results of one page are made."""
    actions, resources = params["ActionNames"], params.get("ResourceArns") or ["*"]
    listing = "policy simulation"
    begin, num_results = _PAGES.begin(params, listing=listing), len(actions) * len(resources)
    end = min(begin + params.get("MaxItems", _PAGE_SIZE), num_results)
    results = [
        {
            "EvalActionName": actions[number // len(resources)],
            "EvalResourceName": resources[number % len(resources)],
            "EvalDecision": "allowed",
            "MatchedStatements": [],
        }
        for number in range(begin, end)
    ]
    token = _PAGES.token_at(end, listing=listing) if end < num_results else {}
    return {"EvaluationResults": results, "IsTruncated": bool(token), **token}


def get_user(_context: CallContext, params: Json) -> Json:
    """Answer GetUser with an error: Headrace has only roles."""
    shown = params.get("UserName", "the caller")
    message = f"The user with name {shown} cannot be found: callers of Headrace have the role {ROLE_NAME}."
    raise AwsError("NoSuchEntity", message, status=404)


def _role_id(name: str) -> str:
    """Return an id of 21 characters that is a function of the name."""
    return "AROA" + "".join(f"{byte:02X}" for byte in name.encode())[:17].ljust(17, "0")
