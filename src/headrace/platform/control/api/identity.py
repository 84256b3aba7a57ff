"""
The identity and the permissions of callers, as STS and IAM tell them.

Callers with an access key have the same assumed role, not a user: SageMaker's SDK derives the execution role of models
from the caller, and refuses users. Temporary credentials have the role that they are for (`host.sts`).
"""

from headrace.platform.account.iam import CALLER_ROLE, IAM_PAGES, entity_id
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope, partition_of

SESSION_NAME = "headrace"
_PAGE_SIZE = 100
"""Results on a page without MaxItems. Source: IAM API reference, SimulatePrincipalPolicy."""


def session_arn(aws_scope: AwsScope, role: str, session: str) -> str:
    """Return the ARN of a caller that has assumed a role."""
    return f"arn:{partition_of(aws_scope.region)}:sts::{aws_scope.account}:assumed-role/{role}/{session}"


def caller_arn(context: CallContext) -> str:
    return session_arn(context.aws_scope, *_caller(context))


def get_caller_identity(context: CallContext, _params: Json) -> Json:
    role, session = _caller(context)
    user_id = f"{entity_id('AROA', role)}:{session}"
    return {"UserId": user_id, "Account": context.aws_scope.account, "Arn": caller_arn(context)}


def _caller(context: CallContext) -> tuple[str, str]:
    """Return the role and the session of the caller."""
    session = context.session
    return (session.role, session.name) if session is not None and session.role else (CALLER_ROLE, SESSION_NAME)


def created_by(aws_scope: AwsScope) -> Json:
    """Return the `UserContext` of what callers have created, whose sessions are not stored."""
    principal = f"{entity_id('AROA', CALLER_ROLE)}:{SESSION_NAME}"
    return {"IamIdentity": {"Arn": session_arn(aws_scope, CALLER_ROLE, SESSION_NAME), "PrincipalId": principal}}


def simulate_principal_policy(_context: CallContext, params: Json) -> Json:
    """Answer SimulatePrincipalPolicy: everything is allowed. Only the results of one page are made."""
    actions, resources = params["ActionNames"], params.get("ResourceArns") or ["*"]
    listing = "policy simulation"
    begin, num_results = IAM_PAGES.paginator.begin(params, listing=listing), len(actions) * len(resources)
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
    token = IAM_PAGES.paginator.token_at(end, listing=listing) if end < num_results else {}
    return {"EvaluationResults": results, "IsTruncated": bool(token), **token}


def get_user(_context: CallContext, params: Json) -> Json:
    """Answer GetUser with an error: Headrace has only roles."""
    shown = params.get("UserName", "the caller")
    message = f"The user with name {shown} cannot be found: callers of Headrace have the role {CALLER_ROLE}."
    raise AwsError("NoSuchEntity", message, status=404)
