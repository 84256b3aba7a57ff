"""
Takes scalable targets, policies and what hangs on them away, children first.

Each is a write of its own. Whoever is cut off between two leaves children that belong to nothing; the autoscaler's
next pass finds and removes them.
"""

from headrace.control.autoscaling.followers import release_copies
from headrace.control.autoscaling.targets import policy_arn, read_key
from headrace.control.names import Site
from headrace.state.records import Kind, Record
from headrace.state.store import Store

ACTION_MEMBERS = ("AlarmActions", "OKActions", "InsufficientDataActions")


def remove_target(store: Store, site: Site, record: Record) -> None:
    """Forget a target with its policies and scheduled actions. Raises `Conflict` if one was written meanwhile."""
    for policy in children(store, Kind.SCALING_POLICY, record.name):
        remove_policy(store, site, policy)
    for action in children(store, Kind.SCHEDULED_ACTION, record.name):
        store.remove(action)
    release_copies(store, read_key(record.spec))
    store.remove(record)


def remove_policy(store: Store, site: Site, record: Record) -> None:
    """Forget a policy: the alarms that it made go too, a user's alarm loses it as its action."""
    arn = policy_arn(site, record)
    for alarm in store.list(Kind.ALARM):
        if alarm.spec.get("owner") == arn:
            store.remove(alarm)
        elif names_action(alarm, arn):
            kept = {name: [one for one in alarm.spec.get(name, []) if one != arn] for name in ACTION_MEMBERS}
            store.update(alarm, spec={**alarm.spec, **kept})
    store.remove(record)


def children(store: Store, kind: Kind, target: str) -> list[Record]:
    """Policies or scheduled actions of a target, by the name of its record."""
    return [record for record in store.list(kind) if record.name.startswith(target + "|")]


def names_action(alarm: Record, arn: str) -> bool:
    """Whether an alarm starts a policy."""
    return any(arn in (alarm.spec.get(name) or ()) for name in ACTION_MEMBERS)
