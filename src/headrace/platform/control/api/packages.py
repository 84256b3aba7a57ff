"""The model registry: operations on model packages and their groups, and the containers that models take from them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from headrace.platform.control.api.context import CallContext, check_environment, check_number, list_page, without
from headrace.platform.control.api.identity import created_by
from headrace.platform.control.model.packages import (
    MODEL_PACKAGE,
    MODEL_PACKAGE_GROUP,
    PackageGroupSpec,
    PackageSpec,
    split_name,
)
from headrace.platform.state.records import AlreadyExists, Conflict, Json, NoStatus, Record, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error

GroupRecord = Record[PackageGroupSpec, NoStatus]
PackageRecord = Record[PackageSpec, NoStatus]
_MAX_ADDITIONAL: Final = 15
"""Inference specifications beside the first. Source: botocore's model, AdditionalInferenceSpecifications."""
_SUMMARY: Final = (
    "ModelPackageDescription",
    "ModelApprovalStatus",
    "ModelLifeCycle",
    "ModelPackageRegistrationType",
)
_CONTAINER: Final = (
    *("Image", "ModelDataUrl", "ModelDataSource", "Environment", "AdditionalModelDataSources"),
    "ContainerHostname",
)
"""The members of a package's container that a model's container has too."""


def create_group(context: CallContext, params: Json) -> Json:
    name = params["ModelPackageGroupName"]
    context.refuse_existing(MODEL_PACKAGE_GROUP, name)
    spec = PackageGroupSpec(members=without(params, "Tags"))
    arn = context.create(MODEL_PACKAGE_GROUP, name, spec=spec, params=params)
    return {"ModelPackageGroupArn": arn}


def describe_group(context: CallContext, params: Json) -> Json:
    record = _group(context, params)
    return {**_group_summary(context, record), "CreatedBy": created_by(context.aws_scope)}


def list_groups(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        if params.get("CrossAccountFilterOption") == "CrossAccount":
            return iter(())
        return (_group_summary(context, record) for record in context.store.each(MODEL_PACKAGE_GROUP, selection))

    return list_page(read, params, word="ModelPackageGroup", member="ModelPackageGroupSummaryList")


def delete_group(context: CallContext, params: Json) -> Json:
    record = context.find(MODEL_PACKAGE_GROUP, context.name_of(MODEL_PACKAGE_GROUP, params["ModelPackageGroupName"]))
    for _ in context.store.entries(MODEL_PACKAGE, Selection(name_prefix=f"{record.name}/")):
        raise AwsError(
            "ConflictException",
            f"Model Package Group {context.arn(MODEL_PACKAGE_GROUP, record.name)} cannot be deleted because it still "
            "contains Model Packages.",
        )
    context.store.remove(record)
    return {}


def put_group_policy(context: CallContext, params: Json) -> Json:
    record = _group_with_policy(context, params)
    context.store.update(record, spec=msgspec.structs.replace(record.spec, policy=params["ResourcePolicy"]))
    return {"ModelPackageGroupArn": context.arn(MODEL_PACKAGE_GROUP, record.name)}


def get_group_policy(context: CallContext, params: Json) -> Json:
    return {"ResourcePolicy": _policy(context, _group_with_policy(context, params))}


def delete_group_policy(context: CallContext, params: Json) -> Json:
    record = _group_with_policy(context, params)
    _policy(context, record)
    context.store.update(record, spec=msgspec.structs.replace(record.spec, policy=""))
    return {}


def create_package(context: CallContext, params: Json) -> Json:
    """Answer CreateModelPackage; the package is `Completed` at once, because there is nothing to validate."""
    is_versioned = bool(params.get("ModelPackageGroupName"))
    if is_versioned and params.get("ModelPackageName"):
        raise validation_error(
            "Both ModelPackageName and ModelPackageGroupName are provided in the input. Cannot determine which one to "
            "use."
        )
    if not is_versioned and not params.get("ModelPackageName"):
        raise validation_error("Missing ARN. Give ModelPackageName or ModelPackageGroupName.")
    _check_specifications(params)
    members = without(params, "Tags", "ClientToken", "ModelPackageName", "ModelPackageGroupName")
    if is_versioned:
        if params.get("Tags"):
            raise validation_error("A version has the tags of its group. Give Tags to the model package group.")
        members.setdefault("ModelApprovalStatus", "PendingManualApproval")
        return {"ModelPackageArn": _create_version(context, params, members)}
    _check_unversioned(params)
    return {"ModelPackageArn": _create_unversioned(context, params, without(members, "ModelApprovalStatus"))}


def describe_package(context: CallContext, params: Json) -> Json:
    """Answer DescribeModelPackage; a version has no ModelPackageName, which the SDK 3.x relies on."""
    record = _package(context, params["ModelPackageName"])
    members, card = record.spec.members, record.spec.members.get("ModelCard")
    if card and params.get("IncludedData") == "MetadataOnly":
        members = {**members, "ModelCard": without(card, "ModelCardContent")}
    changed: Json = {}
    if record.modified_s > record.created_s:
        changed = {"LastModifiedTime": record.modified_s, "LastModifiedBy": created_by(context.aws_scope)}
    return {
        "CertifyForMarketplace": False,
        **members,
        **_package_summary(context, record),
        "ModelPackageStatusDetails": {"ValidationStatuses": [], "ImageScanStatuses": []},
        "CreatedBy": created_by(context.aws_scope),
        **changed,
    }


def list_packages(context: CallContext, params: Json) -> Json:
    group = _group(context, params).name if params.get("ModelPackageGroupName") else None
    package_type = params.get("ModelPackageType", "Unversioned" if group is None else "Versioned")
    part = params.get("NameContains", "").lower()

    def read(selection: Selection) -> Iterator[Json]:
        if group is not None:
            selection = replace(selection, name_prefix=f"{group}/")
        for record in context.store.each(MODEL_PACKAGE, selection):
            base, version = split_name(record.name)
            summary = _package_summary(context, record)
            if (
                package_type in ("Both", "Unversioned" if version is None else "Versioned")
                and part in base.lower()
                and params.get("ModelApprovalStatus") in (None, summary.get("ModelApprovalStatus"))
            ):
                yield {**summary, "ModelPackageName": record.name}

    page = list_page(read, params, word="ModelPackage", member="ModelPackageSummaryList")
    versions = [summary for summary in page["ModelPackageSummaryList"] if "ModelPackageVersion" in summary]
    for summary in versions:
        del summary["ModelPackageName"]  # by which `list_page` sorts
    return page


def batch_describe_packages(context: CallContext, params: Json) -> Json:
    found: Json = {}
    errors: Json = {}
    for arn in params["ModelPackageArnList"]:
        try:
            record = _package(context, arn)
            summary = _package_summary(context, record)
            specification = record.spec.members.get("InferenceSpecification")
            if specification is None:
                raise validation_error(f"ModelPackage {arn} has no InferenceSpecification.")
        except AwsError as error:
            errors[arn] = {"ErrorCode": error.code, "ErrorResponse": error.message}
            continue
        found[arn] = {
            "ModelPackageGroupName": split_name(record.name)[0],
            **without(summary, "ModelPackageName", "ModelLifeCycle"),
            "InferenceSpecification": specification,
        }
    return {"ModelPackageSummaries": found, "BatchDescribeModelPackageErrorMap": errors}


def update_package(context: CallContext, params: Json) -> Json:
    record = _package(context, params["ModelPackageArn"])
    members = record.spec.members
    if params.get("ModelApprovalStatus") and split_name(record.name)[1] is None:
        raise validation_error("ModelApprovalStatus does not apply to unversioned model packages. Leave it out.")
    metadata = {**members.get("CustomerMetadataProperties", {}), **params.get("CustomerMetadataProperties", {})}
    changed = {
        **members,
        **without(params, "ModelPackageArn", "ClientToken"),
        "CustomerMetadataProperties": without(metadata, *params.get("CustomerMetadataPropertiesToRemove", ())),
        "AdditionalInferenceSpecifications": [
            *members.get("AdditionalInferenceSpecifications", ()),
            *params.get("AdditionalInferenceSpecificationsToAdd", ()),
        ],
    }
    for instruction in ("CustomerMetadataPropertiesToRemove", "AdditionalInferenceSpecificationsToAdd"):
        changed.pop(instruction, None)
    for name in ("CustomerMetadataProperties", "AdditionalInferenceSpecifications"):
        if not changed[name]:
            del changed[name]
    _check_specifications(changed)
    context.store.update(record, spec=PackageSpec(members=changed, call_id=record.spec.call_id))
    return {"ModelPackageArn": context.arn(MODEL_PACKAGE, record.name)}


def delete_package(context: CallContext, params: Json) -> Json:
    context.store.remove(context.find(MODEL_PACKAGE, context.name_of(MODEL_PACKAGE, params["ModelPackageName"])))
    return {}


def package_containers(context: CallContext, container: Json) -> list[Json]:
    """
    Return the containers of a model for one that names a package: those of the package, with their images and files.

    Raises:
        AwsError: the package does not exist, is not approved, or has no container that Headrace can serve.
    """
    if given := [name for name in ("Image", "ModelDataUrl", "ModelDataSource") if container.get(name)]:
        raise validation_error(f"The container has a ModelPackageName, and {given[0]} too. Give one of them.")
    record = _package(context, container["ModelPackageName"])
    arn = context.arn(MODEL_PACKAGE, record.name)
    status = record.spec.members.get("ModelApprovalStatus", "Approved")
    if status != "Approved":
        raise validation_error(
            f"ModelPackage {arn} has the ModelApprovalStatus {status}; expected Approved. Approve it with "
            "UpdateModelPackage."
        )
    packed = _containers_in(record.spec.members, arn, container.get("InferenceSpecificationName"))
    return [_with_package(container, each) for each in packed]


def _with_package(container: Json, packed: Json) -> Json:
    kept = {name: packed[name] for name in _CONTAINER if packed.get(name)}
    environment = {**packed.get("Environment", {}), **container.get("Environment", {})}
    own = without(container, "ModelPackageName", "InferenceSpecificationName")
    return {**kept, **own, **({"Environment": environment} if environment else {})}


def _containers_in(members: Json, arn: str, specification_name: str | None) -> list[Json]:
    """Return the containers of the package's specification, or of the additional one with a name."""
    additional = {each["Name"]: each for each in members.get("AdditionalInferenceSpecifications", ())}
    specification = members.get("InferenceSpecification")
    if specification_name:
        specification = additional.get(specification_name)
    if specification is None:
        named = f" {specification_name}" if specification_name else ""
        raise validation_error(f"ModelPackage {arn} has no inference specification{named}. Add it to the package.")
    containers: list[Json] = specification["Containers"]
    for refused, why in (("ProductId", "Marketplace products"), ("AdditionalS3DataSource", "additional S3 sources")):
        if any(each.get(refused) for each in containers):
            raise validation_error(
                f"ModelPackage {arn} has a container with {refused}: {why} are not supported by Headrace. Register the "
                "image and its files without it."
            )
    return containers


def _create_version(context: CallContext, params: Json, members: Json) -> str:
    """
    Add the next version of a group, and return its ARN.

    The group's record is written first: of several calls at once, each gets a number, and none is left out. If the
    group is deleted between the two writes, the version is removed.
    """
    check_number(context.store, MODEL_PACKAGE)
    group, token = _group(context, params), params.get("ClientToken")
    version = group.spec.versions_by_token.get(token or "")
    if version is None:
        version = group.spec.last_version + 1
        while context.store.find(MODEL_PACKAGE, f"{group.name}/{version}") is not None:
            version += 1  # an earlier Headrace, which wrote the version first, was killed before it wrote the group
        group = context.store.update(group, spec=group.spec.with_version(version, token))
    name = f"{group.name}/{version}"
    # A token's version is missing if the platform was killed between the two writes of its first call.
    with suppress(AlreadyExists):
        package = context.store.create(MODEL_PACKAGE, name, spec=PackageSpec(members=members))
        owner = context.store.find(MODEL_PACKAGE_GROUP, group.name)
        if owner is None or owner.uid != group.uid:
            context.store.remove(package)
            raise Conflict(f"The group {group.name} was deleted by another call.")
    return context.arn(MODEL_PACKAGE, name)


def _create_unversioned(context: CallContext, params: Json, members: Json) -> str:
    name, call_id = params["ModelPackageName"], params.get("ClientToken") or ""
    existing = context.store.find(MODEL_PACKAGE, name)
    if call_id and isinstance(existing, Record) and existing.spec.call_id == call_id:
        return context.arn(MODEL_PACKAGE, existing.name)
    context.refuse_existing(MODEL_PACKAGE, name)
    return context.create(MODEL_PACKAGE, name, spec=PackageSpec(members=members, call_id=call_id), params=params)


def _check_specifications(members: Json) -> None:
    additional = members.get("AdditionalInferenceSpecifications", [])
    names = [specification["Name"] for specification in additional]
    if len(set(names)) < len(names) or len(names) > _MAX_ADDITIONAL:
        raise validation_error(
            f"The package would have the additional inference specifications {', '.join(names)}; expected at most "
            f"{_MAX_ADDITIONAL} with different names."
        )
    for specification in (members.get("InferenceSpecification"), *additional):
        for container in (specification or {}).get("Containers", ()):
            check_environment(container)
            if not container.get("Image"):
                raise validation_error("A container has no Image. Name the image that serves the model.")
            if container.get("ModelDataUrl") and container.get("ModelDataSource"):
                raise validation_error("Both ModelDataUrl and ModelDataSource were given. Give one of them.")


def _check_unversioned(params: Json) -> None:
    """Check what only versions may leave out or have. Source: SageMaker API reference, InferenceSpecification."""
    specification = params.get("InferenceSpecification") or {}
    for name in ("SupportedTransformInstanceTypes", "SupportedRealtimeInferenceInstanceTypes"):
        if not specification.get(name):
            raise validation_error(f"InferenceSpecification has no {name}, which an unversioned package needs.")
    if params.get("SourceUri") or any(container.get("ModelDataSource") for container in specification["Containers"]):
        raise validation_error(
            "An unversioned package cannot have a SourceUri or a ModelDataSource. Register it in a model package group."
        )


def _group(context: CallContext, params: Json) -> GroupRecord:
    return context.get(MODEL_PACKAGE_GROUP, context.name_of(MODEL_PACKAGE_GROUP, params["ModelPackageGroupName"]))


def _package(context: CallContext, name_or_arn: str) -> PackageRecord:
    _check_subscription(context, name_or_arn)
    return context.get(MODEL_PACKAGE, context.name_of(MODEL_PACKAGE, name_or_arn))


def _check_subscription(context: CallContext, package: str) -> None:
    """Refuse a model of AWS Marketplace; the SDK tells a missing subscription by "not subscribed"."""
    row = context.jumpstart.rows.get(package.rpartition("/")[2])
    if row is not None and row.is_marketplace:
        raise validation_error(
            f"Caller is not subscribed to the Marketplace listing of {package}: Headrace serves no models that are "
            f"sold on AWS Marketplace. `headrace jumpstart add {row.model_id} --model MODEL` names another one."
        )


def _group_summary(context: CallContext, record: GroupRecord | Unreadable) -> Json:
    """Return the members that Describe and List share."""
    shown = record.spec.members if isinstance(record, Record) else {}
    return {
        **shown,
        "ModelPackageGroupName": record.name,
        "ModelPackageGroupArn": context.arn(MODEL_PACKAGE_GROUP, record.name),
        "CreationTime": record.created_s,
        "ModelPackageGroupStatus": "Completed" if isinstance(record, Record) else "Failed",
    }


def _package_summary(context: CallContext, record: PackageRecord | Unreadable) -> Json:
    """Return the members that Describe, List and BatchDescribe share."""
    base, version = split_name(record.name)
    shown: Json = {}
    if isinstance(record, Record):
        shown = {name: record.spec.members[name] for name in _SUMMARY if name in record.spec.members}
    named = {"ModelPackageGroupName": base, "ModelPackageVersion": version}
    return {
        **(named if version is not None else {"ModelPackageName": base}),
        "ModelPackageArn": context.arn(MODEL_PACKAGE, record.name),
        "CreationTime": record.created_s,
        "ModelPackageStatus": "Completed" if isinstance(record, Record) else "Failed",
        **shown,
    }


def _group_with_policy(context: CallContext, params: Json) -> GroupRecord:
    name = params["ModelPackageGroupName"]
    if context.store.find(MODEL_PACKAGE_GROUP, name) is None:
        raise validation_error(f"Cannot find Model Package Group: {context.arn(MODEL_PACKAGE_GROUP, name)}")
    return context.get(MODEL_PACKAGE_GROUP, name)


def _policy(context: CallContext, record: GroupRecord) -> str:
    if not record.spec.policy:
        raise validation_error(f"Cannot find resource policy for: {context.arn(MODEL_PACKAGE_GROUP, record.name)}")
    return record.spec.policy
