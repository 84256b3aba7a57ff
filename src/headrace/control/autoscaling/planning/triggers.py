"""What the alarms say to the policies of one target. Pure."""

from collections.abc import Sequence

from headrace.cloudwatch.alarms.records import Watched, actions_of
from headrace.control.autoscaling.planning import step_scaling as step
from headrace.control.autoscaling.planning import target_tracking
from headrace.control.autoscaling.planning.decision import Trigger
from headrace.control.autoscaling.planning.policy_alarms import TRACKING
from headrace.control.autoscaling.planning.step_scaling import StepScaling
from headrace.control.autoscaling.planning.target_tracking import TargetTracking
from headrace.control.autoscaling.planning.targets import policy_arn
from headrace.state.records import RawRecord
from headrace.wire.aws.scope import AwsScope

STEPS = "StepScalingPolicyConfiguration"


def triggers_of(aws_scope: AwsScope, policies: Sequence[RawRecord], alarms: Sequence[Watched]) -> list[Trigger]:
    """Every pair of a policy and an alarm that names it, whatever the alarm's state is."""
    return [
        _trigger(policy, alarm, arn)
        for policy in policies
        for arn in (policy_arn(aws_scope, policy),)
        for alarm in alarms
        if arn in actions_of(alarm.record.spec)
    ]


def _trigger(record: RawRecord, alarm: Watched, arn: str) -> Trigger:
    """To a policy an alarm is in ALARM when it is in the state that has the policy as its action."""
    return Trigger(
        policy_name=record.spec["PolicyName"],
        alarm_name=alarm.record.name,
        policy=_policy(record),
        state="ALARM" if arn in alarm.actions else "OK",
        values=alarm.values,
        threshold=alarm.rule.threshold,
        comparison=alarm.rule.comparison,
        gap_s=alarm.rule.watched_s if alarm.is_from_gaps else 0.0,
    )


def _policy(record: RawRecord) -> TargetTracking | StepScaling:
    if record.spec["PolicyType"] == "TargetTrackingScaling":
        return target_tracking.policy_from_json(record.spec[TRACKING])
    return step.policy_from_json(record.spec[STEPS])
