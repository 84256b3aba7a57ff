"""RegisterScalableTarget, DeregisterScalableTarget, DescribeScalableTargets."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.autoscaling.api.pages import page
from headrace.control.autoscaling.planning.targets import (
    NAMESPACE,
    TargetKey,
    identity_members,
    object_not_found,
    read_bounds,
    read_key,
    service_role_arn,
    target_arn,
)
from headrace.control.autoscaling.records.capacity import read_capacity
from headrace.control.autoscaling.records.removal import remove_target
from headrace.control.model.kinds import SCALABLE_TARGET
from headrace.state.records import AlreadyExists, Conflict, Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

_MAX_TARGETS = 500
"""Source: Application Auto Scaling user guide, "Quotas"."""
_MAX_TAGS = 50
_SUSPENSIONS = ("DynamicScalingInSuspended", "DynamicScalingOutSuspended", "ScheduledScalingSuspended")


def register_scalable_target(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """RegisterScalableTarget: a new target, or other bounds of an old one; what is not given stays as it is."""
    key = read_key(params)
    record = context.store.get(SCALABLE_TARGET, key.name)
    old = record.spec if record is not None else None
    spec = _spec(key, params, old)
    _check_bounds(spec)
    if read_capacity(context.store, key) is None:
        raise validation_error(f"{_missing(key)} does not exist: {key.resource_id}")
    if record is not None:
        if params.get("Tags"):
            raise validation_error("Tags are for new scalable targets. Use TagResource on one that is there.")
        record = context.store.update(record, spec=spec)
    else:
        record = _create(context, key, spec, params)
    return {"ScalableTargetARN": target_arn(context.aws_scope, record)}


def deregister_scalable_target(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DeregisterScalableTarget; its policies, their alarms and its scheduled actions go too."""
    key = read_key(params)
    record = context.store.get(SCALABLE_TARGET, key.name)
    if record is None:
        raise object_not_found("No scalable target found for", key)
    remove_target(context.store, context.aws_scope, record)
    return {}


def describe_scalable_targets(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeScalableTargets."""
    ids, dimension = params.get("ResourceIds"), params.get("ScalableDimension")
    if dimension and not ids:
        raise validation_error("ScalableDimension is given without ResourceIds. Give both, or neither.")
    found = [
        record
        for record in context.store.list(SCALABLE_TARGET)
        if params["ServiceNamespace"] == NAMESPACE
        and (not ids or record.spec["ResourceId"] in ids)
        and (not dimension or record.spec["ScalableDimension"] == dimension)
    ]
    return page(found, params, member="ScalableTargets", shown=lambda record: _shown(context, record))


def _shown(context: CallContext, record: RawRecord) -> dict[str, Any]:
    spec = record.spec
    return {
        **identity_members(read_key(spec)),
        "MinCapacity": spec["MinCapacity"],
        "MaxCapacity": spec["MaxCapacity"],
        "RoleARN": service_role_arn(context.aws_scope),
        "CreationTime": record.created_s,
        "SuspendedState": {name: bool(spec["SuspendedState"].get(name)) for name in _SUSPENSIONS},
        "ScalableTargetARN": target_arn(context.aws_scope, record),
    }


def _spec(key: TargetKey, params: Json, old: Json | None) -> Json:
    """
    Old members with the new ones over them.

    Raises:
        AwsError: a new target without bounds.
    """
    kept = old or {}
    for member in ("MinCapacity", "MaxCapacity"):
        if member not in params and member not in kept:
            raise validation_error(f"{member} cannot be null when a new scalable target is registered.")
    return {
        **identity_members(key),
        "MinCapacity": params.get("MinCapacity", kept.get("MinCapacity")),
        "MaxCapacity": params.get("MaxCapacity", kept.get("MaxCapacity")),
        "SuspendedState": {**kept.get("SuspendedState", {}), **params.get("SuspendedState", {})},
        "asked": kept.get("asked", 0) + 1,
    }


def _check_bounds(spec: Json) -> None:
    bounds = read_bounds(spec)
    if bounds.minimum < 0:
        raise validation_error(f"Minimum capacity cannot be less than 0; it is {bounds.minimum}.")
    if bounds.maximum < bounds.minimum:
        raise validation_error(
            f"Maximum capacity cannot be less than minimum capacity: {bounds.maximum} is less than {bounds.minimum}."
        )


def _missing(key: TargetKey) -> str:
    return "SageMaker inference component" if key.component else "SageMaker endpoint or variant"


def _create(context: CallContext, key: TargetKey, spec: Json, params: Json) -> RawRecord:
    tags = dict(params.get("Tags") or {})
    if len(tags) > _MAX_TAGS:
        raise validation_error(f"The scalable target would have {len(tags)} tags; at most {_MAX_TAGS} are allowed.")
    if len(context.store.list(SCALABLE_TARGET)) >= _MAX_TARGETS:
        message = f"There are {_MAX_TARGETS} scalable targets already, the most that there may be."
        raise AwsError("LimitExceededException", message)
    try:
        return context.store.create(SCALABLE_TARGET, key.name, spec=spec, tags=tags)
    except AlreadyExists:
        raise Conflict(key.name) from None
