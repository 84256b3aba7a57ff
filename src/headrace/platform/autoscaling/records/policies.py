"""
Alarms of target-tracking policies, and the removal of targets and policies with what depends on them.

Each write is a transaction of its own, children first. Children that an interruption leaves without a parent are
removed by the autoscaler's next pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headrace.platform.autoscaling.planning.policies import (
    SCALING_POLICY,
    PolicyRecord,
    alarm_names,
    alarm_specs,
    policy_arn,
)
from headrace.platform.autoscaling.planning.targets import (
    SCALABLE_TARGET,
    SCHEDULED_ACTION,
    ScheduledActionRecord,
    TargetKey,
    TargetRecord,
)
from headrace.platform.autoscaling.records.capacity import release_copies
from headrace.platform.cloudwatch.alarms.records import ALARM, AlarmRecord, AlarmSpec, new_alarm_status
from headrace.platform.state.records import AlreadyExists, Kind, Record, StoredRecord, Unreadable, readable
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

_SpecT = TypeVar("_SpecT")
_StatusT = TypeVar("_StatusT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingRecords:
    """The records that autoscaling keeps, read for one pass."""

    alarms: Sequence[AlarmRecord | Unreadable]
    policies: Sequence[PolicyRecord | Unreadable]
    actions: Sequence[ScheduledActionRecord | Unreadable]
    targets: Sequence[TargetRecord | Unreadable]


def read_records(store: Store) -> AutoscalingRecords:
    """Read all records, parents after their children: a parent that is missing then was removed, and is not new."""
    alarms, policies, actions = store.list(ALARM), store.list(SCALING_POLICY), store.list(SCHEDULED_ACTION)
    return AutoscalingRecords(alarms=alarms, policies=policies, actions=actions, targets=store.list(SCALABLE_TARGET))


def ensure_alarms(
    store: Store,
    aws_scope: AwsScope,
    policy: PolicyRecord,
    *,
    find: Callable[[str], AlarmRecord | Unreadable | None],
    now_s: float,
) -> None:
    """Create or update the alarms of a target-tracking policy; others have none. Raises `Conflict`."""
    for name, spec in alarm_specs(aws_scope, policy).items():
        _ensure_alarm(store, name, spec, find(name), now_s)


def _ensure_alarm(store: Store, name: str, spec: AlarmSpec, old: AlarmRecord | Unreadable | None, now_s: float) -> None:
    configured = msgspec.structs.replace(spec, configured_s=now_s)
    if isinstance(old, Unreadable):
        if old.is_newer:
            return
        store.remove(old)
        old = None
    if old is None:
        try:
            store.create(ALARM, name, spec=configured, status=new_alarm_status(name, now_s=now_s))
        except AlreadyExists:
            return
    elif msgspec.structs.replace(old.spec, configured_s=None) != spec:
        store.update(old, spec=configured)


def remove_stale_alarms(store: Store, aws_scope: AwsScope, policy: PolicyRecord) -> None:
    """Remove the alarms that a policy no longer needs: Low, once it may not scale in."""
    arn, names = policy_arn(aws_scope, policy), alarm_names(policy.spec).values()
    for alarm in store.each(ALARM):
        if isinstance(alarm, Record) and alarm.spec.owner == arn and alarm.name not in names:
            store.remove(alarm)


def remove_target(store: Store, aws_scope: AwsScope, record: TargetRecord | Unreadable, key: TargetKey) -> None:
    """Remove a target with its policies and scheduled actions. Raises `Conflict`."""
    for policy in children(store, SCALING_POLICY, record.name):
        remove_policy(store, aws_scope, policy)
    for action in children(store, SCHEDULED_ACTION, record.name):
        store.remove(action)
    release_copies(store, key)
    store.remove(record)


def remove_policy(store: Store, aws_scope: AwsScope, record: PolicyRecord | Unreadable) -> None:
    """Remove a policy with its alarms; users' alarms lose it as an action."""
    if isinstance(record, Record):
        arn = policy_arn(aws_scope, record)
        for alarm in store.each(ALARM):
            if isinstance(alarm, Unreadable):
                continue
            if alarm.spec.owner == arn:
                store.remove(alarm)
            elif arn in alarm.spec.actions:
                store.update(alarm, spec=alarm.spec.without_action(arn))
    store.remove(record)


def remove_orphans(store: Store, aws_scope: AwsScope, records: AutoscalingRecords) -> bool:
    """Remove alarms without a policy, and policies and actions without a target; return whether there were any."""
    targets = {record.name for record in records.targets}
    orphans: list[StoredRecord] = [
        *_orphaned_alarms(aws_scope, records),
        *(action for action in records.actions if _parent_of(action) not in targets),
    ]
    policies = [policy for policy in records.policies if _parent_of(policy) not in targets]
    for record in orphans:
        store.remove(record)
    for policy in policies:
        remove_policy(store, aws_scope, policy)
    return bool(orphans or policies)


def _orphaned_alarms(aws_scope: AwsScope, records: AutoscalingRecords) -> list[AlarmRecord]:
    policies = readable(records.policies)
    if len(policies) < len(records.policies):
        return []  # an unreadable policy may own any of them
    names = {policy_arn(aws_scope, policy): alarm_names(policy.spec).values() for policy in policies}
    alarms = readable(records.alarms)
    return [alarm for alarm in alarms if alarm.spec.owner and alarm.name not in names.get(alarm.spec.owner, ())]


def children(store: Store, kind: Kind[_SpecT, _StatusT], target: str) -> list[Record[_SpecT, _StatusT] | Unreadable]:
    """Return the policies or scheduled actions of a target, by the name of its record."""
    return list(store.each(kind, Selection(name_prefix=f"{target}|")))


def _parent_of(record: StoredRecord) -> str:
    """Return the name of the target of a policy or scheduled action: `<ResourceId>|<ScalableDimension>`."""
    return "|".join(record.name.split("|")[:2])
