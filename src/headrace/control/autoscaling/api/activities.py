"""DescribeScalingActivities."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.autoscaling.api.pages import page
from headrace.control.autoscaling.planning.targets import NAMESPACE
from headrace.control.autoscaling.records.activities import MAX_AGE_S, OWN_MEMBERS
from headrace.control.model.kinds import SCALING_ACTIVITY
from headrace.state.records import RawRecord
from headrace.wire.aws.errors import validation_error


def describe_scaling_activities(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeScalingActivities, newest first; those that scaled nothing only if they are asked for."""
    resource, dimension = params.get("ResourceId"), params.get("ScalableDimension")
    if dimension and not resource:
        raise validation_error("ScalableDimension is given without ResourceId. Give both, or neither.")
    with_not_scaled = params.get("IncludeNotScaledActivities", False)
    found = [
        record
        for record in context.store.list(SCALING_ACTIVITY)
        if params["ServiceNamespace"] == NAMESPACE
        and resource in (None, record.spec["ResourceId"])
        and dimension in (None, record.spec["ScalableDimension"])
        and (with_not_scaled or "NotScaledReasons" not in record.spec)
        and record.spec["StartTime"] >= context.now_s - MAX_AGE_S
    ]
    return page(found, params, member="ScalingActivities", shown=_shown, is_newest_first=True)


def _shown(record: RawRecord) -> dict[str, Any]:
    return {name: value for name, value in record.spec.items() if name not in OWN_MEMBERS}
