"""Model cards: operations to create, describe, update, list and delete them."""

import json
from collections.abc import Iterator

import msgspec

from headrace.platform.control.api.context import PAGE_SIZE, PAGES, CallContext, list_page
from headrace.platform.control.api.identity import created_by
from headrace.platform.control.model.cards import MAX_VERSIONS, MODEL_CARD, CardSpec, CardVersion
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.state.records import Json, NoStatus, Record, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error

CardRecord = Record[CardSpec, NoStatus]


def create_card(context: CallContext, params: Json) -> Json:
    name = params["ModelCardName"]
    _check_content(params["Content"])
    context.refuse_existing(MODEL_CARD, name)
    first = _version(context, params["Content"], params["ModelCardStatus"])
    spec = CardSpec(versions=[first], security=params.get("SecurityConfig"))
    return {"ModelCardArn": context.create(MODEL_CARD, name, spec=spec, params=params)}


def describe_card(context: CallContext, params: Json) -> Json:
    record = _readable(context, params["ModelCardName"])
    number = params.get("ModelCardVersion", len(record.spec.versions))
    if not 1 <= number <= len(record.spec.versions):
        raise AwsError("ResourceNotFound", f"Modelcard with name {record.name} has no version {number}")
    version = record.spec.versions[number - 1]
    is_metadata = params.get("IncludedData") == "MetadataOnly"
    security = {} if record.spec.security is None else {"SecurityConfig": record.spec.security}
    return {
        **_version_summary(context, record, number),
        **security,
        "Content": "" if is_metadata else version.content,
        "CreatedBy": created_by(context.aws_scope),
        "LastModifiedBy": created_by(context.aws_scope),
    }


def update_card(context: CallContext, params: Json) -> Json:
    """Answer UpdateModelCard: another content is a new version, and another status one of the newest version."""
    record = _readable(context, params["ModelCardName"])
    content, status = params.get("Content"), params.get("ModelCardStatus")
    if (content is None) == (status is None):
        raise validation_error("Give either Content or ModelCardStatus: one call cannot update both.")
    *older, newest = record.spec.versions
    if content is not None:
        _check_content(content)
        if len(record.spec.versions) >= MAX_VERSIONS:
            raise AwsError("ResourceLimitExceeded", f"The model card has {MAX_VERSIONS} versions, the maximum.")
        versions = [*older, newest, _version(context, content, newest.status)]
    else:
        versions = [*older, msgspec.structs.replace(newest, status=status, modified_s=context.now_s)]
    context.store.update(record, spec=msgspec.structs.replace(record.spec, versions=versions))
    return {"ModelCardArn": context.arn(MODEL_CARD, record.name)}


def list_cards(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        for record in context.store.each(MODEL_CARD, selection):
            if isinstance(record, Record):
                summary = _version_summary(context, record, len(record.spec.versions))
                if params.get("ModelCardStatus") in (None, summary["ModelCardStatus"]):
                    del summary["ModelCardVersion"]
                    yield {**summary, "CreationTime": record.created_s}

    return list_page(read, params, word="ModelCard", member="ModelCardSummaries")


def list_card_versions(context: CallContext, params: Json) -> Json:
    record = _readable(context, params["ModelCardName"])
    after_s, before_s = params.get("CreationTimeAfter", 0.0), params.get("CreationTimeBefore", float("inf"))
    summaries = [_version_summary(context, record, number + 1) for number in range(len(record.spec.versions))]
    fitting = [
        summary
        for summary in summaries
        if after_s < summary["CreationTime"] < before_s
        and params.get("ModelCardStatus") in (None, summary["ModelCardStatus"])
    ]
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    page, token = PAGES.page(
        fitting,
        params,
        listing=f"versions of {record.name}",
        key=lambda summary: (summary["ModelCardVersion"],),
        size=params.get("MaxResults", PAGE_SIZE),
        is_descending=is_descending,
    )
    return {"ModelCardVersionSummaryList": page, **token}


def delete_card(context: CallContext, params: Json) -> Json:
    context.store.remove(_card(context, params["ModelCardName"]))
    return {}


def _version(context: CallContext, content: str, status: str) -> CardVersion:
    return CardVersion(content=content, status=status, created_s=context.now_s, modified_s=context.now_s)


def _version_summary(context: CallContext, record: CardRecord, number: int) -> Json:
    version = record.spec.versions[number - 1]
    return {
        "ModelCardName": record.name,
        "ModelCardArn": context.arn(MODEL_CARD, record.name),
        "ModelCardVersion": number,
        "ModelCardStatus": version.status,
        "CreationTime": version.created_s,
        "LastModifiedTime": version.modified_s,
    }


def _card(context: CallContext, name_or_arn: str) -> CardRecord | Unreadable:
    name = name_or_arn.rpartition("/")[2]
    record = context.store.find(MODEL_CARD, name)
    is_elsewhere = name_or_arn.startswith("arn:") and name_or_arn.lower() != context.arn(MODEL_CARD, name)
    if record is None or is_elsewhere:
        raise AwsError("ResourceNotFound", f"Modelcard with name {name} does not exist")
    return record


def _readable(context: CallContext, name_or_arn: str) -> CardRecord:
    record = _card(context, name_or_arn)
    if isinstance(record, Unreadable):
        raise validation_error(unreadable_message(record))
    return record


def _check_content(content: str) -> None:
    """Check that the content is JSON; the schema of AWS's console is not checked."""
    try:
        is_object = isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise validation_error("Content is no JSON object; expected one by the model card JSON schema.")
