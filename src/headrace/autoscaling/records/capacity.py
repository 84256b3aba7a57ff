"""
The current and desired capacity of scalable targets, and the one way to change it.

The autoscaler and the waker use the functions of UpdateEndpointWeightsAndCapacities and
UpdateInferenceComponentRuntimeConfig; the reconciler does the rest.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headrace.autoscaling.planning.targets import TargetKey
from headrace.control.model.component import INFERENCE_COMPONENT, ComponentRecord, with_copies
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, EndpointStatus, with_capacities
from headrace.control.model.names import arn_of, find
from headrace.control.model.workload import (
    Revision,
    Workload,
    is_updatable,
    ready_key,
    serving_revision,
    settled_revision,
)
from headrace.state.records import Record, Unreadable
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")
ScaledRecord = EndpointRecord | ComponentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a scalable target."""

    desired: int
    """The capacity requested last, and not rolled back."""
    in_service: int
    is_scalable: bool
    """False while the endpoint or component is being changed, and if it has failed."""
    since_s: float = 0.0
    """Time at which it came into service, after its creation or the last change, in seconds since 1970."""
    failure: str = ""
    """The reason why the last request was rolled back."""


def read_capacity(store: Store, key: TargetKey) -> Capacity | None:
    """Return the capacity as it is now; None if there is no such target, it is an adapter, or it cannot be read."""
    record = find_scaled(store, key)
    if record is None:
        return None
    workload = _workload(record, key.variant)
    if workload is None or workload.adapter_url:
        return None
    progress = record.status.progress
    keys = (ready_key(workload.variant, number) for number in record.status.revisions)
    serving = sum(record.status.ready.get(key, 0) for key in keys)
    return Capacity(
        desired=workload.count,
        in_service=num_hosts(record, key.variant) if workload.is_host else serving,
        is_scalable=is_updatable(record),
        since_s=progress.since_s if progress is not None else record.created_s,
        failure=progress.failure_reason if progress is not None else "",
    )


def num_hosts(record: ScaledRecord | Unreadable, variant: str) -> int:
    """Return the instances of a variant that hosts inference components; 0 for any other variant."""
    if isinstance(record, Unreadable) or not isinstance(record.status, EndpointStatus):
        return 0
    return len(record.status.instances.get(variant, ()))


def write_capacity(store: Store, aws_scope: AwsScope, key: TargetKey, number: int) -> None:
    """
    Request another capacity.

    Raises:
        AwsError: it cannot be changed now, or would exceed a limit.
        Conflict: the record was written concurrently.
        LookupError: the target is gone.
    """
    if key.component:
        component = _living(find(store, INFERENCE_COMPONENT, key.component), key)
        arn = arn_of(aws_scope, INFERENCE_COMPONENT, component.name)
        store.update(component, spec=with_copies(component, number, arn=arn))
        return
    endpoint = _living(find(store, ENDPOINT, key.endpoint), key)
    desired = dict(settled_revision(endpoint).desired)
    if key.variant not in desired:
        raise LookupError(key.name)
    desired[key.variant] = msgspec.structs.replace(desired[key.variant], count=number)
    arn = arn_of(aws_scope, ENDPOINT, endpoint.name)
    store.update(endpoint, spec=with_capacities(endpoint, desired, arn=arn))


def find_scaled(store: Store, key: TargetKey) -> ScaledRecord | None:
    """Return the record of the endpoint or the component; None if it is gone, being deleted, or cannot be read."""
    try:
        if key.component:
            return _living(find(store, INFERENCE_COMPONENT, key.component), key)
        return _living(find(store, ENDPOINT, key.endpoint), key)
    except LookupError:
        return None


def is_unreadable(store: Store, key: TargetKey) -> bool:
    """Return whether the record of the endpoint or component cannot be read, for example because it is newer."""
    record = find(store, INFERENCE_COMPONENT, key.component) if key.component else find(store, ENDPOINT, key.endpoint)
    return isinstance(record, Unreadable)


def _living(record: Record[SpecT, StatusT] | Unreadable | None, key: TargetKey) -> Record[SpecT, StatusT]:
    if record is None or isinstance(record, Unreadable) or record.deleting_s is not None:
        raise LookupError(key.name)
    return record


def _workload(record: ScaledRecord, variant: str) -> Workload | None:
    """Return the workload as requested last; that in service of a variant which an unfinished update would remove."""
    if not variant:
        return _only(settled_revision(record))
    return settled_revision(record).workload(variant) or serving_revision(record).workload(variant)


def _only(revision: Revision) -> Workload:
    (workload,) = revision.workloads
    return workload
