"""
What may be scaled: identity, bounds and names of scalable targets, policies and scheduled actions. Pure.

A target's record is named `<ResourceId>|<ScalableDimension>`; its policies and scheduled actions add `|<name>`.
Its `spec` has the members of RegisterScalableTarget, and `asked`, which counts how often its bounds were set: after
each time the capacity is brought within them once.
"""

import re
from dataclasses import dataclass
from typing import Any

from headrace.state.records import Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.scope import AwsScope, partition_of

NAMESPACE = "sagemaker"
VARIANT_DIMENSION = "sagemaker:variant:DesiredInstanceCount"
COMPONENT_DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
_CONCURRENCY_DIMENSION = "sagemaker:variant:DesiredProvisionedConcurrency"
_NAME = "[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}"
_VARIANT_ID = re.compile(rf"endpoint/(?P<endpoint>{_NAME})/variant/(?P<variant>{_NAME})", re.ASCII)
_COMPONENT_ID = re.compile(rf"inference-component/(?P<component>{_NAME})", re.ASCII)
_ROLE = (
    "role/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/"
    "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetKey:
    """Which number is scaled: the instances of a variant, or the copies of a component."""

    resource_id: str
    dimension: str
    endpoint: str = ""
    variant: str = ""
    component: str = ""

    @property
    def name(self) -> str:
        """Of its record."""
        return f"{self.resource_id}|{self.dimension}"

    @property
    def words(self) -> str:
        """What AWS's activities call the number."""
        return "desired copy count" if self.component else "desired instance count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a target may be, and what may not happen to it now."""

    minimum: int
    maximum: int
    is_in_suspended: bool = False
    is_out_suspended: bool = False
    is_schedule_suspended: bool = False


def read_key(params: Json) -> TargetKey:
    """
    The target that a call, or a record, names.

    Raises:
        AwsError: it is nothing that can be scaled here.
    """
    resource_id, dimension = params["ResourceId"], params["ScalableDimension"]
    if dimension == _CONCURRENCY_DIMENSION:
        raise validation_error(
            f"{dimension} is not supported by Headrace: a serverless variant is one worker that always runs. "
            f"Use {VARIANT_DIMENSION} on a variant with instances."
        )
    if params.get("ServiceNamespace", NAMESPACE) == NAMESPACE:
        if dimension == VARIANT_DIMENSION and (found := _VARIANT_ID.fullmatch(resource_id)):
            return TargetKey(
                resource_id=resource_id, dimension=dimension, endpoint=found["endpoint"], variant=found["variant"]
            )
        if dimension == COMPONENT_DIMENSION and (found := _COMPONENT_ID.fullmatch(resource_id)):
            return TargetKey(resource_id=resource_id, dimension=dimension, component=found["component"])
    raise validation_error(
        "Unsupported service namespace, resource type or scalable dimension. Headrace scales "
        f"endpoint/NAME/variant/NAME by {VARIANT_DIMENSION} and inference-component/NAME by {COMPONENT_DIMENSION}, "
        "both of the namespace sagemaker."
    )


def read_bounds(spec: Json) -> Bounds:
    """Bounds and suspensions of a target."""
    suspended = spec.get("SuspendedState") or {}
    return Bounds(
        minimum=int(spec["MinCapacity"]),
        maximum=int(spec["MaxCapacity"]),
        is_in_suspended=bool(suspended.get("DynamicScalingInSuspended")),
        is_out_suspended=bool(suspended.get("DynamicScalingOutSuspended")),
        is_schedule_suspended=bool(suspended.get("ScheduledScalingSuspended")),
    )


def child_name(key: TargetKey, name: str) -> str:
    """Of the record of a policy or a scheduled action."""
    return f"{key.name}|{name}"


def target_arn(aws_scope: AwsScope, record: RawRecord) -> str:
    """The ARN of a scalable target; `uid` tells it from an earlier one of the same resource."""
    start = f"arn:{partition_of(aws_scope.region)}:application-autoscaling:{aws_scope.region}:{aws_scope.account}"
    return f"{start}:scalable-target/{record.uid}"


def policy_arn(aws_scope: AwsScope, record: RawRecord) -> str:
    """The ARN of a policy: what an alarm names as its action."""
    return _action_arn(aws_scope, record, kind="scalingPolicy", member="PolicyName", title="policyName")


def scheduled_action_arn(aws_scope: AwsScope, record: RawRecord) -> str:
    """The ARN of a scheduled action."""
    return _action_arn(
        aws_scope, record, kind="scheduledAction", member="ScheduledActionName", title="scheduledActionName"
    )


def _action_arn(aws_scope: AwsScope, record: RawRecord, *, kind: str, member: str, title: str) -> str:
    start = f"arn:{partition_of(aws_scope.region)}:autoscaling:{aws_scope.region}:{aws_scope.account}"
    spec = record.spec
    return f"{start}:{kind}:{dashed(record.uid)}:resource/{NAMESPACE}/{spec['ResourceId']}:{title}/{spec[member]}"


def service_role_arn(aws_scope: AwsScope) -> str:
    """The service-linked role that AWS makes and uses whatever role is given."""
    return f"arn:{partition_of(aws_scope.region)}:iam::{aws_scope.account}:{_ROLE}"


def dashed(uid: str) -> str:
    """32 hexadecimal digits as a UUID is written."""
    return f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"


def object_not_found(what: str, key: TargetKey, more: str = "") -> AwsError:
    """AWS's answer for a target, policy or scheduled action that is not there: `what` ends with "for"."""
    where = f"service namespace: {NAMESPACE}, resource ID: {key.resource_id}, scalable dimension: {key.dimension}"
    return AwsError("ObjectNotFoundException", f"{what} {where}{more}")


def identity_members(key: TargetKey) -> dict[str, Any]:
    """The three members that name a target in every answer."""
    return {"ServiceNamespace": NAMESPACE, "ResourceId": key.resource_id, "ScalableDimension": key.dimension}
