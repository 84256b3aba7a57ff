"""
The current and desired capacity of scalable targets, and the one way to change it.

The autoscaler and the waker use the functions of UpdateEndpointWeightsAndCapacities and
UpdateInferenceComponentRuntimeConfig; the reconciler does the rest.

The copies of inference components follow the instances of a scaled variant. Level-triggered: each pass compares a
component's copies with its declared ratio and writes the difference. A component that is a scalable target itself does
not follow: its copies belong to that target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from msgspec.structs import replace

from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey
from headrace.platform.autoscaling.records.activities import RETRY_S
from headrace.platform.control.model.component import (
    INFERENCE_COMPONENT,
    MAX_COPIES,
    ComponentRecord,
    Density,
    is_component,
    with_copies,
)
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord, EndpointStatus, with_capacities
from headrace.platform.control.model.names import arn_of
from headrace.platform.control.model.workload import (
    Workload,
    is_updatable,
    ready_key,
    serving_revision,
    settled_revision,
)
from headrace.platform.state.records import Conflict, Record, Unreadable
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

ScaledRecord = EndpointRecord | ComponentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
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
    if workload.is_host and isinstance(record.status, EndpointStatus):
        serving = len(record.status.instances.get(key.variant, ()))
    return Capacity(
        desired=workload.count,
        in_service=serving,
        is_scalable=is_updatable(record),
        since_s=progress.since_s if progress is not None else record.created_s,
        failure=progress.failure_reason if progress is not None else "",
    )


def write_capacity(
    store: Store, aws_scope: AwsScope, key: TargetKey, number: int, *, before: int | None = None
) -> None:
    """
    Request another capacity; with `before`, only if that is the capacity requested last.

    Raises:
        AwsError: it cannot be changed now, or would exceed a limit.
        Conflict: the record was written concurrently, or has another capacity than `before`.
        LookupError: the target is gone.
    """
    record = find_scaled(store, key)
    if record is None:
        raise LookupError(key.name)
    workload = _workload(record, key.variant)
    if before is not None and workload is not None and workload.count != before:
        raise Conflict(f"The capacity of {key.resource_id} is {workload.count}; expected {before}.")
    if is_component(record):
        arn = arn_of(aws_scope, INFERENCE_COMPONENT, record.name)
        store.update(record, spec=with_copies(record, number, arn=arn))
        return
    endpoint = cast("EndpointRecord", record)
    desired = dict(settled_revision(endpoint).desired)
    if key.variant not in desired:
        raise LookupError(key.name)
    desired[key.variant] = replace(desired[key.variant], count=number)
    store.update(endpoint, spec=with_capacities(endpoint, desired, arn=arn_of(aws_scope, ENDPOINT, endpoint.name)))


def find_scaled(store: Store, key: TargetKey) -> ScaledRecord | None:
    """Return the record of the endpoint or the component; None if it is gone, being deleted, or cannot be read."""
    record = _find(store, key)
    return record if isinstance(record, Record) and record.deleting_s is None else None


def is_unreadable(store: Store, key: TargetKey) -> bool:
    """Return whether the record of the endpoint or component cannot be read, for example because it is newer."""
    return isinstance(_find(store, key), Unreadable)


def _find(store: Store, key: TargetKey) -> ScaledRecord | Unreadable | None:
    return store.find(INFERENCE_COMPONENT, key.component) if key.component else store.find(ENDPOINT, key.endpoint)


def _workload(record: ScaledRecord, variant: str) -> Workload | None:
    """Return the workload as requested last; that in service of a variant which an unfinished update would remove."""
    if not variant:
        (workload,) = settled_revision(record).workloads
        return workload
    return settled_revision(record).workload(variant) or serving_revision(record).workload(variant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A component whose copies follow the instances of its variant."""

    name: str
    density: Density
    required: int
    """Copies for the current instances."""
    copies: int
    """Copies requested and not rolled back, including those without room yet."""
    is_settled: bool
    reason: str = ""
    """The reason why copies are missing."""

    @property
    def has_failed(self) -> bool:
        """True if the copies for the current instances were rolled back."""
        return self.is_settled and self.copies < self.required

    def describe(self) -> str:
        """Describe the component's copies for an activity's `Details`."""
        declared = f"declared: {self.density.copies} for {_counted(self.density.instances, 'instance')}"
        missing = f" {self.reason}" if self.reason else ""
        return f"Inference component {self.name} follows with {_counted(self.required, 'copy')} ({declared}).{missing}"


def keep_copies(store: Store, aws_scope: AwsScope, key: TargetKey, instances: int, *, now_s: float) -> list[Follower]:
    """Bring the copies of a variant's components to their ratio; return those that follow. Raises `Conflict`."""
    followers = []
    for record in components_of(store, key):
        if store.get(SCALABLE_TARGET, TargetKey.of_component(record.name).name) is not None:
            _release(store, record)
            continue
        declared = _declared(store, record, instances)
        if declared is not None:
            followers.append(_followed(store, aws_scope, *declared, instances, now_s))
    return followers


def release_copies(store: Store, key: TargetKey) -> None:
    """Stop the components of a variant from following it; they keep their copies."""
    for record in components_of(store, key):
        _release(store, record)


def components_of(store: Store, key: TargetKey) -> Sequence[ComponentRecord]:
    """Return the readable components with copies on a variant, without those that are being deleted."""
    endpoint = store.get(ENDPOINT, key.endpoint) if key.endpoint else None
    if endpoint is None:
        return ()
    return [
        record
        for record in store.each(INFERENCE_COMPONENT)
        if isinstance(record, Record)
        and record.spec.endpoint_uid == endpoint.uid
        and record.deleting_s is None
        and record.spec.revision.variant == key.variant
        and not record.spec.revision.base
    ]


def _release(store: Store, record: ComponentRecord) -> None:
    if record.spec.density is not None:
        store.update(record, spec=replace(record.spec, density=None))


def _declared(store: Store, record: ComponentRecord, instances: int) -> tuple[ComponentRecord, Density] | None:
    """Return a component with its ratio, recording a new one first; None if it cannot follow."""
    density = record.spec.density
    if density is not None:
        return record, density
    copies = _kept_copies(record) if is_updatable(record) else 0
    if not copies or not instances:
        return None
    density = Density(copies=copies, instances=instances)
    return store.update(record, spec=replace(record.spec, density=density)), density


def _followed(
    store: Store, aws_scope: AwsScope, record: ComponentRecord, density: Density, instances: int, now_s: float
) -> Follower:
    """Request the copies of a component's ratio, unless they were unavailable within `RETRY_S`."""
    progress = record.status.progress
    copies, required = _kept_copies(record), min(MAX_COPIES, density.copies_on(instances))
    is_settled = is_updatable(record)
    reason = progress.failure_reason if progress is not None and is_settled else ""
    since_s = progress.since_s if progress is not None else 0.0
    if is_settled and copies != required and not (reason and copies < required and now_s < since_s + RETRY_S):
        arn = arn_of(aws_scope, INFERENCE_COMPONENT, record.name)
        store.update(record, spec=with_copies(record, required, arn=arn, density=density))
        copies, is_settled, reason = required, False, ""
    return Follower(
        name=record.name, density=density, required=required, copies=copies, is_settled=is_settled, reason=reason
    )


def _kept_copies(record: ComponentRecord) -> int:
    """Return the copies that were requested and not rolled back, including those without room yet."""
    settled, progress = settled_revision(record), record.status.progress
    is_started = progress is not None and settled is not record.spec.revision
    return settled.copies + (progress.num_unplaced if is_started and progress is not None else 0)


def _counted(number: int, word: str) -> str:
    plural = {"copy": "copies", "instance": "instances"}
    return f"{number} {word if number == 1 else plural[word]}"
