"""Handlers of CloudWatch's tag operations; alarms are the only resources that have tags."""

from collections.abc import Sequence

from headrace.cloudwatch.alarms.records import ALARM, AlarmRecord, alarm_arn
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import invalid_value
from headrace.state.records import Json, Unreadable
from headrace.wire.aws.errors import AwsError

_MAX_TAGS = 50


def parse_tags(given: Sequence[Json] | None) -> dict[str, str]:
    """
    Parse a list of tags.

    Raises:
        AwsError: A key is given twice or begins with `aws:`, or there are more than 50 tags.
    """
    tags: dict[str, str] = {}
    for tag in given or ():
        if tag["Key"] in tags:
            raise invalid_value(f"The tag key {tag['Key']} is given twice in Tags. Tag keys are unique.")
        if tag["Key"].lower().startswith("aws:"):
            raise invalid_value(f"The tag key {tag['Key']} begins with aws:, which is reserved. Choose another one.")
        tags[tag["Key"]] = tag["Value"]
    _check_number(tags)
    return tags


def tag_resource(context: CloudWatchCall, params: Json) -> Json:
    """TagResource."""
    record = _find(context, params["ResourceARN"])
    tags = {**record.tags, **parse_tags(params["Tags"])}
    _check_number(tags)
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CloudWatchCall, params: Json) -> Json:
    """UntagResource; unknown keys are ignored."""
    record, removed = _find(context, params["ResourceARN"]), set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
    return {}


def list_tags_for_resource(context: CloudWatchCall, params: Json) -> Json:
    """ListTagsForResource."""
    tags = _find(context, params["ResourceARN"]).tags
    return {"Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]}


def _find(context: CloudWatchCall, arn: str) -> AlarmRecord | Unreadable:
    record = context.store.get(ALARM, arn.partition(":alarm:")[2])
    if record is None or alarm_arn(context.aws_scope, record.name) != arn:
        members = {"ResourceType": "alarm", "ResourceId": arn}
        raise AwsError("ResourceNotFoundException", f"There is no alarm {arn}.", status=404, members=members)
    return record


def _check_number(tags: dict[str, str]) -> None:
    if len(tags) > _MAX_TAGS:
        raise invalid_value(f"The alarm would have {len(tags)} tags; expected at most {_MAX_TAGS}.")
