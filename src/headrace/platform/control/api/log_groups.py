"""
Log groups: records of those that callers created, or changed.

The group of an endpoint exists without a record, as long as one of its workers has a log.
"""

from typing import Final

import msgspec

from headrace.platform.account.resource import (
    Pages,
    Refusal,
    Resource,
    StoredRecord,
    StoredSpec,
    implicit_record,
    stored_kind,
)
from headrace.platform.cluster.log_streams import LogStream
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.log_lines import all_streams
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator

STANDARD: Final = "STANDARD"
"""The class of log groups that name none."""
_DAYS: Final = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""Values of `retentionInDays`. Source: CloudWatch Logs API reference, PutRetentionPolicy."""


_DAY_S: Final = 86_400


def invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterException", message)


LOG_PAGES: Final = Paginator(member="nextToken", invalid_token=lambda: invalid("The specified nextToken is invalid."))


def _implicit_group(context: CallContext, name: str) -> StoredRecord | None:
    created_ms = min((stream.created_ms for stream in all_streams(context) if stream.group == name), default=None)
    if created_ms is None:
        return None
    return implicit_record(LOG_GROUPS.kind, name, members={}, created_s=created_ms / 1000)


LOG_GROUPS: Final = Resource(
    kind=stored_kind("log-group"),
    key="logGroupName",
    list_member="logGroups",
    arn="logs:{region}:{account}:log-group:{name}",
    names=("logGroupName", "resourceArn"),
    pages=Pages(paginator=LOG_PAGES, size_member="limit", size=50),
    absent=Refusal("ResourceNotFoundException", "The specified log group does not exist."),
    present=Refusal("ResourceAlreadyExistsException", "The specified log group already exists"),
    full=Refusal("LimitExceededException", "There are {most} log groups already; delete some first."),
    invalid=Refusal("InvalidParameterException", "{why}"),
    most=10_000,
    arn_member="logGroupArn",
    created_member="creationTime",
    separator=":log-group:",
    defaults={"logGroupClass": STANDARD},
    implicit=_implicit_group,
)


def create_log_group(context: CallContext, params: Json) -> Json:
    if _implicit_group(context, params["logGroupName"]) is not None:
        raise LOG_GROUPS.present.error()
    LOG_GROUPS.create(context, params)
    return {}


def put_retention_policy(context: CallContext, params: Json) -> Json:
    days = params["retentionInDays"]
    if days not in _DAYS:
        raise invalid(f"retentionInDays is {days}; expected one of {', '.join(map(str, _DAYS))}.")
    LOG_GROUPS.update(context, params)
    return {}


def delete_retention_policy(context: CallContext, params: Json) -> Json:
    def without_days(spec: StoredSpec) -> StoredSpec:
        kept = {name: value for name, value in spec.members.items() if name != "retentionInDays"}
        return msgspec.structs.replace(spec, members=kept)

    LOG_GROUPS.change(context, params, without_days)
    return {}


def expiry_ms(context: CallContext, group: str) -> int:
    """Return the time before which the lines of a group have expired; 0: none have."""
    record = context.store.get(LOG_GROUPS.kind, group)
    days = record.spec.members.get("retentionInDays") if isinstance(record, Record) else None
    return int((context.now_s - days * _DAY_S) * 1000) if days else 0


def list_tags_for_resource(context: CallContext, params: Json) -> Json:
    return {"tags": dict(sorted(LOG_GROUPS.find(context, params).tags.items()))}


def untag_log_group(context: CallContext, params: Json) -> Json:
    """Answer UntagLogGroup, which calls the keys `tags`."""
    return LOG_GROUPS.untag(context, {"logGroupName": params["logGroupName"], "tagKeys": params["tags"]})


def stored_groups(context: CallContext) -> dict[str, StoredRecord]:
    return {record.name: record for record in context.store.each(LOG_GROUPS.kind) if isinstance(record, Record)}


def group_json(context: CallContext, name: str, record: StoredRecord | None, streams: list[LogStream]) -> Json:
    """Return a log group as DescribeLogGroups shows it."""
    members = {"logGroupClass": STANDARD} if record is None else record.spec.members
    arn = LOG_GROUPS.arn_of(context, name, StoredSpec(members={}))
    created_ms = [*(() if record is None else (int(record.created_s * 1000),)), *(s.created_ms for s in streams)]
    return {
        "logGroupName": name,
        "creationTime": min(created_ms),
        "metricFilterCount": 0,
        "arn": f"{arn}:*",
        "logGroupArn": arn,
        "storedBytes": sum(context.logs.size_bytes(stream.worker) for stream in streams),
        **LOG_GROUPS.defaults,
        **members,
    }
