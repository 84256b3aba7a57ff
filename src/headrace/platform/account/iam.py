"""
IAM's roles and managed policies, which are stored, and what they have in common.

Policies are not evaluated: each access key may do everything. In friendly mode every name is a role, so that code for
AWS runs with any ARN; in strict mode, only the roles that were created, and the caller's.
"""

import json
from typing import Final
from urllib.parse import quote

from headrace.platform.account.resource import (
    Pages,
    Part,
    Refusal,
    Resource,
    StoredRecord,
    StoredSpec,
    implicit_record,
    stored_kind,
)
from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator

CALLER_ROLE: Final = "HeadraceRole"
"""The role that callers have assumed."""
_IMPLICIT_CREATED_S: Final = 1_700_000_000.0
_TRUST: Final = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"sagemaker.amazonaws.com"},'
    '"Action":"sts:AssumeRole"}]}'
)
_OF_AWS: Final = ":iam::aws:policy/"
"""Part of the ARN of a policy that AWS manages."""
_SERVICE_PATH: Final = "/aws-service-role/"
"""Path of service-linked roles."""
IAM_PAGES: Final = Pages(
    paginator=Paginator(
        invalid_token=lambda: AwsError("InvalidInput", "The Marker is not one of this list. Begin without it."),
        member="Marker",
    ),
    size_member="MaxItems",
    has_truncation=True,
)
_INVALID: Final = Refusal("InvalidInput", "{why}")
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


def check_document(members: Json) -> None:
    """Refuse a policy document that is no JSON object with statements; what they say is not read."""
    for name in ("AssumeRolePolicyDocument", "PolicyDocument"):
        if name not in members:
            continue
        try:
            document = json.loads(members[name])
        except (ValueError, RecursionError):
            raise AwsError("MalformedPolicyDocument", "This policy contains invalid Json") from None
        if not isinstance(document, dict) or "Statement" not in document:
            raise AwsError("MalformedPolicyDocument", "Syntax errors in policy.")


def entity_id(prefix: str, name: str) -> str:
    """Return an id of 21 characters that is a function of the name."""
    return prefix + "".join(f"{byte:02X}" for byte in name.encode())[:17].ljust(17, "0")


def _show_role(_context: CloudWatchCall, record: StoredRecord) -> Json:
    members = record.spec.members
    boundary = members.get("PermissionsBoundary")
    shown = {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": boundary} if boundary else None
    return {
        "RoleId": entity_id("AROA", record.name),
        "AssumeRolePolicyDocument": quote(members["AssumeRolePolicyDocument"], safe=""),
        "PermissionsBoundary": shown,
    }


def _implicit_role(context: CloudWatchCall, name: str) -> StoredRecord | None:
    if context.is_strict and name != CALLER_ROLE:
        return None
    members = {"Path": "/", "AssumeRolePolicyDocument": _TRUST, "MaxSessionDuration": 43_200}
    return implicit_record(ROLES.kind, name, members=members, created_s=_IMPLICIT_CREATED_S)


def _check_role_is_free(_context: CloudWatchCall, record: StoredRecord) -> None:
    for part, why in ((ATTACHED, "must detach all policies first"), (INLINE, "must delete policies first")):
        if part.items(record):
            raise AwsError("DeleteConflict", f"Cannot delete entity, {why}.", status=_CONFLICT)
    if record.spec.members["Path"].startswith(_SERVICE_PATH):
        message = f"Cannot perform the operation on the protected role '{record.name}' - this role is only modifiable "
        raise AwsError("UnmodifiableEntity", message + "by AWS. Use DeleteServiceLinkedRole.")


ROLES: Final = Resource(
    kind=stored_kind("iam-role"),
    word="Role",
    key="RoleName",
    list_member="Roles",
    arn="iam::{account}:role{Path}{name}",
    names=("RoleName",),
    pages=IAM_PAGES,
    absent=Refusal("NoSuchEntity", "The role with name {name} cannot be found.", _NOT_FOUND),
    present=Refusal("EntityAlreadyExists", "Role with name {name} already exists.", _CONFLICT),
    full=Refusal("LimitExceeded", "Cannot exceed quota for RolesPerAccount: {most}", _CONFLICT),
    invalid=_INVALID,
    most=1000,
    prefix_member="PathPrefix",
    prefixed="Path",
    defaults={"Path": "/", "MaxSessionDuration": 3600},
    renamed={"PolicyDocument": "AssumeRolePolicyDocument"},
    check=check_document,
    shown=_show_role,
    implicit=_implicit_role,
    check_delete=_check_role_is_free,
)
INLINE: Final = Part(
    owner=ROLES,
    group="inline",
    key="PolicyName",
    list_member="PolicyNames",
    absent=Refusal("NoSuchEntity", "The role policy with name {name} cannot be found.", _NOT_FOUND),
    full=Refusal("LimitExceeded", "Cannot exceed quota for PoliciesPerRole: {most}", _CONFLICT),
    most=100,
    check=lambda _, params: check_document(params),
    shown=lambda item: {"PolicyDocument": quote(item["PolicyDocument"], safe="")},
)


def _show_policy(context: CloudWatchCall, record: StoredRecord) -> Json:
    arn = POLICIES.arn_of(context, record.name, record.spec)
    return {
        "PolicyId": entity_id("ANPA", record.name),
        "UpdateDate": record.modified_s,
        "IsAttachable": True,
        "AttachmentCount": sum(1 for _ in _roles_with(context, arn)),
        "PermissionsBoundaryUsageCount": 0,
    }


def _check_policy_is_free(context: CloudWatchCall, record: StoredRecord) -> None:
    if any(True for _ in _roles_with(context, POLICIES.arn_of(context, record.name, record.spec))):
        raise AwsError("DeleteConflict", "Cannot delete a policy attached to entities.", status=_CONFLICT)
    if len(record.spec.parts["versions"]) > 1:
        raise AwsError(
            "DeleteConflict",
            "This policy has more than one version. Before you delete a policy, you must delete the policy's "
            "versions. The default version is deleted with the policy.",
            status=_CONFLICT,
        )


POLICIES: Final = Resource(
    kind=stored_kind("iam-policy"),
    word="Policy",
    key="PolicyName",
    list_member="Policies",
    arn="iam::{account}:policy{Path}{name}",
    names=("PolicyArn",),
    pages=IAM_PAGES,
    absent=Refusal("NoSuchEntity", "Policy {arn} was not found.", _NOT_FOUND),
    present=Refusal(
        "EntityAlreadyExists", "A policy called {name} already exists. Duplicate names are not allowed.", _CONFLICT
    ),
    full=Refusal("LimitExceeded", "Cannot exceed quota for PoliciesPerAccount: {most}", _CONFLICT),
    invalid=_INVALID,
    most=1500,
    prefix_member="PathPrefix",
    prefixed="Path",
    defaults={"Path": "/"},
    shown=_show_policy,
    check_delete=_check_policy_is_free,
)


def _check_policy_exists(context: CloudWatchCall, params: Json) -> None:
    if _OF_AWS in params["PolicyArn"]:
        return
    try:
        POLICIES.find(context, params)
    except AwsError as error:
        message = f"Policy {params['PolicyArn']} does not exist or is not attachable."
        raise AwsError("NoSuchEntity", message, status=_NOT_FOUND) from error


ATTACHED: Final = Part(
    owner=ROLES,
    group="attached",
    key="PolicyArn",
    list_member="AttachedPolicies",
    absent=Refusal("NoSuchEntity", "Policy {name} was not found.", _NOT_FOUND),
    full=Refusal("LimitExceeded", "Cannot exceed quota for PoliciesPerRole: {most}", _CONFLICT),
    most=20,
    check=_check_policy_exists,
    listed=lambda arn, _: {"PolicyName": arn.rpartition("/")[2], "PolicyArn": arn},
)
VERSIONS: Final = Part(
    owner=POLICIES,
    group="versions",
    key="VersionId",
    list_member="Versions",
    absent=Refusal("NoSuchEntity", "Policy version {name} does not exist or is not attachable.", _NOT_FOUND),
    full=Refusal(
        "LimitExceeded",
        "A managed policy can have up to {most} versions. Before you create a new version, you must delete an "
        "existing version.",
        _CONFLICT,
    ),
    most=5,
)


def _roles_with(context: CloudWatchCall, policy_arn: str) -> list[StoredRecord]:
    """Return the roles to which a policy is attached."""
    records = (record for record in context.store.each(ROLES.kind) if isinstance(record, Record))
    return [record for record in records if policy_arn in ATTACHED.items(record)]


def create_policy(context: CloudWatchCall, params: Json) -> Json:
    check_document(params)
    document = params["PolicyDocument"]
    given: Json = {name: params[name] for name in ("Path", "Description") if name in params}
    members: Json = {"Path": "/", **given, "DefaultVersionId": "v1", "last_version": 1}
    first = {"Document": document, "CreateDate": context.now_s}
    spec = StoredSpec(members=members).with_part("versions", "v1", first)
    return POLICIES.add(context, params["PolicyName"], spec, params)


def create_policy_version(context: CloudWatchCall, params: Json) -> Json:
    check_document(params)
    item = {"Document": params["PolicyDocument"], "CreateDate": context.now_s}
    new_id = ""

    def add(spec: StoredSpec) -> StoredSpec:
        nonlocal new_id
        if len(spec.parts["versions"]) >= VERSIONS.most:
            raise VERSIONS.full.error(most=VERSIONS.most)
        number = spec.members["last_version"] + 1
        new_id = f"v{number}"
        default: Json = {"DefaultVersionId": new_id} if params.get("SetAsDefault") else {}
        changed = spec.with_part("versions", new_id, item)
        members = {**spec.members, **default, "last_version": number}
        return StoredSpec(members=members, parts=changed.parts)

    POLICIES.change(context, params, add)
    return get_policy_version(context, {**params, "VersionId": new_id})


def get_policy(context: CloudWatchCall, params: Json) -> Json:
    """Answer GetPolicy; every ARN of a policy that AWS manages is one, as AttachRolePolicy takes it."""
    arn: str = params["PolicyArn"]
    if _OF_AWS not in arn:
        return POLICIES.get(context, params)
    path, _, name = arn.partition(":policy")[2].rpartition("/")
    dates = dict.fromkeys(("CreateDate", "UpdateDate"), _IMPLICIT_CREATED_S)
    policy = {
        "PolicyName": name,
        "PolicyId": entity_id("ANPA", name),
        "Arn": arn,
        "Path": f"{path}/",
        **dates,
        "DefaultVersionId": "v1",
        "IsAttachable": True,
        "PermissionsBoundaryUsageCount": 0,
    }
    return {"Policy": {**policy, "AttachmentCount": len(_roles_with(context, arn))}}


def get_policy_version(context: CloudWatchCall, params: Json) -> Json:
    record = POLICIES.find(context, params)
    version = _version(record, params["VersionId"])
    return {"PolicyVersion": {**version, "Document": quote(version["Document"], safe="")}}


def list_policy_versions(context: CloudWatchCall, params: Json) -> Json:
    record = POLICIES.find(context, params)
    ids = sorted(VERSIONS.items(record), key=lambda name: int(name[1:]), reverse=True)
    versions = [{key: value for key, value in _version(record, name).items() if key != "Document"} for name in ids]
    return {"Versions": versions, "IsTruncated": False}


def delete_policy_version(context: CloudWatchCall, params: Json) -> Json:
    if POLICIES.find(context, params).spec.members["DefaultVersionId"] == params["VersionId"]:
        message = "Cannot delete the default version of a policy."
        raise AwsError("DeleteConflict", message, status=_CONFLICT)
    return VERSIONS.delete(context, params)


def set_default_policy_version(context: CloudWatchCall, params: Json) -> Json:
    _version(POLICIES.find(context, params), params["VersionId"])
    return POLICIES.update(context, {"PolicyArn": params["PolicyArn"], "DefaultVersionId": params["VersionId"]})


def _version(record: StoredRecord, name: str) -> Json:
    is_default = record.spec.members["DefaultVersionId"] == name
    return {"VersionId": name, "IsDefaultVersion": is_default, **VERSIONS.item(record, name)}


def list_policies(context: CloudWatchCall, params: Json) -> Json:
    """Answer ListPolicies: those of the account; AWS's own are not stored."""
    if params.get("Scope") == "AWS" or params.get("PolicyUsageFilter") == "PermissionsBoundary":
        return {"Policies": [], "IsTruncated": False}
    page = POLICIES.list(context, params)
    if params.get("OnlyAttached"):
        page["Policies"] = [policy for policy in page["Policies"] if policy["AttachmentCount"]]
    return page


def list_entities_for_policy(context: CloudWatchCall, params: Json) -> Json:
    arn = params["PolicyArn"]
    _check_policy_exists(context, params)
    has_roles = (
        params.get("EntityFilter", "Role") == "Role" and params.get("PolicyUsageFilter") != "PermissionsBoundary"
    )
    roles = [
        (record.name, {"RoleName": record.name, "RoleId": entity_id("AROA", record.name)})
        for record in (sorted(_roles_with(context, arn), key=lambda record: record.name) if has_roles else ())
        if record.spec.members["Path"].startswith(params.get("PathPrefix", ""))
    ]
    return {"PolicyGroups": [], "PolicyUsers": [], **IAM_PAGES.answer(roles, params, member="PolicyRoles")}


def delete_permissions_boundary(context: CloudWatchCall, params: Json) -> Json:
    return ROLES.update(context, {"RoleName": params["RoleName"], "PermissionsBoundary": None})


def list_instance_profiles_for_role(context: CloudWatchCall, params: Json) -> Json:
    """Answer ListInstanceProfilesForRole, which Terraform calls before it deletes a role: there are no profiles."""
    ROLES.find(context, params)
    return {"InstanceProfiles": [], "IsTruncated": False}


def check_roles(context: CloudWatchCall, params: Json) -> None:
    """Refuse a call of SageMaker whose role was not created, in AWS's words."""
    for member, arn in params.items():
        if not member.endswith("RoleArn") or not isinstance(arn, str):
            continue
        name = arn.rpartition("/")[2]
        record = context.store.get(ROLES.kind, name) or (_implicit_role(context, name) if name == CALLER_ROLE else None)
        if not isinstance(record, Record) or ROLES.arn_of(context, name, record.spec) != arn:
            raise AwsError(
                "ValidationException",
                f"Could not assume role {arn}. Please ensure that the role exists and allows principal "
                "'sagemaker.amazonaws.com' to assume the role.",
            )


_LINKED_NAMES: Final = {
    "sagemaker.application-autoscaling.amazonaws.com": "ApplicationAutoScaling_SageMakerEndpoint",
    "sagemaker.amazonaws.com": "AmazonSageMakerNotebooks",
}
"""Names of service-linked roles. Source: the services' guides, "Using service-linked roles"."""


def create_service_linked_role(context: CloudWatchCall, params: Json) -> Json:
    service = params["AWSServiceName"]
    base = _LINKED_NAMES.get(service) or "".join(word.title() for word in service.split(".")[0].split("-"))
    suffix = f"_{params['CustomSuffix']}" if params.get("CustomSuffix") else ""
    name = f"AWSServiceRoleFor{base}{suffix}"
    members = {
        "Path": f"{_SERVICE_PATH}{service}/",
        "AssumeRolePolicyDocument": _TRUST.replace("sagemaker.amazonaws.com", service),
        "MaxSessionDuration": 3600,
        **({"Description": params["Description"]} if "Description" in params else {}),
    }
    if context.store.get(ROLES.kind, name) is not None:
        message = f"Service role name {name} has been taken in this account, please try a different suffix."
        raise AwsError("InvalidInput", message)
    return ROLES.add(context, name, StoredSpec(members=members), {})


def delete_service_linked_role(context: CloudWatchCall, params: Json) -> Json:
    """Answer DeleteServiceLinkedRole; the role is gone at once."""
    record = ROLES.find(context, params)
    if not record.spec.members["Path"].startswith(_SERVICE_PATH):
        raise AwsError("InvalidInput", f"{record.name} is not a service-linked role. Use DeleteRole.")
    context.store.remove(record)
    return {"DeletionTaskId": f"task{record.spec.members['Path']}{record.name}/{record.uid}"}


def get_deletion_status(_context: CloudWatchCall, params: Json) -> Json:
    if not params["DeletionTaskId"].startswith(f"task{_SERVICE_PATH}"):
        raise AwsError("NoSuchEntity", "The deletion task cannot be found.", status=_NOT_FOUND)
    return {"Status": "SUCCEEDED"}
