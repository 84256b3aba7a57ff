"""
The inference components whose copies follow the instances of a scaled variant.

Level-triggered: each look compares what a component has with what its declared ratio asks for, and writes the
difference. A component that is a scalable target itself does not follow: its copies belong to that target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.control.autoscaling.planning.targets import COMPONENT_DIMENSION, TargetKey
from headrace.control.autoscaling.records.activities import RETRY_S
from headrace.control.autoscaling.records.capacity import settled_version
from headrace.control.model.component_reading import is_readable, variant_of
from headrace.control.model.component_runtime import MAX_COPIES, is_updatable, with_copies
from headrace.control.model.density import Density, read_density, with_density
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT, SCALABLE_TARGET
from headrace.control.model.names import arn_of
from headrace.control.model.progress import EndpointView, view_endpoint
from headrace.state.records import RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A component, compared with what the instances of its variant ask for."""

    name: str
    density: Density
    wanted: int
    copies: int
    """Copies asked for and not taken back, those that wait for room included."""
    is_settled: bool
    reason: str = ""
    """Why copies are missing."""

    @property
    def has_failed(self) -> bool:
        """Whether the copies that the instances ask for were taken back a moment ago."""
        return self.is_settled and self.copies < self.wanted

    def told(self) -> str:
        """Describe what the component got, for an activity's `Details`."""
        declared = f"declared: {self.density.copies} for {_counted(self.density.instances, 'instance')}"
        missing = f" {self.reason}" if self.reason else ""
        return f"Inference component {self.name} follows with {_counted(self.wanted, 'copy')} ({declared}).{missing}"


def keep_copies(store: Store, aws_scope: AwsScope, key: TargetKey, instances: int, *, now_s: float) -> list[Follower]:
    """
    Bring the copies of a variant's components to what its instances ask for; return those that follow.

    Args:
        store: to read from and write to.
        aws_scope: of the platform.
        key: of the variant.
        instances: of the variant, as asked for last.
        now_s: seconds since 1970.

    Raises:
        Conflict: a component was written at the same moment.
    """
    followers = []
    for record in components_of(store, key):
        if store.get(SCALABLE_TARGET, _target_name(record.name)) is not None:
            _release(store, record)
            continue
        declared = _declared(store, record, instances)
        if declared is not None:
            followers.append(_followed(store, aws_scope, *declared, instances, now_s))
    return followers


def release_copies(store: Store, key: TargetKey) -> None:
    """Let the components of a variant follow no more; they keep the copies that they have."""
    for record in components_of(store, key):
        _release(store, record)


def components_of(store: Store, key: TargetKey) -> Sequence[RawRecord]:
    """Return the readable components on a variant, without those that are being deleted."""
    endpoint = store.get(ENDPOINT, key.endpoint) if key.endpoint else None
    if endpoint is None:
        return ()
    return [
        record
        for record in store.list(INFERENCE_COMPONENT)
        if record.spec.get("endpoint_uid") == endpoint.uid
        and record.deleting_s is None
        and variant_of(record) == key.variant
        and is_readable(record)
    ]


def _target_name(component: str) -> str:
    return f"inference-component/{component}|{COMPONENT_DIMENSION}"


def _release(store: Store, record: RawRecord) -> None:
    if read_density(record.spec) is not None:
        store.update(record, spec=with_density(record.spec, None))


def _declared(store: Store, record: RawRecord, instances: int) -> tuple[RawRecord, Density] | None:
    """Return a component with its ratio, which is written down first where it is new; None: it follows nothing."""
    density = read_density(record.spec)
    if density is not None:
        return record, density
    copies = _kept_copies(view_endpoint(record)) if is_updatable(record) else 0
    if not copies or not instances:
        return None
    density = Density(copies=copies, instances=instances)
    return store.update(record, spec=with_density(record.spec, density)), density


def _followed(
    store: Store, aws_scope: AwsScope, record: RawRecord, density: Density, instances: int, now_s: float
) -> Follower:
    """Ask for the copies that are wanted, unless they could not be had a moment ago."""
    view = view_endpoint(record)
    copies, wanted = _kept_copies(view), min(MAX_COPIES, density.copies_on(instances))
    is_settled = is_updatable(record)
    reason = view.progress.failure_reason if view.progress is not None and is_settled else ""
    since_s = view.progress.since_s if view.progress is not None else 0.0
    if is_settled and copies != wanted and not (reason and copies < wanted and now_s < since_s + RETRY_S):
        arn = arn_of(aws_scope, INFERENCE_COMPONENT, record.name)
        store.update(record, spec=with_density(with_copies(record, wanted, arn=arn), density))
        copies, is_settled, reason = wanted, False, ""
    return Follower(
        name=record.name, density=density, wanted=wanted, copies=copies, is_settled=is_settled, reason=reason
    )


def _kept_copies(view: EndpointView) -> int:
    """Return the copies that were asked for and not taken back, those that wait for room included."""
    settled = settled_version(view)
    (variant,) = settled.variants
    is_taken_up = view.progress is not None and settled is not view.version
    return variant.count + (view.progress.lacking if is_taken_up and view.progress is not None else 0)


def _counted(number: int, word: str) -> str:
    plural = {"copy": "copies", "instance": "instances"}
    return f"{number} {word if number == 1 else plural[word]}"
