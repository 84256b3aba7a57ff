"""TagResource, UntagResource, ListTagsForResource: only scalable targets have tags."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.autoscaling.planning.targets import target_arn
from headrace.control.model.kinds import SCALABLE_TARGET
from headrace.state.records import RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

_MAX_TAGS = 50


def tag_resource(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """TagResource."""
    record = _tagged(context, params["ResourceARN"])
    reserved = next((key for key in params["Tags"] if key.lower().startswith("aws:")), None)
    if reserved is not None:
        raise validation_error(f"The tag key {reserved} begins with aws:, which is reserved. Choose another one.")
    tags = {**record.tags, **params["Tags"]}
    if len(tags) > _MAX_TAGS:
        message = f"The scalable target would have {len(tags)} tags; at most {_MAX_TAGS} are allowed."
        raise AwsError("TooManyTagsException", message, members={"ResourceName": params["ResourceARN"]})
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """UntagResource; keys that are not there do no harm."""
    record = _tagged(context, params["ResourceARN"])
    gone = set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in gone})
    return {}


def list_tags_for_resource(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """ListTagsForResource."""
    return {"Tags": dict(sorted(_tagged(context, params["ResourceARN"]).tags.items()))}


def _tagged(context: CallContext, arn: str) -> RawRecord:
    for record in context.store.list(SCALABLE_TARGET):
        if target_arn(context.aws_scope, record) == arn:
            return record
    message = f"There is no scalable target with the ARN {arn}."
    raise AwsError("ResourceNotFoundException", message, members={"ResourceName": arn})
