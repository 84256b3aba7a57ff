"""PutScalingPolicy, DeleteScalingPolicy, DescribeScalingPolicies, GetPredictiveScalingForecast."""

import uuid
from functools import partial
from typing import Any

from headrace.cloudwatch.alarms.records import ALARM, actions_of, alarm_arn
from headrace.control.api.context import CallContext
from headrace.control.autoscaling.api.pages import page
from headrace.control.autoscaling.planning import step_scaling as step
from headrace.control.autoscaling.planning.policy_alarms import TRACKING, alarm_names, checked_tracking, watched_by
from headrace.control.autoscaling.planning.targets import (
    NAMESPACE,
    TargetKey,
    child_name,
    identity_members,
    object_not_found,
    policy_arn,
    read_key,
)
from headrace.control.autoscaling.planning.triggers import STEPS
from headrace.control.autoscaling.records.alarm_upkeep import ensure_alarms, remove_unwanted
from headrace.control.autoscaling.records.removal import children, remove_policy
from headrace.control.model.kinds import SCALABLE_TARGET, SCALING_POLICY
from headrace.state.records import AlreadyExists, Conflict, Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

_CONFIGS = {"StepScaling": STEPS, "TargetTrackingScaling": TRACKING}
_MAX_POLICIES = 50
_MAX_STEPS = 20
"""Both: Application Auto Scaling user guide, "Quotas"."""
_MAX_RESULTS = 10
"""Policies on a page. Source: API reference, DescribeScalingPolicies."""


def put_scaling_policy(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """PutScalingPolicy: a new policy, or another configuration of an old one; its alarms are there afterwards."""
    key = read_key(params)
    if context.store.get(SCALABLE_TARGET, key.name) is None:
        raise object_not_found("No scalable target registered for", key)
    record = context.store.get(SCALING_POLICY, child_name(key, params["PolicyName"]))
    spec = _spec(key, params, record.spec if record is not None else None)
    _refuse_twin(context, key, spec)
    if record is None:
        record = _create(context, key, spec)
    else:
        record = context.store.update(record, spec=spec)
        remove_unwanted(context.store, context.aws_scope, record)
    find = partial(context.store.get, ALARM)
    ensure_alarms(context.store, context.aws_scope, record, find=find, now_s=context.now_s)
    return {"PolicyARN": policy_arn(context.aws_scope, record), "Alarms": _alarms(context, record, ())}


def delete_scaling_policy(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteScalingPolicy; the alarms that it made go too, a user's own alarm only loses it as an action."""
    key = read_key(params)
    record = context.store.get(SCALING_POLICY, child_name(key, params["PolicyName"]))
    if record is None:
        raise object_not_found("No scaling policy found for", key, f", policy name: {params['PolicyName']}")
    remove_policy(context.store, context.aws_scope, record)
    return {}


def describe_scaling_policies(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeScalingPolicies."""
    names, resource, dimension = (params.get(one) for one in ("PolicyNames", "ResourceId", "ScalableDimension"))
    if dimension and not resource:
        raise validation_error("ScalableDimension is given without ResourceId. Give both, or neither.")
    found = [
        record
        for record in context.store.list(SCALING_POLICY)
        if params["ServiceNamespace"] == NAMESPACE
        and (not names or record.spec["PolicyName"] in names)
        and resource in (None, record.spec["ResourceId"])
        and dimension in (None, record.spec["ScalableDimension"])
    ]
    alarms = context.store.list(ALARM)
    return page(
        found,
        params,
        member="ScalingPolicies",
        shown=lambda record: _shown(context, record, alarms),
        max_results=_MAX_RESULTS,
    )


def get_predictive_scaling_forecast(_context: CallContext, _params: dict[str, Any]) -> dict[str, Any]:
    """GetPredictiveScalingForecast: there are no forecasts here."""
    raise _no_prediction()


def _shown(context: CallContext, record: RawRecord, alarms: Any) -> dict[str, Any]:
    spec = record.spec
    config = _CONFIGS[spec["PolicyType"]]
    return {
        **identity_members(read_key(spec)),
        "PolicyARN": policy_arn(context.aws_scope, record),
        "PolicyName": spec["PolicyName"],
        "PolicyType": spec["PolicyType"],
        config: spec[config],
        "Alarms": _alarms(context, record, alarms),
        "CreationTime": record.created_s,
    }


def _alarms(context: CallContext, record: RawRecord, alarms: Any) -> list[Json]:
    """Those that it made, or those of users that name it."""
    if record.spec["PolicyType"] == "TargetTrackingScaling":
        names = list(alarm_names(record).values())
    else:
        arn = policy_arn(context.aws_scope, record)
        names = [alarm.name for alarm in alarms if arn in actions_of(alarm.spec)]
    return [{"AlarmName": name, "AlarmARN": alarm_arn(context.aws_scope, name)} for name in names]


def _spec(key: TargetKey, params: Json, old: Json | None) -> Json:
    kind = params.get("PolicyType") or (old or {}).get("PolicyType") or _kind_of(params)
    if kind == "PredictiveScaling":
        raise _no_prediction()
    if old is not None and old["PolicyType"] != kind:
        raise validation_error(
            f"The policy {params['PolicyName']} has the type {old['PolicyType']}, which cannot be changed to {kind}. "
            "Delete it first, or choose another name."
        )
    wanted = _CONFIGS[kind]
    others = [name for name in _CONFIGS.values() if name != wanted and params.get(name)]
    if others:
        raise validation_error(f"{others[0]} does not go with the policy type {kind}. Give {wanted}.")
    config = params.get(wanted) or (old or {}).get(wanted)
    if not config:
        raise validation_error(f"{wanted} cannot be null for a policy of the type {kind}.")
    spec: Json = {
        **identity_members(key),
        "PolicyName": params["PolicyName"],
        "PolicyType": kind,
        wanted: _checked(key, kind, config),
    }
    if kind == "TargetTrackingScaling":
        spec["alarms"] = (old or {}).get("alarms") or {"high": str(uuid.uuid4()), "low": str(uuid.uuid4())}
    return spec


def _kind_of(params: Json) -> str:
    """The type of a policy that says none: by its configuration; AWS's default is StepScaling."""
    return "TargetTrackingScaling" if params.get(TRACKING) else "StepScaling"


def _checked(key: TargetKey, kind: str, config: Json) -> Json:
    if kind == "TargetTrackingScaling":
        checked_tracking(key, config)
        return config
    if config.get("Cooldown", 0) < 0:
        raise validation_error(f"Cooldown is {config['Cooldown']}; wanted: 0 seconds or more.")
    if len(config.get("StepAdjustments") or ()) > _MAX_STEPS:
        raise AwsError("LimitExceededException", f"A policy has at most {_MAX_STEPS} step adjustments.")
    try:
        step.policy_from_json(config)
    except ValueError as error:
        raise validation_error(str(error)) from error
    return config


def _refuse_twin(context: CallContext, key: TargetKey, spec: Json) -> None:
    """Two target-tracking policies on one metric would pull at it from two sides."""
    if spec["PolicyType"] != "TargetTrackingScaling":
        return
    watched = watched_by(key, spec[TRACKING])
    for other in children(context.store, SCALING_POLICY, key.name):
        is_tracking = other.spec["PolicyType"] == "TargetTrackingScaling"
        is_other = other.spec["PolicyName"] != spec["PolicyName"]
        if is_tracking and is_other and watched_by(key, other.spec[TRACKING]) == watched:
            raise validation_error(
                "Only one TargetTrackingScaling policy for a given metric specification is allowed. "
                f"There is {other.spec['PolicyName']}: put that one, or delete it first."
            )


def _create(context: CallContext, key: TargetKey, spec: Json) -> RawRecord:
    if len(children(context.store, SCALING_POLICY, key.name)) >= _MAX_POLICIES:
        raise AwsError("LimitExceededException", f"A scalable target has at most {_MAX_POLICIES} scaling policies.")
    try:
        return context.store.create(SCALING_POLICY, child_name(key, spec["PolicyName"]), spec=spec)
    except AlreadyExists as error:
        raise Conflict(str(error)) from None


def _no_prediction() -> AwsError:
    return validation_error(
        "PredictiveScaling is not supported by Headrace: it needs weeks of history. Use TargetTrackingScaling, "
        "StepScaling, or scheduled actions for a load that is known beforehand."
    )
