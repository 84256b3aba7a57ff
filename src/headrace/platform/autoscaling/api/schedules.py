"""Handlers of PutScheduledAction, DeleteScheduledAction and DescribeScheduledActions."""

from functools import partial

import msgspec

from headrace.platform.autoscaling.api.requests import (
    check_selection,
    create,
    object_not_found,
    of_resource,
    page,
    read_key,
    read_registered,
    require_readable,
)
from headrace.platform.autoscaling.planning import schedule
from headrace.platform.autoscaling.planning.targets import (
    SCHEDULED_ACTION,
    CapacityBounds,
    ScheduledActionRecord,
    ScheduledActionSpec,
    TargetKey,
    child_arn,
    child_name,
)
from headrace.platform.autoscaling.records.policies import children
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError, validation_error

_MAX_ACTIONS = 200
"""Source: Application Auto Scaling user guide, "Quotas"."""


def put_scheduled_action(context: CallContext, params: Json) -> Json:
    """Answer PutScheduledAction: create an action, or change one; times that are not given are removed."""
    key = read_registered(context, params)
    name = params["ScheduledActionName"]
    record = context.store.get(SCHEDULED_ACTION, child_name(key, name))
    old: ScheduledActionRecord | None = None if record is None else require_readable(record)
    spec = _parse(key, params, old, now_s=context.now_s)
    if old is not None:
        context.store.update(old, spec=spec)
        return {}
    if len(children(context.store, SCHEDULED_ACTION, key.name)) >= _MAX_ACTIONS:
        raise AwsError("LimitExceededException", f"A scalable target has at most {_MAX_ACTIONS} scheduled actions.")
    create(context, SCHEDULED_ACTION, child_name(key, name), spec)
    return {}


def delete_scheduled_action(context: CallContext, params: Json) -> Json:
    key, name = read_key(params), params["ScheduledActionName"]
    record = context.store.get(SCHEDULED_ACTION, child_name(key, name))
    if record is None:
        raise object_not_found("No scheduled action found for", key, f", scheduled action name: {name}")
    context.store.remove(record)
    return {}


def describe_scheduled_actions(context: CallContext, params: Json) -> Json:
    check_selection(params)
    names = params.get("ScheduledActionNames")
    return page(
        context.store,
        SCHEDULED_ACTION,
        params,
        member="ScheduledActions",
        fits=lambda record: not names or record.spec.scheduled_action_name in names,
        render=partial(_render, context),
        selection=of_resource(params),
    )


def _parse(key: TargetKey, params: Json, old: ScheduledActionRecord | None, *, now_s: float) -> ScheduledActionSpec:
    """Merge the given members into the old ones, and check them by the rules of scheduled actions."""
    expression = params.get("Schedule") or (old.spec.schedule if old else "")
    timezone = params.get("Timezone", old.spec.timezone if old else None)
    if not expression:
        raise validation_error(f"Schedule cannot be null for a new scheduled action; expected {schedule.FORMS}.")
    try:
        schedule.parse(expression, timezone)
    except ValueError as error:
        raise validation_error(str(error)) from error
    bounds = old.spec.scalable_target_action if old else CapacityBounds()
    if "ScalableTargetAction" in params:
        bounds = msgspec.convert(params["ScalableTargetAction"], CapacityBounds)
    _check_bounds(bounds)
    start_s, end_s = params.get("StartTime"), params.get("EndTime")
    if start_s is not None and end_s is not None and end_s < start_s:
        raise validation_error("EndTime cannot be before StartTime.")
    return ScheduledActionSpec(
        resource_id=key.resource_id,
        scalable_dimension=key.dimension,
        scheduled_action_name=params["ScheduledActionName"],
        schedule=expression,
        timezone=timezone,
        start_time=start_s,
        end_time=end_s,
        scalable_target_action=bounds,
        put_s=now_s,
    )


def _check_bounds(bounds: CapacityBounds) -> None:
    minimum, maximum = bounds.min_capacity, bounds.max_capacity
    if minimum is None and maximum is None:
        raise validation_error("At least one of minimum capacity and maximum capacity should be provided")
    if (minimum is not None and minimum < 0) or (maximum is not None and maximum < 0):
        raise validation_error("Minimum capacity and maximum capacity cannot be less than 0.")
    if minimum is not None and maximum is not None and maximum < minimum:
        raise validation_error("Maximum capacity cannot be less than minimum capacity")


def _render(context: CallContext, record: ScheduledActionRecord) -> Json:
    spec = record.spec
    members: Json = msgspec.to_builtins(spec)
    del members["put_s"]
    members["ScalableTargetAction"] = _given(members["ScalableTargetAction"])
    return {
        **_given(members),
        "ScheduledActionARN": child_arn(
            context.aws_scope,
            record,
            spec.key,
            kind="scheduledAction",
            title="scheduledActionName",
            name=spec.scheduled_action_name,
        ),
        "CreationTime": record.created_s,
    }


def _given(members: Json) -> Json:
    return {name: value for name, value in members.items() if value is not None}
