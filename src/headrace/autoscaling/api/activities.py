"""Handler of DescribeScalingActivities."""

import msgspec

from headrace.autoscaling.api.pages import page
from headrace.autoscaling.planning.targets import selects
from headrace.autoscaling.records.activities import MAX_AGE_S, SCALING_ACTIVITY, ActivityRecord
from headrace.control.api.context import CallContext
from headrace.state.records import Json, readable
from headrace.wire.aws.errors import validation_error

_OWN_MEMBERS = ("capacity", "previous", "scaling")


def describe_scaling_activities(context: CallContext, params: Json) -> Json:
    """DescribeScalingActivities, newest first; those that scaled nothing only on request."""
    if params.get("ScalableDimension") and not params.get("ResourceId"):
        raise validation_error("ScalableDimension is given without ResourceId. Give both, or neither.")
    with_not_scaled = params.get("IncludeNotScaledActivities", False)
    found = [
        record
        for record in readable(context.store.list(SCALING_ACTIVITY))
        if selects(params, record.spec)
        and (with_not_scaled or record.spec.not_scaled_reasons is None)
        and record.spec.start_time >= context.now_s - MAX_AGE_S
    ]
    return page(found, params, member="ScalingActivities", render=_render, is_newest_first=True)


def _render(record: ActivityRecord) -> Json:
    members = msgspec.to_builtins(record.spec)
    return {name: value for name, value in members.items() if name not in _OWN_MEMBERS and value is not None}
