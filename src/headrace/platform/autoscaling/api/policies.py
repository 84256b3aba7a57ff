"""Handlers of PutScalingPolicy, DeleteScalingPolicy, DescribeScalingPolicies and GetPredictiveScalingForecast."""

import uuid
from collections.abc import Mapping, Sequence
from functools import partial

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
from headrace.platform.autoscaling.planning import step_scaling
from headrace.platform.autoscaling.planning.policies import (
    CONFIGURATIONS,
    SCALING_POLICY,
    TRACKING,
    AlarmIds,
    PolicyRecord,
    PolicySpec,
    PolicyType,
    alarm_names,
    check_tracking,
    policy_arn,
    watched_by,
)
from headrace.platform.autoscaling.planning.targets import TargetKey, child_name
from headrace.platform.autoscaling.records.policies import children, ensure_alarms, remove_policy, remove_stale_alarms
from headrace.platform.cloudwatch.alarms.records import ALARM, alarm_arn
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json, Record, readable
from headrace.serving.wire.aws.errors import AwsError, validation_error

_MAX_POLICIES = 50
_MAX_STEPS = 20
"""Both: Application Auto Scaling user guide, "Quotas"."""
_MAX_RESULTS = 10
"""Policies on a page. Source: API reference, DescribeScalingPolicies."""


def put_scaling_policy(context: CallContext, params: Json) -> Json:
    """Answer PutScalingPolicy: create a policy, or change the configuration of one, and bring its alarms up to date."""
    key = read_registered(context, params)
    found = context.store.get(SCALING_POLICY, child_name(key, params["PolicyName"]))
    record: PolicyRecord | None = None if found is None else require_readable(found)
    spec = _parse(key, params, None if record is None else record.spec)
    _refuse_second_tracker(context, key, spec)
    if record is None:
        if len(children(context.store, SCALING_POLICY, key.name)) >= _MAX_POLICIES:
            raise AwsError("LimitExceededException", f"A scalable target has at most {_MAX_POLICIES} scaling policies.")
        record = create(context, SCALING_POLICY, child_name(key, spec.policy_name), spec)
    else:
        record = context.store.update(record, spec=spec)
        remove_stale_alarms(context.store, context.aws_scope, record)
    # The policy comes first: the autoscaler's next pass removes alarms without one, and adds those that are missing.
    store = context.store
    ensure_alarms(store, context.aws_scope, record, find=lambda name: store.get(ALARM, name), now_s=context.now_s)
    return {"PolicyARN": policy_arn(context.aws_scope, record), "Alarms": _render_alarms(context, record, {})}


def delete_scaling_policy(context: CallContext, params: Json) -> Json:
    """Answer DeleteScalingPolicy: delete a policy with its alarms; users' alarms lose it as an action."""
    key = read_key(params)
    record = context.store.get(SCALING_POLICY, child_name(key, params["PolicyName"]))
    if record is None:
        raise object_not_found("No scaling policy found for", key, f", policy name: {params['PolicyName']}")
    remove_policy(context.store, context.aws_scope, record)
    return {}


def describe_scaling_policies(context: CallContext, params: Json) -> Json:
    check_selection(params)
    names = params.get("PolicyNames")
    return page(
        context.store,
        SCALING_POLICY,
        params,
        member="ScalingPolicies",
        fits=lambda record: not names or record.spec.policy_name in names,
        render=partial(_render, context, alarms=_alarms_by_action(context)),
        selection=of_resource(params),
        max_results=_MAX_RESULTS,
    )


def get_predictive_scaling_forecast(_context: CallContext, _params: Json) -> Json:
    """Answer GetPredictiveScalingForecast with an error: there are no forecasts."""
    raise _predictive_scaling_error()


def _alarms_by_action(context: CallContext) -> Mapping[str, Sequence[str]]:
    """Return the names of alarms by each of their actions."""
    found: dict[str, list[str]] = {}
    for alarm in context.store.each(ALARM):
        for action in dict.fromkeys(alarm.spec.actions if isinstance(alarm, Record) else ()):
            found.setdefault(action, []).append(alarm.name)
    return found


def _render(context: CallContext, record: PolicyRecord, *, alarms: Mapping[str, Sequence[str]]) -> Json:
    spec = record.spec
    return {
        **spec.key.members,
        "PolicyARN": policy_arn(context.aws_scope, record),
        "PolicyName": spec.policy_name,
        "PolicyType": spec.policy_type,
        CONFIGURATIONS[spec.policy_type]: spec.configuration,
        "Alarms": _render_alarms(context, record, alarms),
        "CreationTime": record.created_s,
    }


def _render_alarms(context: CallContext, record: PolicyRecord, alarms: Mapping[str, Sequence[str]]) -> list[Json]:
    """Render the policy's own alarms or, for step scaling, users' alarms with the policy as an action."""
    if record.spec.is_target_tracking:
        names: Sequence[str] = list(alarm_names(record.spec).values())
    else:
        names = alarms.get(policy_arn(context.aws_scope, record), ())
    return [{"AlarmName": name, "AlarmARN": alarm_arn(context.aws_scope, name)} for name in names]


def _parse(key: TargetKey, params: Json, old: PolicySpec | None) -> PolicySpec:
    """Merge the given members into the old ones, and check them by the rules of scaling policies."""
    # AWS's default is StepScaling; a policy of no type with a configuration for tracking is taken at its word.
    default: PolicyType = "TargetTrackingScaling" if params.get(TRACKING) else "StepScaling"
    policy_type = params.get("PolicyType") or (old.policy_type if old else default)
    if policy_type == "PredictiveScaling":
        raise _predictive_scaling_error()
    if old is not None and old.policy_type != policy_type:
        raise validation_error(
            f"The policy {params['PolicyName']} has the type {old.policy_type}, which cannot be changed to "
            f"{policy_type}. Delete it first, or choose another name."
        )
    member = CONFIGURATIONS[policy_type]
    others = [name for name in CONFIGURATIONS.values() if name != member and params.get(name)]
    if others:
        raise validation_error(f"{others[0]} cannot be given for the policy type {policy_type}. Give {member}.")
    configuration = params.get(member) or (old.configuration if old else None)
    if not configuration:
        raise validation_error(f"{member} cannot be null for a policy of the type {policy_type}.")
    is_tracking = policy_type == "TargetTrackingScaling"
    if is_tracking:
        check_tracking(key, configuration)
    else:
        _check_steps(configuration)
    new_ids = AlarmIds(high=str(uuid.uuid4()), low=str(uuid.uuid4())) if is_tracking else None
    return PolicySpec(
        resource_id=key.resource_id,
        scalable_dimension=key.dimension,
        policy_name=params["PolicyName"],
        policy_type=policy_type,
        step_scaling=None if is_tracking else configuration,
        target_tracking=configuration if is_tracking else None,
        alarms=old.alarms if old else new_ids,
    )


def _check_steps(configuration: Json) -> None:
    if configuration.get("Cooldown", 0) < 0:
        raise validation_error(f"Cooldown is {configuration['Cooldown']}; expected 0 seconds or more.")
    if len(configuration.get("StepAdjustments") or ()) > _MAX_STEPS:
        raise AwsError("LimitExceededException", f"A policy has at most {_MAX_STEPS} step adjustments.")
    try:
        step_scaling.policy_from_json(configuration)
    except ValueError as error:
        raise validation_error(str(error)) from error


def _refuse_second_tracker(context: CallContext, key: TargetKey, spec: PolicySpec) -> None:
    """Refuse a second target-tracking policy on one metric: the two would work against each other."""
    if not spec.is_target_tracking:
        return
    watched = watched_by(key, spec.configuration)
    for other in readable(children(context.store, SCALING_POLICY, key.name)):
        is_other = other.spec.policy_name != spec.policy_name
        if other.spec.is_target_tracking and is_other and watched_by(key, other.spec.configuration) == watched:
            raise validation_error(
                "Only one TargetTrackingScaling policy for a given metric specification is allowed. "
                f"There is {other.spec.policy_name}: put that one, or delete it first."
            )


def _predictive_scaling_error() -> AwsError:
    return validation_error(
        "PredictiveScaling is not supported by Headrace: it needs weeks of history. Use TargetTrackingScaling, "
        "StepScaling, or scheduled actions for a load that is known beforehand."
    )
