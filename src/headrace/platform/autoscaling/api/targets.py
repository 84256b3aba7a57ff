"""Handlers of the operations on scalable targets, on their tags, and of DescribeScalingActivities."""

from functools import partial

import msgspec

from headrace.platform.autoscaling.api.requests import (
    check_selection,
    create,
    object_not_found,
    page,
    read_key,
    require_readable,
)
from headrace.platform.autoscaling.planning.decision import SuspendedState
from headrace.platform.autoscaling.planning.targets import (
    SCALABLE_TARGET,
    TargetKey,
    TargetRecord,
    TargetSpec,
    service_role_arn,
    target_arn,
)
from headrace.platform.autoscaling.records.activities import MAX_AGE_S, SCALING_ACTIVITY, ActivityRecord
from headrace.platform.autoscaling.records.capacity import find_scaled, read_capacity
from headrace.platform.autoscaling.records.policies import remove_target
from headrace.platform.control.api.context import CallContext, without
from headrace.platform.control.api.endpoints import update_endpoint
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG
from headrace.platform.control.model.endpoint import ENDPOINT, variant_configs
from headrace.platform.control.model.workload import serving_revision, settled_revision
from headrace.platform.state.records import Json, Record, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.scope import MAX_TAGS
from headrace.serving.wire.aws.tags import merge_tags

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
    if read_capacity(context.store, key) is None:
        title = "SageMaker inference component" if key.component else "SageMaker endpoint or variant"
        if key.component and find_scaled(context.store, key) is not None:
            raise validation_error(f"{key.resource_id} is an adapter and has no capacity of its own. Scale its base.")
        raise validation_error(f"{title} does not exist: {key.resource_id}")
    if key.variant and _is_serverless(context, key):
        raise validation_error(f"{key.resource_id} is serverless and has no instances to scale.")
    if old is None:
        tags = merge_tags(params.get("Tags"), validation_error)
        if context.store.count(SCALABLE_TARGET) >= _MAX_TARGETS:
            raise AwsError("LimitExceededException", f"There are {_MAX_TARGETS} scalable targets already, the maximum.")
        old = create(context, SCALABLE_TARGET, key.name, spec, tags=tags)
    elif params.get("Tags"):
        raise validation_error("Tags are only for a new scalable target. Use TagResource on a registered one.")
    else:
        old = context.store.update(old, spec=spec)
    return {"ScalableTargetARN": target_arn(context.aws_scope, old)}


def _is_serverless(context: CallContext, key: TargetKey) -> bool:
    record = find_scaled(context.store, key)
    workload = None if record is None else settled_revision(record).workload(key.variant)
    return workload is not None and workload.serverless is not None


def deregister_scalable_target(context: CallContext, params: Json) -> Json:
    """Answer DeregisterScalableTarget: delete a target with its policies, their alarms and its scheduled actions."""
    key = read_key(params)
    record = context.store.get(SCALABLE_TARGET, key.name)
    if record is None:
        raise object_not_found("No scalable target found for", key)
    remove_target(context.store, context.aws_scope, record, key)
    return {}


def describe_scalable_targets(context: CallContext, params: Json) -> Json:
    check_selection(params, resource="ResourceIds")
    ids = params.get("ResourceIds")
    return page(
        context.store,
        SCALABLE_TARGET,
        params,
        member="ScalableTargets",
        fits=lambda record: not ids or record.spec.resource_id in ids,
        render=partial(_render, context),
    )


def describe_scaling_activities(context: CallContext, params: Json) -> Json:
    """Answer DescribeScalingActivities, newest first; those that scaled nothing only on request."""
    check_selection(params)
    with_not_scaled = params.get("IncludeNotScaledActivities", False)

    def fits(record: ActivityRecord) -> bool:
        is_listed = with_not_scaled or record.spec.not_scaled_reasons is None
        return is_listed and record.spec.start_time >= context.now_s - MAX_AGE_S

    return page(
        context.store,
        SCALING_ACTIVITY,
        params,
        member="ScalingActivities",
        fits=fits,
        render=lambda record: {
            name: value
            for name, value in msgspec.to_builtins(record.spec).items()
            if name not in _INTERNAL_MEMBERS and value is not None
        },
        selection=Selection(is_descending=True),
    )


def tag_resource(context: CallContext, params: Json) -> Json:
    record = _find(context, params["ResourceARN"])
    tags = {**record.tags, **merge_tags(params["Tags"], validation_error)}
    if len(tags) > MAX_TAGS:
        message = f"The scalable target would have {len(tags)} tags; expected at most {MAX_TAGS}."
        raise AwsError("TooManyTagsException", message, members={"ResourceName": params["ResourceARN"]})
    context.store.update(record, tags=tags)
    return {}


def untag_resource(context: CallContext, params: Json) -> Json:
    """Answer UntagResource; unknown keys are ignored."""
    record = _find(context, params["ResourceARN"])
    context.store.update(record, tags=without(record.tags, *params["TagKeys"]))
    return {}


def list_tags_for_resource(context: CallContext, params: Json) -> Json:
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


def _find(context: CallContext, arn: str) -> TargetRecord | Unreadable:
    for record in context.store.each(SCALABLE_TARGET):
        if target_arn(context.aws_scope, record) == arn:
            return record
    message = f"There is no scalable target with the ARN {arn}."
    raise AwsError("ResourceNotFoundException", message, members={"ResourceName": arn})


def _parse(key: TargetKey, params: Json, old: TargetSpec | None) -> TargetSpec:
    """Merge the given members into the old ones. Raises `AwsError`: a new target has no bounds."""
    given: Json = {
        "MinCapacity": params.get("MinCapacity", old.min_capacity if old else None),
        "MaxCapacity": params.get("MaxCapacity", old.max_capacity if old else None),
    }
    for member, value in given.items():
        if value is None:
            raise validation_error(f"{member} cannot be null when a new scalable target is registered.")
    least, most = given["MinCapacity"], given["MaxCapacity"]
    if least < 0:
        raise validation_error(f"Minimum capacity cannot be less than 0; it is {least}.")
    if most < least:
        raise validation_error(f"Maximum capacity cannot be less than minimum capacity: {most} is less than {least}.")
    suspended = msgspec.to_builtins(old.suspended_state) if old else {}
    return TargetSpec(
        resource_id=key.resource_id,
        scalable_dimension=key.dimension,
        min_capacity=least,
        max_capacity=most,
        suspended_state=msgspec.convert({**suspended, **params.get("SuspendedState", {})}, SuspendedState),
        generation=old.generation + 1 if old else 1,
    )


def update_scaled_endpoint(context: CallContext, params: Json) -> Json:
    """Answer UpdateEndpoint, or refuse it for variants with a scalable target that would be removed."""
    endpoint = context.store.find(ENDPOINT, params["EndpointName"])
    config = context.store.find(ENDPOINT_CONFIG, params["EndpointConfigName"])
    if isinstance(endpoint, Record) and isinstance(config, Record):
        _refuse_changes(context, endpoint.name, serving_revision(endpoint).config, config.spec.members)
    return update_endpoint(context, params)


def _refuse_changes(context: CallContext, endpoint: str, old: Json, new: Json) -> None:
    """Refuse to remove a variant that is scaled; in strict mode, also to change its instance type, as AWS does."""
    types = {variant["VariantName"]: variant.get("InstanceType") for variant in variant_configs(new)}
    changed = [
        variant["VariantName"]
        for variant in variant_configs(old)
        if variant["VariantName"] not in types
        or (context.is_strict and types[variant["VariantName"]] != variant.get("InstanceType"))
    ]
    keys = {name: TargetKey.of_variant(endpoint, name).name for name in changed}
    scaled = [name for name, key in keys.items() if context.store.find(SCALABLE_TARGET, key) is not None]
    if scaled:
        raise validation_error(
            f'The variant(s) "[{", ".join(scaled)}]" must be deregistered as scalable targets with AWS Auto Scaling '
            "before they can be removed or have their instance type changed."
        )
