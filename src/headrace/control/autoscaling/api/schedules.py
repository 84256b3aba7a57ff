"""PutScheduledAction, DeleteScheduledAction, DescribeScheduledActions."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.autoscaling.api.pages import page
from headrace.control.autoscaling.planning import schedule
from headrace.control.autoscaling.planning.targets import (
    NAMESPACE,
    TargetKey,
    child_name,
    identity_members,
    object_not_found,
    read_key,
    scheduled_action_arn,
)
from headrace.control.autoscaling.records.removal import children
from headrace.control.model.kinds import SCALABLE_TARGET, SCHEDULED_ACTION
from headrace.state.records import AlreadyExists, Conflict, Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

_MAX_ACTIONS = 200
"""Source: Application Auto Scaling user guide, "Quotas"."""
_SHOWN = ("ScheduledActionName", "Schedule", "Timezone", "StartTime", "EndTime", "ScalableTargetAction")


def put_scheduled_action(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """PutScheduledAction: a new one, or other members of an old one; times that are not given are forgotten."""
    key = read_key(params)
    if context.store.get(SCALABLE_TARGET, key.name) is None:
        raise object_not_found("No scalable target registered for", key)
    name = params["ScheduledActionName"]
    record = context.store.get(SCHEDULED_ACTION, child_name(key, name))
    spec = _spec(key, params, record.spec if record is not None else {}, now_s=context.now_s)
    _check(spec)
    if record is not None:
        context.store.update(record, spec=spec)
        return {}
    if len(children(context.store, SCHEDULED_ACTION, key.name)) >= _MAX_ACTIONS:
        raise AwsError("LimitExceededException", f"A scalable target has at most {_MAX_ACTIONS} scheduled actions.")
    try:
        context.store.create(SCHEDULED_ACTION, child_name(key, name), spec=spec)
    except AlreadyExists as error:
        raise Conflict(str(error)) from None
    return {}


def delete_scheduled_action(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteScheduledAction."""
    key, name = read_key(params), params["ScheduledActionName"]
    record = context.store.get(SCHEDULED_ACTION, child_name(key, name))
    if record is None:
        raise object_not_found("No scheduled action found for", key, f", scheduled action name: {name}")
    context.store.remove(record)
    return {}


def describe_scheduled_actions(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeScheduledActions."""
    names, resource, dimension = (
        params.get(one) for one in ("ScheduledActionNames", "ResourceId", "ScalableDimension")
    )
    if dimension and not resource:
        raise validation_error("ScalableDimension is given without ResourceId. Give both, or neither.")
    found = [
        record
        for record in context.store.list(SCHEDULED_ACTION)
        if params["ServiceNamespace"] == NAMESPACE
        and (not names or record.spec["ScheduledActionName"] in names)
        and resource in (None, record.spec["ResourceId"])
        and dimension in (None, record.spec["ScalableDimension"])
    ]
    return page(found, params, member="ScheduledActions", shown=lambda record: _shown(context, record))


def _spec(key: TargetKey, params: Json, old: Json, *, now_s: float) -> Json:
    """What an action is; `put_s` (when it was put last) is where its schedule counts from."""
    kept: Json = {name: old[name] for name in ("Schedule", "Timezone", "ScalableTargetAction") if name in old}
    given: Json = {name: params[name] for name in _SHOWN if name in params}
    return {**identity_members(key), **kept, **given, "put_s": now_s}


def _check(spec: Json) -> None:
    """
    Hold a scheduled action to its rules.

    Raises:
        AwsError: ValidationException.
    """
    if not spec.get("Schedule"):
        raise validation_error(f"Schedule cannot be null for a new scheduled action. Wanted: {schedule.FORMS}.")
    try:
        schedule.parse(spec["Schedule"], spec.get("Timezone"))
    except ValueError as error:
        raise validation_error(str(error)) from error
    bounds: Json = spec.get("ScalableTargetAction") or {}
    minimum, maximum = bounds.get("MinCapacity"), bounds.get("MaxCapacity")
    if minimum is None and maximum is None:
        raise validation_error("At least one of minimum capacity and maximum capacity should be provided")
    if (minimum is not None and minimum < 0) or (maximum is not None and maximum < 0):
        raise validation_error("Minimum capacity and maximum capacity cannot be less than 0.")
    if minimum is not None and maximum is not None and maximum < minimum:
        raise validation_error("Maximum capacity cannot be less than minimum capacity")
    start_s, end_s = spec.get("StartTime"), spec.get("EndTime")
    if start_s is not None and end_s is not None and end_s < start_s:
        raise validation_error("EndTime cannot be before StartTime.")


def _shown(context: CallContext, record: RawRecord) -> dict[str, Any]:
    spec = record.spec
    members = {name: spec[name] for name in _SHOWN if name in spec}
    return {
        **identity_members(read_key(spec)),
        **members,
        "ScheduledActionARN": scheduled_action_arn(context.aws_scope, record),
        "CreationTime": record.created_s,
    }
