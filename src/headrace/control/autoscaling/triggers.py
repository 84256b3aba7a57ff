"""What the alarms say to the policies of one target. Pure."""

from collections.abc import Sequence

from headrace.control.autoscaling.alarm_watch import Watched
from headrace.control.autoscaling.policies_api import STEPS
from headrace.control.autoscaling.policy_alarms import TRACKING
from headrace.control.autoscaling.removal import names_action
from headrace.control.autoscaling.targets import policy_arn
from headrace.control.names import Site
from headrace.scaling import step, target_tracking
from headrace.scaling.decide import Trigger
from headrace.scaling.step import StepScaling
from headrace.scaling.target_tracking import TargetTracking
from headrace.state.records import Record


def triggers_of(site: Site, policies: Sequence[Record], alarms: Sequence[Watched]) -> list[Trigger]:
    """Every pair of a policy and an alarm that names it, whatever the alarm's state is."""
    return [
        _trigger(policy, alarm, arn)
        for policy in policies
        for arn in (policy_arn(site, policy),)
        for alarm in alarms
        if names_action(alarm.record, arn)
    ]


def _trigger(record: Record, alarm: Watched, arn: str) -> Trigger:
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


def _policy(record: Record) -> TargetTracking | StepScaling:
    if record.spec["PolicyType"] == "TargetTrackingScaling":
        return target_tracking.policy_from_json(record.spec[TRACKING])
    return step.policy_from_json(record.spec[STEPS])
