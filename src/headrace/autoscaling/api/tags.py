"""Handlers of Application Auto Scaling's tag operations; scalable targets are the only resources that have tags."""

from headrace.autoscaling.planning.targets import SCALABLE_TARGET, TargetRecord, target_arn
from headrace.control.api.context import CallContext
from headrace.state.records import Json, Unreadable
from headrace.wire.aws.errors import AwsError, validation_error

_MAX_TAGS = 50


def tag_resource(context: CallContext, params: Json) -> Json:
    """TagResource."""
    record = _find(context, params["ResourceARN"])
    reserved = next((key for key in params["Tags"] if key.lower().startswith("aws:")), None)
    if reserved is not None:
        raise validation_error(f"The tag key {reserved} begins with aws:, which is reserved. Choose another one.")
    tags = {**record.tags, **params["Tags"]}
    if len(tags) > _MAX_TAGS:
        message = f"The scalable target would have {len(tags)} tags; expected at most {_MAX_TAGS}."
        raise AwsError("TooManyTagsException", message, members={"ResourceName": params["ResourceARN"]})
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CallContext, params: Json) -> Json:
    """UntagResource; unknown keys are ignored."""
    record = _find(context, params["ResourceARN"])
    removed = set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
    return {}


def list_tags_for_resource(context: CallContext, params: Json) -> Json:
    """ListTagsForResource."""
    return {"Tags": dict(sorted(_find(context, params["ResourceARN"]).tags.items()))}


def _find(context: CallContext, arn: str) -> TargetRecord | Unreadable:
    for record in context.store.list(SCALABLE_TARGET):
        if target_arn(context.aws_scope, record) == arn:
            return record
    message = f"There is no scalable target with the ARN {arn}."
    raise AwsError("ResourceNotFoundException", message, members={"ResourceName": arn})
