"""
Temporary credentials: `sts:AssumeRole`, `sts:GetSessionToken`, and passwords of the registry of images.

They are derived from the caller's access key and act with its rights, until they expire or the key is removed; what the
policies of a role allow is not evaluated. Credentials of a session do not outlive it.
"""

from typing import Final

from headrace.core.errors import Unavailable
from headrace.platform.account.ecr import TOKEN_S, authorization
from headrace.platform.account.iam import ROLES, entity_id
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.identity import caller_arn, session_arn
from headrace.platform.host.access_keys import ACCESS_KEY
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws import sessions
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.sessions import Credentials, Session

_DEFAULT_S: Final = 3600
"""Source: STS API reference, AssumeRole, as all numbers here."""
_CHAINED_S: Final = 3600
"""Longest session of a role that temporary credentials assume."""
_TOKEN_DEFAULT_S: Final = 43_200
_DENIED: Final = 403


def assume_role(context: CallContext, params: Json) -> Json:
    arn, session_name = params["RoleArn"], params["RoleSessionName"]
    _, is_role, path = arn.partition(":role/")
    if not is_role:
        raise AwsError("ValidationError", f"{arn} is invalid")
    try:
        role = ROLES.find(context, {"RoleName": path.rpartition("/")[2]})
    except AwsError as error:
        raise _not_authorized(context, arn) from error
    if context.is_strict and ROLES.arn_of(context, role.name, role.spec) != arn:
        raise _not_authorized(context, arn)
    duration_s = params.get("DurationSeconds", _DEFAULT_S)
    if duration_s > role.spec.members["MaxSessionDuration"]:
        message = "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
        raise AwsError("ValidationError", message)
    if context.session is not None and duration_s > _CHAINED_S:
        message = "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining"
        raise AwsError("ValidationError", message)
    identity = {
        "AssumedRoleId": f"{entity_id('AROA', role.name)}:{session_name}",
        "Arn": session_arn(context.aws_scope, role.name, session_name),
    }
    source = {name: params[name] for name in ("SourceIdentity",) if name in params}
    credentials = _issue(context, duration_s, role=role.name, name=session_name)
    return {"Credentials": credentials, "AssumedRoleUser": identity, **source}


def get_session_token(context: CallContext, params: Json) -> Json:
    if context.session is not None:
        raise AwsError("AccessDenied", "Cannot call GetSessionToken with session credentials", status=_DENIED)
    return {"Credentials": _issue(context, params.get("DurationSeconds", _TOKEN_DEFAULT_S))}


def get_authorization_token(context: CallContext, _params: Json) -> Json:
    """Answer ECR's GetAuthorizationToken: a password for the registry, which opens nothing else."""
    credentials = _derive(context, TOKEN_S, name=sessions.REGISTRY)
    return authorization(context, credentials.token, credentials.session.expires_s)


def _issue(context: CallContext, duration_s: int, *, role: str = "", name: str = "") -> Json:
    credentials = _derive(context, duration_s, role=role, name=name)
    return {
        "AccessKeyId": credentials.access_key,
        "SecretAccessKey": credentials.secret,
        "SessionToken": credentials.token,
        "Expiration": credentials.session.expires_s,
    }


def _derive(context: CallContext, duration_s: int, *, role: str = "", name: str) -> Credentials:
    expires_s = int(context.now_s) + duration_s
    if context.session is not None:
        expires_s = min(expires_s, context.session.expires_s)
    return sessions.issue(Session(key=context.caller, expires_s=expires_s, role=role, name=name), _secret_of(context))


def _secret_of(context: CallContext) -> str:
    """Return the secret of the caller's key, which admitted this call."""
    if not context.caller:
        return sessions.OPEN_PLATFORM
    record = context.store.get(ACCESS_KEY, context.caller)
    if not isinstance(record, Record):
        raise Unavailable("The access key of the caller has just been removed.")
    return record.spec.secret


def _not_authorized(context: CallContext, arn: str) -> AwsError:
    message = f"User: {caller_arn(context)} is not authorized to perform: sts:AssumeRole on resource: {arn}"
    return AwsError("AccessDenied", message, status=_DENIED)
