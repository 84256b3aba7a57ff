"""TagResource, UntagResource and ListTagsForResource of CloudWatch, which are of alarms here."""

from collections.abc import Sequence
from typing import Any

from headrace.cloudwatch.alarms.records import ALARM, alarm_arn
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import invalid_value
from headrace.state.records import Json, RawRecord
from headrace.wire.aws.errors import AwsError

_MAX_TAGS = 50


def read_tags(given: Sequence[Json] | None) -> dict[str, str]:
    """
    Tags by their keys.

    Raises:
        AwsError: a key stands there twice or begins with `aws:`, or there are more than 50.
    """
    tags: dict[str, str] = {}
    for tag in given or ():
        if tag["Key"] in tags:
            raise invalid_value(f"The tag key {tag['Key']} stands in Tags twice. Tag keys are unique.")
        if tag["Key"].lower().startswith("aws:"):
            raise invalid_value(f"The tag key {tag['Key']} begins with aws:, which is reserved. Choose another one.")
        tags[tag["Key"]] = tag["Value"]
    _check_number(tags)
    return tags


def tag_resource(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """TagResource."""
    record = _tagged(context, params["ResourceARN"])
    tags = {**record.tags, **read_tags(params["Tags"])}
    _check_number(tags)
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """UntagResource; keys that are not there do no harm."""
    record, gone = _tagged(context, params["ResourceARN"]), set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in gone})
    return {}


def list_tags_for_resource(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """ListTagsForResource."""
    tags = _tagged(context, params["ResourceARN"]).tags
    return {"Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]}


def _tagged(context: CloudWatchCall, arn: str) -> RawRecord:
    record = context.store.get(ALARM, arn.partition(":alarm:")[2])
    if record is None or alarm_arn(context.aws_scope, record.name) != arn:
        members = {"ResourceType": "alarm", "ResourceId": arn}
        raise AwsError("ResourceNotFoundException", f"There is no alarm {arn}.", status=404, members=members)
    return record


def _check_number(tags: dict[str, str]) -> None:
    if len(tags) > _MAX_TAGS:
        raise invalid_value(f"The alarm would have {len(tags)} tags; at most {_MAX_TAGS} are allowed.")
