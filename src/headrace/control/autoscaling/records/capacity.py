"""
The current and desired capacity of scalable targets, and the one way to change it.

The autoscaler and the waker use the functions of UpdateEndpointWeightsAndCapacities and
UpdateInferenceComponentRuntimeConfig; the reconciler does the rest.
"""

from dataclasses import dataclass

from headrace.control.api.endpoints import with_capacities
from headrace.control.autoscaling.planning.targets import TargetKey
from headrace.control.model.component_runtime import with_copies
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT
from headrace.control.model.names import arn_of, find
from headrace.control.model.progress import EndpointView, State, ready_key, view_endpoint, visible_state
from headrace.control.model.version import Desired, Variant, Version
from headrace.state.records import Json, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

_SETTLED = frozenset({State.IN_SERVICE, State.UPDATE_ROLLBACK_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a scalable target."""

    desired: int
    """The capacity requested last, and not rolled back."""
    in_service: int
    is_scalable: bool
    """False while the endpoint or component is being changed, and if it has failed."""
    since_s: float = 0.0
    """When it came into service, after its creation or the last change. Seconds since 1970."""
    failure: str = ""
    """The reason why the last request was rolled back."""


def read_capacity(store: Store, key: TargetKey) -> Capacity | None:
    """Return the capacity of a target, or None if its endpoint or component does not exist."""
    record = find_scaled(store, key)
    if record is None:
        return None
    view = view_endpoint(record)
    found = _scaled_variant(view, key)
    if found is None:
        return None
    desired = found.count or found.instances
    ready: dict[str, int] = record.status.get("ready", {})
    serving = sum(ready.get(ready_key(found.name, generation), 0) for generation in view.versions)
    has_served = view.progress is not None and view.progress.stable is not None
    return Capacity(
        desired=desired,
        in_service=serving if found.model is not None else num_hosts(record, key.variant),
        is_scalable=has_served and visible_state(view) in _SETTLED,
        since_s=view.progress.since_s if view.progress is not None else record.created_s,
        failure=view.progress.failure_reason if view.progress is not None else "",
    )


def num_hosts(record: RawRecord, variant: str) -> int:
    """Return the instances of a variant that hosts inference components; 0 for any other variant."""
    return len(record.status.get("instances", {}).get(variant, ()))


def write_capacity(store: Store, aws_scope: AwsScope, key: TargetKey, number: int) -> None:
    """
    Request another capacity.

    Raises:
        AwsError: It cannot be changed now, or exceeds a limit.
        Conflict: The record was written at the same moment.
        LookupError: The endpoint or component was deleted.
    """
    record = find_scaled(store, key)
    if record is None:
        raise LookupError(key.name)
    kind = INFERENCE_COMPONENT if key.component else ENDPOINT
    arn = arn_of(aws_scope, kind, record.name)
    store.update(record, spec=_with_number(record, key, number, arn))


def find_scaled(store: Store, key: TargetKey) -> RawRecord | None:
    """Return the record of the endpoint or component; None if it does not exist or is being deleted."""
    kind = INFERENCE_COMPONENT if key.component else ENDPOINT
    record = find(store, kind, key.component or key.endpoint)
    return record if record is not None and record.deleting_s is None else None


def _with_number(record: RawRecord, key: TargetKey, number: int, arn: str) -> Json:
    if key.component:
        return with_copies(record, number, arn=arn)
    desired = dict(settled_version(view_endpoint(record)).desired)
    if key.variant not in desired:
        raise LookupError(key.name)
    desired[key.variant] = Desired(weight=desired[key.variant].weight, count=number)
    return with_capacities(record, desired, arn=arn)


def _scaled_variant(view: EndpointView, key: TargetKey) -> Variant | None:
    """Return the variant whose count is scaled; a component is deployed as an endpoint of one variant."""
    version = settled_version(view)
    return version.variants[0] if key.component else version.variant(key.variant)


def settled_version(view: EndpointView) -> Version:
    """Return the version requested last or, if it was rolled back, the one that serves."""
    progress = view.progress
    if progress is None or progress.observed != view.asked or progress.target is not None:
        return view.version
    if progress.stable is None or progress.state is State.UPDATING:
        return view.version
    return view.versions[progress.stable]
