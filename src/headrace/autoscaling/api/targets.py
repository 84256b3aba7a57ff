"""Handlers of the operations on scalable targets, on their tags, and of DescribeScalingActivities."""

from functools import partial

import msgspec

from headrace.autoscaling.api.requests import (
    check_selection,
    is_selected,
    object_not_found,
    page,
    read_key,
    require_readable,
)
from headrace.autoscaling.planning.targets import (
    SCALABLE_TARGET,
    SuspendedState,
    TargetKey,
    TargetRecord,
    TargetSpec,
    service_role_arn,
    target_arn,
)
from headrace.autoscaling.records.activities import MAX_AGE_S, SCALING_ACTIVITY, ActivityRecord
from headrace.autoscaling.records.capacity import find_scaled, read_capacity
from headrace.autoscaling.records.policies import remove_target
from headrace.control.api.context import CallContext
from headrace.state.records import AlreadyExists, Conflict, Json, Unreadable
from headrace.state.selection import Selection
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.tags import MAX_TAGS

_MAX_TARGETS = 500
"""Source: Application Auto Scaling user guide, "Quotas"."""
_INTERNAL_MEMBERS = ("capacity", "previous", "scaling")
"""Members of an activity's record that AWS does not have."""


def register_scalable_target(context: CallContext, params: Json) -> Json:
    """Answer RegisterScalableTarget: register a target, or change one; members that are not given keep their values."""
    key = read_key(params)
    record = context.store.get(SCALABLE_TARGET, key.name)
    old: TargetRecord | None = None if record is None else require_readable(record)
    spec = _parse(key, params, None if old is None else old.spec)
    _check_bounds(spec)
    if read_capacity(context.store, key) is None:
        title = "SageMaker inference component" if key.component else "SageMaker endpoint or variant"
        if key.component and find_scaled(context.store, key) is not None:
            raise validation_error(f"{key.resource_id} is an adapter and has no capacity of its own. Scale its base.")
        raise validation_error(f"{title} does not exist: {key.resource_id}")
    if old is None:
        old = _create(context, key, spec, params)
    elif params.get("Tags"):
        raise validation_error("Tags are only for a new scalable target. Use TagResource on a registered one.")
    else:
        old = context.store.update(old, spec=spec)
    return {"ScalableTargetARN": target_arn(context.aws_scope, old)}


def deregister_scalable_target(context: CallContext, params: Json) -> Json:
    """Answer DeregisterScalableTarget: delete a target with its policies, their alarms and its scheduled actions."""
    key = read_key(params)
    record = context.store.get(SCALABLE_TARGET, key.name)
    if record is None:
        raise object_not_found("No scalable target found for", key)
    remove_target(context.store, context.aws_scope, record, key)
    return {}


def describe_scalable_targets(context: CallContext, params: Json) -> Json:
    """Answer DescribeScalableTargets."""
    check_selection(params, resource="ResourceIds")
    ids = params.get("ResourceIds")
    return page(
        context.store,
        SCALABLE_TARGET,
        params,
        member="ScalableTargets",
        fits=lambda record: is_selected(record, params) and (not ids or record.spec.resource_id in ids),
        render=partial(_render, context),
    )


def describe_scaling_activities(context: CallContext, params: Json) -> Json:
    """Answer DescribeScalingActivities, newest first; those that scaled nothing only on request."""
    check_selection(params)
    with_not_scaled = params.get("IncludeNotScaledActivities", False)

    def fits(record: ActivityRecord) -> bool:
        is_listed = with_not_scaled or record.spec.not_scaled_reasons is None
        return is_listed and is_selected(record, params) and record.spec.start_time >= context.now_s - MAX_AGE_S

    return page(
        context.store,
        SCALING_ACTIVITY,
        params,
        member="ScalingActivities",
        fits=fits,
        render=_render_activity,
        selection=Selection(is_descending=True),
    )


def tag_resource(context: CallContext, params: Json) -> Json:
    """Answer TagResource."""
    record = _find(context, params["ResourceARN"])
    reserved = next((key for key in params["Tags"] if key.lower().startswith("aws:")), None)
    if reserved is not None:
        raise validation_error(f"The tag key {reserved} begins with aws:, which is reserved. Choose another one.")
    tags = {**record.tags, **params["Tags"]}
    if len(tags) > MAX_TAGS:
        message = f"The scalable target would have {len(tags)} tags; expected at most {MAX_TAGS}."
        raise AwsError("TooManyTagsException", message, members={"ResourceName": params["ResourceARN"]})
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CallContext, params: Json) -> Json:
    """Answer UntagResource; unknown keys are ignored."""
    record = _find(context, params["ResourceARN"])
    removed = set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
    return {}


def list_tags_for_resource(context: CallContext, params: Json) -> Json:
    """Answer ListTagsForResource."""
    return {"Tags": dict(sorted(_find(context, params["ResourceARN"]).tags.items()))}


def _render(context: CallContext, record: TargetRecord) -> Json:
    spec = record.spec
    return {
        **spec.key.members,
        "MinCapacity": spec.min_capacity,
        "MaxCapacity": spec.max_capacity,
        "RoleARN": service_role_arn(context.aws_scope),
        "CreationTime": record.created_s,
        "SuspendedState": msgspec.to_builtins(spec.suspended_state),
        "ScalableTargetARN": target_arn(context.aws_scope, record),
    }


def _render_activity(record: ActivityRecord) -> Json:
    members = msgspec.to_builtins(record.spec)
    return {name: value for name, value in members.items() if name not in _INTERNAL_MEMBERS and value is not None}


def _find(context: CallContext, arn: str) -> TargetRecord | Unreadable:
    for record in context.store.each(SCALABLE_TARGET):
        if target_arn(context.aws_scope, record) == arn:
            return record
    message = f"There is no scalable target with the ARN {arn}."
    raise AwsError("ResourceNotFoundException", message, members={"ResourceName": arn})


def _parse(key: TargetKey, params: Json, old: TargetSpec | None) -> TargetSpec:
    """
    Merge the given members into the old ones.

    Raises:
        AwsError: A new target has no bounds.
    """
    given: Json = {
        "MinCapacity": params.get("MinCapacity", old.min_capacity if old else None),
        "MaxCapacity": params.get("MaxCapacity", old.max_capacity if old else None),
    }
    for member, value in given.items():
        if value is None:
            raise validation_error(f"{member} cannot be null when a new scalable target is registered.")
    suspended = msgspec.to_builtins(old.suspended_state) if old else {}
    return TargetSpec(
        resource_id=key.resource_id,
        scalable_dimension=key.dimension,
        min_capacity=given["MinCapacity"],
        max_capacity=given["MaxCapacity"],
        suspended_state=msgspec.convert({**suspended, **params.get("SuspendedState", {})}, SuspendedState),
        generation=old.generation + 1 if old else 1,
    )


def _check_bounds(spec: TargetSpec) -> None:
    if spec.min_capacity < 0:
        raise validation_error(f"Minimum capacity cannot be less than 0; it is {spec.min_capacity}.")
    if spec.max_capacity < spec.min_capacity:
        raise validation_error(
            "Maximum capacity cannot be less than minimum capacity: "
            f"{spec.max_capacity} is less than {spec.min_capacity}."
        )


def _create(context: CallContext, key: TargetKey, spec: TargetSpec, params: Json) -> TargetRecord:
    tags = dict(params.get("Tags") or {})
    if len(tags) > MAX_TAGS:
        raise validation_error(f"The scalable target would have {len(tags)} tags; expected at most {MAX_TAGS}.")
    if context.store.count(SCALABLE_TARGET) >= _MAX_TARGETS:
        raise AwsError("LimitExceededException", f"There are {_MAX_TARGETS} scalable targets already, the maximum.")
    try:
        return context.store.create(SCALABLE_TARGET, key.name, spec=spec, tags=tags)
    except AlreadyExists:
        raise Conflict(key.name) from None
