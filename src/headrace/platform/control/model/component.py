"""Inference components: models that share the instances of an endpoint's variant, and their numbers of copies."""

from collections.abc import Mapping
from typing import Final, Self, TypeGuard

import msgspec

from headrace.platform.control.model.endpoint import member_notices, variant_notices
from headrace.platform.control.model.resources import read_requirements
from headrace.platform.control.model.workload import (
    DOWNLOAD_TIMEOUT_S,
    HEALTH_TIMEOUT_S,
    DeployableSpec,
    DeployableStatus,
    DesiredCapacity,
    Revision,
    State,
    Workload,
    is_updatable,
    ready_key,
    serving_revision,
    visible_state,
)
from headrace.platform.state.records import Json, Kind, Record, RecordPart, StoredRecord, Unreadable
from headrace.serving.wire.aws.errors import AwsError, validation_error

MAX_COPIES: Final = 100
"""Maximum copies of a component: a mistyped count must not fill the machine with processes."""
_STATUSES: Final = {State.ROLLING_BACK: "Updating", State.UPDATE_ROLLBACK_FAILED: "Failed"}
"""InferenceComponentStatus has fewer values than EndpointStatus. Source: botocore, sagemaker 2017-07-24."""


class ComponentRevision(Revision, frozen=True, kw_only=True, dict=True):
    """An inference component's specification and model, copied when the revision was requested."""

    variant: str
    """The endpoint's production variant whose instances it is placed on."""
    instance_type: str
    specification: Json
    """`InferenceComponentSpecification`, the one for the instance type if there are several."""
    specifications: list[Json] = msgspec.field(default_factory=list)
    """The whole of `Specifications`, if given."""
    model: Json
    """CreateModel's members; a model made from the specification's own container has the component's name."""
    copies: int

    @property
    def base(self) -> str:
        """The inference component whose copies load this adapter; empty for a component with its own copies."""
        return str(self.specification.get("BaseInferenceComponentName") or "")

    @property
    def artifact_url(self) -> str:
        """Location of the artifacts of the specification's own container; empty without one."""
        return str((self.specification.get("Container") or {}).get("ArtifactUrl") or "")

    def with_desired(self, desired: Mapping[str, DesiredCapacity]) -> Self:
        """Return the same revision with another number of copies."""
        return msgspec.structs.replace(self, copies=desired[self.variant].count)

    def _read_workloads(self) -> tuple[Workload, ...]:
        requirements: Json = self.specification.get("ComputeResourceRequirements") or {}
        scheduling: Json = self.specification.get("SchedulingConfig") or {}
        startup: Json = self.specification.get("StartupParameters") or {}
        max_mb = requirements.get("MaxMemoryRequiredInMb")
        workload = Workload(
            variant=self.variant,
            weight=1.0,
            count=self.copies,
            model=None if self.base else self.model,
            instance_type=self.instance_type,
            download_timeout_s=float(startup.get("ModelDataDownloadTimeoutInSeconds", DOWNLOAD_TIMEOUT_S)),
            health_timeout_s=float(startup.get("ContainerStartupHealthCheckTimeoutInSeconds", HEALTH_TIMEOUT_S)),
            need=read_requirements(requirements),
            max_memory_mb=None if max_mb is None else float(max_mb),
            placement="BINPACK" if scheduling.get("PlacementStrategy") == "BINPACK" else "SPREAD",
            adapter_url=self.artifact_url if self.base else "",
            notices=variant_notices({}, {}, self.model)
            + member_notices("InferenceComponentSpecification", self.specification),
        )
        return (workload,)


class Density(RecordPart, frozen=True, kw_only=True):
    """
    The ratio of a component's copies to the instances of its variant, as both were when it was set.

    While Application Auto Scaling scales the variant, the copies follow its instances by this ratio: an instance
    without copies would take no load.
    """

    copies: int
    instances: int

    def __post_init__(self) -> None:
        """Refuse a ratio without copies or instances."""
        if self.copies < 1 or self.instances < 1:
            raise ValueError(f"density is {self.copies} to {self.instances}; expected at least one of each")

    def copies_on(self, instances: int) -> int:
        """Return the copies for a number of instances, rounded up."""
        return -(-self.copies * instances // self.instances)


class ComponentOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a component's spec that names its endpoint; see `Unreadable.salvage`."""

    endpoint: str
    endpoint_uid: str


class ComponentSpec(DeployableSpec[ComponentRevision], frozen=True, kw_only=True):
    endpoint: str
    endpoint_uid: str
    density: Density | None = None
    """None if its copies do not follow the instances of its variant."""


class ComponentStatus(DeployableStatus[ComponentRevision], frozen=True, kw_only=True):
    """The observed state of an inference component."""


ComponentRecord = Record[ComponentSpec, ComponentStatus]


INFERENCE_COMPONENT: Final = Kind("inference-component", ComponentSpec, ComponentStatus, oldest=2)


def owner_of(record: ComponentRecord | Unreadable) -> ComponentOwner | None:
    """Return the endpoint that a component belongs to; None if that part of its record cannot be read."""
    if isinstance(record, Unreadable):
        return record.salvage(ComponentOwner)
    return ComponentOwner(endpoint=record.spec.endpoint, endpoint_uid=record.spec.endpoint_uid)


def is_component(record: StoredRecord) -> TypeGuard[ComponentRecord]:
    """Return whether a record is a component's, and readable."""
    return isinstance(record, Record) and isinstance(record.spec, ComponentSpec)


def endpoint_name(record: ComponentRecord | Unreadable) -> str:
    """Return the name of a component's endpoint; empty if that part of its record cannot be read."""
    owner = owner_of(record)
    return owner.endpoint if owner is not None else ""


def variant_name(record: ComponentRecord | Unreadable) -> str:
    """Return the name of the variant that a component is placed on; empty if its record cannot be read."""
    return "" if isinstance(record, Unreadable) else record.spec.revision.variant


def component_status(record: ComponentRecord | Unreadable) -> str:
    state = visible_state(record)
    return _STATUSES.get(state, state.value)


def current_copies(record: ComponentRecord) -> int:
    keys = (ready_key(revision.variant, number) for number, revision in record.status.revisions.items())
    return sum(record.status.ready.get(key, 0) for key in keys)


def with_copies(record: ComponentRecord, copies: int, *, arn: str, density: Density | None = None) -> ComponentSpec:
    """
    Return the component's spec with another number of copies; a ratio to instances is kept only if `density` gives it.

    Raises `AwsError`: the component is an adapter, is being updated, has failed, or would have too many copies.
    """
    check_num_copies(copies)
    if base := record.spec.revision.base:
        raise validation_error(
            f'Inference component "{arn}" is an adapter and has no copies of its own. Change the copies of its base '
            f"{base} instead."
        )
    refuse_busy(record, arn)
    current = serving_revision(record)
    return msgspec.structs.replace(
        record.spec,
        density=density,
        generation=record.spec.generation + 1,
        revision=msgspec.structs.replace(current, copies=copies, deployment=record.spec.revision.deployment),
    )


def refuse_busy(record: ComponentRecord, arn: str) -> None:
    """Refuse to update a component while it is being updated, or after it has failed."""
    if is_updatable(record):
        return
    if visible_state(record) is State.FAILED:
        raise validation_error(f'Cannot update failed inference component "{arn}". Delete it, and create it again.')
    raise validation_error(f'Cannot update in-progress inference component "{arn}".')


def check_num_copies(copies: int) -> None:
    """Refuse more copies than a component may have. Raises `AwsError`: ResourceLimitExceeded."""
    if copies > MAX_COPIES:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The limit for the number of copies of an inference component is {MAX_COPIES}, and {copies} were "
            "requested. Request fewer.",
        )
