"""
Scalable targets and their scheduled actions: identity, records, and the names that AWS gives to them. Pure.

The record of a target is named `<ResourceId>|<ScalableDimension>`; its policies and scheduled actions add `|<name>`.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.platform.autoscaling.planning.decision import Code, Scaling, SuspendedState
from headrace.platform.autoscaling.planning.schedule import Schedule, Window, parse
from headrace.platform.state.records import Json, Kind, Record, RecordPart, StoredRecord
from headrace.serving.wire.aws.scope import AwsScope, partition_of

NAMESPACE = "sagemaker"
VARIANT_DIMENSION = "sagemaker:variant:DesiredInstanceCount"
COMPONENT_DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
_NAME = "[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}"
_VARIANT_ID = re.compile(rf"endpoint/(?P<endpoint>{_NAME})/variant/(?P<variant>{_NAME})", re.ASCII)
_COMPONENT_ID = re.compile(rf"inference-component/(?P<component>{_NAME})", re.ASCII)
_ROLE = (
    "role/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/"
    "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetKey:
    """The number that is scaled: the instances of a variant, or the copies of a component."""

    resource_id: str
    dimension: str
    endpoint: str = ""
    variant: str = ""
    component: str = ""

    @classmethod
    def parse(cls, resource_id: str, dimension: str) -> "TargetKey | None":
        """Return the target that AWS's identifiers name; None if Headrace does not scale it."""
        if dimension == VARIANT_DIMENSION and (match := _VARIANT_ID.fullmatch(resource_id)):
            return cls.of_variant(match["endpoint"], match["variant"])
        if dimension == COMPONENT_DIMENSION and (match := _COMPONENT_ID.fullmatch(resource_id)):
            return cls.of_component(match["component"])
        return None

    @classmethod
    def of_variant(cls, endpoint: str, variant: str) -> "TargetKey":
        resource_id = f"endpoint/{endpoint}/variant/{variant}"
        return cls(resource_id=resource_id, dimension=VARIANT_DIMENSION, endpoint=endpoint, variant=variant)

    @classmethod
    def of_component(cls, component: str) -> "TargetKey":
        resource_id = f"inference-component/{component}"
        return cls(resource_id=resource_id, dimension=COMPONENT_DIMENSION, component=component)

    @property
    def name(self) -> str:
        return f"{self.resource_id}|{self.dimension}"

    @property
    def quantity(self) -> str:
        """The number's name in the texts of AWS's activities."""
        return "desired copy count" if self.component else "desired instance count"

    @property
    def members(self) -> Json:
        """The three members that identify the target in AWS's answers."""
        return {"ServiceNamespace": NAMESPACE, "ResourceId": self.resource_id, "ScalableDimension": self.dimension}


class TargetMembers(RecordPart, frozen=True, kw_only=True, rename="pascal"):
    """The members that identify the target of a record."""

    service_namespace: str = NAMESPACE
    resource_id: str
    scalable_dimension: str

    def __post_init__(self) -> None:
        """Check the identity; a ValueError makes the record unreadable."""
        if TargetKey.parse(self.resource_id, self.scalable_dimension) is None:
            raise ValueError(f"{self.resource_id!r} with {self.scalable_dimension!r} is not a scalable target")

    @property
    def key(self) -> TargetKey:
        key = TargetKey.parse(self.resource_id, self.scalable_dimension)
        assert key is not None  # see __post_init__
        return key


class TargetSpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    min_capacity: int
    max_capacity: int
    suspended_state: SuspendedState = SuspendedState()
    generation: int = msgspec.field(default=0, name="asked")
    """Grows whenever the bounds are set; the capacity is then brought within them once."""


class TargetStatus(RecordPart, frozen=True, kw_only=True):
    """The autoscaler's memory of a target from one pass to the next."""

    observed_generation: int | None = msgspec.field(default=None, name="observed")
    last: Scaling | None = None
    """The last scaling by a policy, for cooldowns."""
    not_scaled: dict[str, Code] = msgspec.field(default_factory=dict)
    """Policy → why it changed nothing, so that this is reported once and not in every pass."""


SCALABLE_TARGET: Final = Kind("scalable-target", TargetSpec, TargetStatus)

TargetRecord = Record[TargetSpec, TargetStatus]


class CapacityBounds(RecordPart, frozen=True, kw_only=True, rename="pascal"):
    """The bounds that a scheduled action sets; None leaves one as it is."""

    min_capacity: int | None = None
    max_capacity: int | None = None


class ScheduledActionSpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    scheduled_action_name: str
    schedule: str
    timezone: str | None = None
    start_time: float | None = None
    """Seconds since 1970, like `end_time`."""
    end_time: float | None = None
    scalable_target_action: CapacityBounds
    put_s: float = msgspec.field(name="put_s")
    """Time of the latest PutScheduledAction, from which its schedule counts."""

    def __post_init__(self) -> None:
        """Check the schedule; a ValueError makes the record unreadable."""
        super().__post_init__()
        _ = self.parsed_schedule

    @property
    def parsed_schedule(self) -> Schedule:
        return parse(self.schedule, self.timezone)

    @property
    def window(self) -> Window:
        return Window(created_s=self.put_s, start_s=self.start_time, end_s=self.end_time)


class ScheduledActionStatus(RecordPart, frozen=True, kw_only=True):
    ran_s: float = 0.0
    """The last of its scheduled times at which it ran; seconds since 1970."""


SCHEDULED_ACTION: Final = Kind("scheduled-action", ScheduledActionSpec, ScheduledActionStatus)

ScheduledActionRecord = Record[ScheduledActionSpec, ScheduledActionStatus]


def child_name(key: TargetKey, name: str) -> str:
    """Return the name of the record of a target's policy or scheduled action."""
    return f"{key.name}|{name}"


def target_arn(aws_scope: AwsScope, record: StoredRecord) -> str:
    """Return the ARN of a target; `uid` distinguishes it from an earlier one of the same resource."""
    start = f"arn:{partition_of(aws_scope.region)}:application-autoscaling:{aws_scope.region}:{aws_scope.account}"
    return f"{start}:scalable-target/{record.uid}"


def child_arn(aws_scope: AwsScope, record: StoredRecord, key: TargetKey, *, kind: str, title: str, name: str) -> str:
    """Return the ARN of a target's policy or scheduled action."""
    start = f"arn:{partition_of(aws_scope.region)}:autoscaling:{aws_scope.region}:{aws_scope.account}"
    uid = record.uid
    dashed = f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"
    return f"{start}:{kind}:{dashed}:resource/{NAMESPACE}/{key.resource_id}:{title}/{name}"


def service_role_arn(aws_scope: AwsScope) -> str:
    """Return the service-linked role that AWS creates and uses, whatever role is given."""
    return f"arn:{partition_of(aws_scope.region)}:iam::{aws_scope.account}:{_ROLE}"
