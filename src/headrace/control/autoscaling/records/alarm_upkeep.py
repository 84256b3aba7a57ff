"""Keeps the alarms of target-tracking policies as their policies want them, and takes away what belongs to nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.cloudwatch.alarms.records import ALARM, new_alarm_status
from headrace.control.autoscaling.planning.policy_alarms import alarm_names, alarm_specs
from headrace.control.autoscaling.planning.targets import policy_arn, read_key
from headrace.control.autoscaling.records.removal import remove_policy
from headrace.control.model.kinds import SCALABLE_TARGET, SCALING_POLICY, SCHEDULED_ACTION
from headrace.state.records import AlreadyExists, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """All that autoscaling keeps, as it was at one time."""

    alarms: Sequence[RawRecord]
    policies: Sequence[RawRecord]
    actions: Sequence[RawRecord]
    """Scheduled ones."""
    targets: Sequence[RawRecord]


def read_holdings(store: Store) -> Holdings:
    """Read parents after their children: one that is missing then is gone, and not merely younger."""
    alarms, policies, actions = (store.list(kind) for kind in (ALARM, SCALING_POLICY, SCHEDULED_ACTION))
    return Holdings(alarms=alarms, policies=policies, actions=actions, targets=store.list(SCALABLE_TARGET))


def ensure_alarms(
    store: Store, aws_scope: AwsScope, policy: RawRecord, *, find: Callable[[str], RawRecord | None], now_s: float
) -> None:
    """
    Make the alarms of a target-tracking policy, or bring them up to date; other policies have none.

    Args:
        store: to write to.
        aws_scope: of the platform.
        policy: the policy.
        find: gives an alarm by its name.
        now_s: seconds since 1970.

    Raises:
        Conflict: somebody else wrote one at the same moment.
    """
    if policy.spec["PolicyType"] != "TargetTrackingScaling":
        return
    for name, spec in alarm_specs(aws_scope, policy).items():
        old = find(name)
        if old is None:
            try:
                status = new_alarm_status(name, now_s=now_s)
                store.create(ALARM, name, spec={**spec, "configured_s": now_s}, status=status)
            except AlreadyExists:
                continue
        elif {**old.spec, "configured_s": None} != {**spec, "configured_s": None}:
            store.update(old, spec={**spec, "configured_s": now_s})


def remove_unwanted(store: Store, aws_scope: AwsScope, policy: RawRecord) -> None:
    """Remove what a policy does not want any more: the Low alarm, if it may not scale in."""
    arn, wanted = policy_arn(aws_scope, policy), alarm_names(policy).values()
    for alarm in store.list(ALARM):
        if alarm.spec.get("owner") == arn and alarm.name not in wanted:
            store.remove(alarm)


def remove_orphans(store: Store, aws_scope: AwsScope, held: Holdings) -> bool:
    """Remove alarms that no policy wants, policies and actions whose target is gone; says whether there were any."""
    targets = {record.name for record in held.targets}
    wanted = {policy_arn(aws_scope, policy): alarm_names(policy).values() for policy in held.policies}
    made = [alarm for alarm in held.alarms if alarm.spec.get("owner")]
    lost_alarms = [alarm for alarm in made if alarm.name not in wanted.get(alarm.spec["owner"], ())]
    lost_policies = [policy for policy in held.policies if read_key(policy.spec).name not in targets]
    lost_actions = [action for action in held.actions if read_key(action.spec).name not in targets]
    for record in (*lost_alarms, *lost_actions):
        store.remove(record)
    for policy in lost_policies:
        remove_policy(store, aws_scope, policy)
    return bool(lost_alarms or lost_policies or lost_actions)
