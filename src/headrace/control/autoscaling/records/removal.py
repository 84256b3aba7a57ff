"""
Takes scalable targets, policies and what hangs on them away, children first.

Each is a write of its own. Whoever is cut off between two leaves children that belong to nothing; the autoscaler's
next pass finds and removes them.
"""

from headrace.cloudwatch.alarms.records import ALARM, actions_of, without_action
from headrace.control.autoscaling.planning.targets import policy_arn, read_key
from headrace.control.autoscaling.records.followers import release_copies
from headrace.control.model.kinds import SCALING_POLICY, SCHEDULED_ACTION
from headrace.state.records import AnyKind, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope


def remove_target(store: Store, aws_scope: AwsScope, record: RawRecord) -> None:
    """Forget a target with its policies and scheduled actions. Raises `Conflict` if one was written meanwhile."""
    for policy in children(store, SCALING_POLICY, record.name):
        remove_policy(store, aws_scope, policy)
    for action in children(store, SCHEDULED_ACTION, record.name):
        store.remove(action)
    release_copies(store, read_key(record.spec))
    store.remove(record)


def remove_policy(store: Store, aws_scope: AwsScope, record: RawRecord) -> None:
    """Forget a policy: the alarms that it made go too, a user's alarm loses it as its action."""
    arn = policy_arn(aws_scope, record)
    for alarm in store.list(ALARM):
        if alarm.spec.get("owner") == arn:
            store.remove(alarm)
        elif arn in actions_of(alarm.spec):
            store.update(alarm, spec=without_action(alarm.spec, arn))
    store.remove(record)


def children(store: Store, kind: AnyKind, target: str) -> list[RawRecord]:
    """Policies or scheduled actions of a target, by the name of its record."""
    return [record for record in store.list(kind) if record.name.startswith(target + "|")]
