"""AddTags, ListTags and DeleteTags, on all resources with an ARN."""

from typing import Any

from headrace.platform.control.api.context import CallContext, tags_of
from headrace.platform.control.model.names import parse_arn
from headrace.platform.state.records import Json, Record, Unreadable
from headrace.serving.wire.aws.errors import not_found, validation_error
from headrace.serving.wire.aws.scope import MAX_TAGS


def add_tags(context: CallContext, params: Json) -> Json:
    record = _tagged(context, params["ResourceArn"])
    tags = {**record.tags, **tags_of(params)}
    if len(tags) > MAX_TAGS:
        raise validation_error(f"The resource would have {len(tags)} tags; expected at most {MAX_TAGS}.")
    context.store.update(record, tags=tags)
    return {"Tags": _list(tags)}


def list_tags(context: CallContext, params: Json) -> Json:
    """Answer ListTags with one page: a resource has at most 50 tags."""
    return {"Tags": _list(_tagged(context, params["ResourceArn"]).tags)}


def delete_tags(context: CallContext, params: Json) -> Json:
    """Answer DeleteTags; keys that do not exist are ignored."""
    record = _tagged(context, params["ResourceArn"])
    removed = set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
    return {}


def _tagged(context: CallContext, arn: str) -> Record[Any, Any] | Unreadable:
    parsed = parse_arn(arn)
    record = context.store.find(*parsed) if parsed is not None else None
    if record is None:
        raise not_found("resource", arn)
    return record


def _list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
