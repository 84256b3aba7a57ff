"""
The concepts that endpoints and inference components share: revisions of workloads, and the progress of their rollout.

A revision is one version of an endpoint or component as a user requested it; its workloads are the workers to run. An
endpoint's revision has one workload for each production variant, an inference component's has one. The planners know
only these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, Generic, Self, TypeVar

import msgspec

from headrace.platform.control.model.resources import Resources, Strategy
from headrace.platform.control.model.rollout_config import Rollout, read_rollout
from headrace.platform.state.records import Json, Record, RecordPart, Unreadable
from headrace.platform.state.routes import DEFAULT_PREFIX_ROUTING, AsyncOutput, Capture, PrefixRouting, RoutingStrategy

DOWNLOAD_TIMEOUT_S: Final = 1200.0
"""Default of `ModelDataDownloadTimeoutInSeconds`."""
HEALTH_TIMEOUT_S: Final = 240.0
"""Default of `ContainerStartupHealthCheckTimeoutInSeconds`."""


class DesiredCapacity(RecordPart, frozen=True, kw_only=True):
    """The requested weight and number of workers of a workload."""

    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serverless:
    """The concurrency of a `ServerlessConfig`."""

    max_concurrency: int
    """Requests in flight at which further ones are throttled."""
    provisioned_concurrency: int = 0
    """Above 0 the worker always runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    Equal workers of one model: a production variant, or an inference component on the instances of one.

    A production variant without a model is a workload without workers: its instances host components. So is an adapter:
    the workers of another workload load it.
    """

    variant: str
    """Name of the production variant; for a component, of the variant that hosts it."""
    weight: float
    """Weight among the production variants; of a shadow variant, relative to the weight of the production variant."""
    count: int
    """Number of workers, or of instances for a host of components."""
    model: Json | None = field(repr=False)
    """CreateModel's members, which may contain secrets; None for a host of inference components and an adapter."""
    instance_type: str
    strategy: RoutingStrategy = "RANDOM"
    prefix_routing: PrefixRouting = DEFAULT_PREFIX_ROUTING
    provision_timeout_s: float | None = None
    """Time that a worker may wait for resources; None: as long as for its health."""
    download_timeout_s: float = DOWNLOAD_TIMEOUT_S
    health_timeout_s: float = HEALTH_TIMEOUT_S
    need: Resources | None = None
    """Resources that each worker takes from its instance; None if it has an instance of its own."""
    max_memory_mb: float | None = None
    """`MaxMemoryRequiredInMb` of a component, or `MemorySizeInMB`: the memory limit of a worker."""
    serverless: Serverless | None = None
    containers: tuple[str, ...] = ()
    """Names of the containers that each worker runs; empty for a model with one container."""
    is_direct: bool = False
    """True: each request names one of `containers`; False: they are a pipeline."""
    is_shadow: bool = False
    """True for a shadow variant: it gets copies of requests, and answers none."""
    placement: Strategy = "SPREAD"
    adapter_url: str = ""
    """Location of the adapter that the copies of its base component load; such a workload has no workers."""
    managed_scaling: Json = field(default_factory=dict)
    """`ManagedInstanceScaling` of a host."""
    notices: tuple[str, ...] = ()
    """Sentences about settings that are accepted without effect."""

    @property
    def is_host(self) -> bool:
        """True if its instances host inference components."""
        return self.model is None and not self.adapter_url

    @property
    def num_workers(self) -> int:
        """Number of its own workers: none for a host of components, or an adapter."""
        return 0 if self.model is None else self.count


class Revision(RecordPart, frozen=True, kw_only=True, dict=True):
    """Base class of the versions of endpoints and inference components."""

    number: int
    deployment: Json = msgspec.field(default_factory=dict)
    """`DeploymentConfig` of the rollout to this revision, or of a later one that was rolled back to it."""

    def __post_init__(self) -> None:
        """Refuse members that cannot be parsed, so that the record becomes unreadable."""
        _ = self.workloads, self.rollout, self.rollback_alarms

    @property
    def config_name(self) -> str:
        """`EndpointConfigName`; empty for a component."""
        return ""

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        return self._read_workloads()

    @cached_property
    def rollout(self) -> Rollout:
        """The rollout from the previous revision to this one."""
        return read_rollout(self.deployment, num_workers=self.num_workers)

    @cached_property
    def rollback_alarms(self) -> tuple[str, ...]:
        """Names of the alarms of `AutoRollbackConfiguration`."""
        configuration = self.deployment.get("AutoRollbackConfiguration") or {}
        return tuple(alarm["AlarmName"] for alarm in configuration.get("Alarms") or [] if "AlarmName" in alarm)

    @property
    def num_workers(self) -> int:
        return sum(workload.num_workers for workload in self.workloads)

    @property
    def desired(self) -> dict[str, DesiredCapacity]:
        """Weights and counts by variant."""
        return {
            workload.variant: DesiredCapacity(weight=workload.weight, count=workload.count)
            for workload in self.workloads
        }

    @property
    def startup_bound_s(self) -> float:
        """Longest time from the start of a worker until it must be ready."""
        times_s = (
            workload.download_timeout_s + workload.health_timeout_s + (workload.provision_timeout_s or 0.0)
            for workload in self.workloads
        )
        return max(times_s, default=0.0)

    @property
    def async_output(self) -> AsyncOutput | None:
        """The S3 locations for responses of asynchronous invocations; None without `AsyncInferenceConfig`."""
        return None

    @property
    def capture(self) -> Capture | None:
        """The data capture of invocations; None without an enabled `DataCaptureConfig`."""
        return None

    def workload(self, variant: str) -> Workload | None:
        return next((workload for workload in self.workloads if workload.variant == variant), None)

    def with_desired(self, desired: Mapping[str, DesiredCapacity]) -> Self:
        """Return the same revision with other weights and counts."""
        raise NotImplementedError

    def _read_workloads(self) -> tuple[Workload, ...]:
        raise NotImplementedError


class State(StrEnum):
    """EndpointStatus. Source: botocore, sagemaker 2017-07-24."""

    CREATING = "Creating"
    IN_SERVICE = "InService"
    UPDATING = "Updating"
    ROLLING_BACK = "RollingBack"
    UPDATE_ROLLBACK_FAILED = "UpdateRollbackFailed"
    FAILED = "Failed"
    DELETING = "Deleting"


TRANSIENT: Final = frozenset({State.CREATING, State.UPDATING, State.ROLLING_BACK, State.DELETING})
"""States that end by themselves, at the latest by a deadline."""
UPDATABLE: Final = frozenset({State.IN_SERVICE, State.UPDATE_ROLLBACK_FAILED})


class Stage(StrEnum):
    """Stage within a step of a rollout."""

    PROVISIONING = "provisioning"
    """The workers that the step needs are starting; its traffic has not shifted yet."""
    BAKING = "baking"
    """The step's traffic has shifted."""
    TERMINATING = "terminating"
    """All traffic is on the new revision; the old workers are kept until the termination wait is over."""


class Progress(RecordPart, frozen=True, kw_only=True):
    """The reconciler's memory of a rollout between two passes."""

    observed_generation: int
    """The newest `spec.generation` that the reconciler has acted on."""
    state: State
    since_s: float
    """Time at which `state` began."""
    stable: int | None = None
    """The serving revision; None if none has ever served."""
    target: int | None = None
    """The revision that is being deployed, or whose deployment failed."""
    stage: Stage = Stage.PROVISIONING
    stage_since_s: float = 0.0
    step: int = 0
    """Index in the rollout's steps."""
    fallback: dict[str, DesiredCapacity] | None = None
    """Weights and counts to return to if the new ones cannot be reached."""
    failure_reason: str = ""
    num_unplaced: int = 0
    """Copies of a component without room on any instance; they start when there is room."""


RevisionT = TypeVar("RevisionT", bound=Revision)
RevisionT_co = TypeVar("RevisionT_co", bound=Revision, covariant=True)


class DeployableSpec(RecordPart, Generic[RevisionT_co], frozen=True, kw_only=True):
    """The desired state of an endpoint or an inference component."""

    generation: int
    """Number of requests so far; the first is the creation."""
    revision: RevisionT_co
    """The revision that was requested last."""


class DeployableStatus(RecordPart, Generic[RevisionT_co], frozen=True, kw_only=True):
    """The observed state of an endpoint or an inference component."""

    progress: Progress | None = None
    """Progress of the rollout; None before the reconciler's first pass."""
    revisions: dict[int, RevisionT_co] = msgspec.field(default_factory=dict)
    """The revisions that `progress` names."""
    ready: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of serving workers, by `ready_key`."""
    notices: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Settings without effect, by variant."""

    def __post_init__(self) -> None:
        """Refuse a progress whose revisions are missing, so that the record becomes unreadable."""
        for number in (self.progress.stable, self.progress.target) if self.progress is not None else ():
            if number is not None and number not in self.revisions:
                raise ValueError(f"revision {number} is not in the status; expected one of {sorted(self.revisions)}")


Deployable = Record[DeployableSpec[Revision], DeployableStatus[Revision]]
"""The record of an endpoint or of an inference component."""


def ready_key(variant: str, revision: int) -> str:
    """Return the key of a fleet in `status.ready`."""
    return f"{variant}/{revision}"


def is_observed(record: Deployable) -> bool:
    """Return whether the reconciler has acted on the latest request."""
    progress = record.status.progress
    return progress is not None and progress.observed_generation == record.spec.generation


def visible_state(record: Deployable | Unreadable) -> State:
    """Return the state to show: it reflects a new request before the reconciler has acted on it."""
    if record.deleting_s is not None:
        return State.DELETING
    if isinstance(record, Unreadable):
        return State.FAILED
    if record.status.progress is None:
        return State.CREATING
    return record.status.progress.state if is_observed(record) else State.UPDATING


def serving_revision(record: Record[DeployableSpec[RevisionT], DeployableStatus[RevisionT]]) -> RevisionT:
    """Return the serving revision, or the first one while it is being deployed."""
    progress = record.status.progress
    if progress is None:
        return record.spec.revision
    number = progress.stable if progress.stable is not None else progress.target
    return record.status.revisions[number] if number is not None else record.spec.revision


def settled_revision(record: Record[DeployableSpec[RevisionT], DeployableStatus[RevisionT]]) -> RevisionT:
    """Return the revision that was requested last or, if it was rolled back, the one that serves instead."""
    progress = record.status.progress
    if progress is None or not is_observed(record) or progress.target is not None:
        return record.spec.revision
    if progress.stable is None or progress.state is State.UPDATING:
        return record.spec.revision
    return record.status.revisions[progress.stable]


def last_deployment(record: Record[DeployableSpec[RevisionT], DeployableStatus[RevisionT]]) -> Json:
    """Return the `DeploymentConfig` of the last request that has ended, also if it was rolled back."""
    is_busy = visible_state(record) in TRANSIENT
    return (serving_revision(record) if is_busy else record.spec.revision).deployment


def is_updatable(record: Deployable) -> bool:
    """Return whether another revision or capacity can be requested now."""
    has_served = record.status.progress is not None and record.status.progress.stable is not None
    return has_served and visible_state(record) in UPDATABLE


def failure_reason(record: Deployable) -> str:
    """Return the reason why the latest request failed; empty if it has not failed."""
    progress = record.status.progress
    if progress is None or record.deleting_s is not None or not is_observed(record):
        return ""
    return progress.failure_reason


def changed_s(record: Deployable | Unreadable) -> float:
    """Return the time at which the state last changed, or a change was last requested."""
    if isinstance(record, Unreadable):
        return record.modified_s
    if record.deleting_s is not None:
        return record.deleting_s
    if record.status.progress is None or not is_observed(record):
        return record.modified_s
    return max(record.created_s, record.status.progress.since_s)
