"""Scaling policies: their records, and the triggers that their alarms give them. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from headrace.autoscaling.planning import step_scaling, target_tracking
from headrace.autoscaling.planning.decision import Trigger
from headrace.autoscaling.planning.step_scaling import StepScaling
from headrace.autoscaling.planning.target_tracking import TargetTracking
from headrace.autoscaling.planning.targets import TargetMembers, child_arn
from headrace.cloudwatch.alarms.records import EvaluatedAlarm
from headrace.state.records import Json, Kind, NoStatus, Record, RecordPart
from headrace.wire.aws.scope import AwsScope

PolicyType = Literal["StepScaling", "TargetTrackingScaling"]

STEPS = "StepScalingPolicyConfiguration"
TRACKING = "TargetTrackingScalingPolicyConfiguration"
CONFIGURATIONS: Final[dict[PolicyType, str]] = {"StepScaling": STEPS, "TargetTrackingScaling": TRACKING}
"""Policy type → the member that holds its configuration."""


class AlarmIds(RecordPart, frozen=True, kw_only=True):
    """The unique parts of the names of a target-tracking policy's alarms."""

    high: str
    low: str


class PolicySpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    """A scaling policy as it was put."""

    policy_name: str
    policy_type: PolicyType
    step_scaling: Json | None = msgspec.field(default=None, name=STEPS)
    target_tracking: Json | None = msgspec.field(default=None, name=TRACKING)
    alarms: AlarmIds | None = msgspec.field(default=None, name="alarms")
    """Set for target tracking only."""

    def __post_init__(self) -> None:
        """Check the configuration; a ValueError makes the record unreadable."""
        super().__post_init__()
        if self.is_target_tracking != (self.alarms is not None):
            raise ValueError(f"alarms is {self.alarms}; expected ids of alarms for target tracking only")
        _ = self.policy

    @property
    def is_target_tracking(self) -> bool:
        """True if the policy tracks a target, by alarms of its own."""
        return self.policy_type == "TargetTrackingScaling"

    @property
    def configuration(self) -> Json:
        """The configuration for the policy's type."""
        configuration = self.target_tracking if self.is_target_tracking else self.step_scaling
        if configuration is None:
            raise ValueError(f"{CONFIGURATIONS[self.policy_type]} is missing")
        return configuration

    @property
    def policy(self) -> TargetTracking | StepScaling:
        """The policy as decisions see it."""
        parse = target_tracking.policy_from_json if self.is_target_tracking else step_scaling.policy_from_json
        return parse(self.configuration)


SCALING_POLICY: Final = Kind("scaling-policy", PolicySpec, NoStatus)

PolicyRecord = Record[PolicySpec, NoStatus]


def policy_arn(aws_scope: AwsScope, record: PolicyRecord) -> str:
    """Return the ARN of a policy, which an alarm names as its action."""
    spec = record.spec
    return child_arn(aws_scope, record, spec.key, kind="scalingPolicy", title="policyName", name=spec.policy_name)


def triggers_of(
    aws_scope: AwsScope, policies: Sequence[PolicyRecord], alarms: Sequence[EvaluatedAlarm]
) -> list[Trigger]:
    """Return a trigger for each pair of a policy and an alarm with it as an action, whatever the alarm's state."""
    return [
        _trigger(policy.spec, alarm, arn)
        for policy in policies
        for arn in (policy_arn(aws_scope, policy),)
        for alarm in alarms
        if arn in alarm.record.spec.actions
    ]


def _trigger(policy: PolicySpec, alarm: EvaluatedAlarm, arn: str) -> Trigger:
    """Return a trigger, which is in ALARM while the alarm is in a state that has the policy as its action."""
    return Trigger(
        policy_name=policy.policy_name,
        alarm_name=alarm.record.name,
        policy=policy.policy,
        state="ALARM" if arn in alarm.actions else "OK",
        values=alarm.values,
        threshold=alarm.rule.threshold,
        comparison=alarm.rule.comparison,
        gap_s=alarm.rule.watched_s if alarm.is_from_gaps else 0.0,
    )
