"""How far an endpoint has come: what the reconciler remembers of it from one pass to the next. Pure values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.control.model.kinds import INFERENCE_COMPONENT
from headrace.control.model.version import Desired, Version, read_version
from headrace.state.records import Json, RawRecord


class State(StrEnum):
    """EndpointStatus. Source: botocore, sagemaker 2017-07-24."""

    CREATING = "Creating"
    IN_SERVICE = "InService"
    UPDATING = "Updating"
    ROLLING_BACK = "RollingBack"
    UPDATE_ROLLBACK_FAILED = "UpdateRollbackFailed"
    FAILED = "Failed"
    DELETING = "Deleting"


TRANSIENT = frozenset({State.CREATING, State.UPDATING, State.ROLLING_BACK, State.DELETING})
"""End by themselves, or by their deadline."""


class Stage(StrEnum):
    """Where in the step of an update."""

    PROVISIONING = "provisioning"
    """The new workers that the step needs are not all ready; it has no traffic yet."""
    BAKING = "baking"
    """The step's traffic is on."""
    TERMINATING = "terminating"
    """All traffic is on the new version; the old workers are kept for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has become of what was asked."""

    observed: int
    """The newest request (`spec.asked`) that was taken up."""
    state: State
    since_s: float
    """When it came into `state`."""
    stable: int | None = None
    """Generation that serves; None if none ever did."""
    target: int | None = None
    """Generation that is being deployed, or was and failed."""
    stage: Stage = Stage.PROVISIONING
    stage_since_s: float = 0.0
    step: int = 0
    """Index in the rollout's steps."""
    fallback: dict[str, Desired] | None = None
    """Weights and counts to go back to when new ones cannot be had."""
    failure_reason: str = ""
    lacking: int = 0
    """Copies of a component that were asked for and have no room: they come when there is some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """The record of an endpoint, or of an inference component, understood."""

    name: str
    uid: str
    created_s: float
    deleting_s: float | None
    asked: int
    """Counts the requests; the first is the creation."""
    version: Version
    """What was asked last."""
    progress: Progress | None
    """None: nobody has looked at it yet."""
    versions: Mapping[int, Version]
    """Those that `progress` names."""
    is_component: bool = False
    """An inference component, whose workers are copies on another endpoint's instances."""


def view_endpoint(record: RawRecord) -> EndpointView:
    """Read the record of an endpoint or an inference component."""
    progress = record.status.get("progress")
    versions: Json = record.status.get("versions", {})
    return EndpointView(
        name=record.name,
        uid=record.uid,
        created_s=record.created_s,
        deleting_s=record.deleting_s,
        asked=record.spec["asked"],
        version=read_version(record.spec["version"]),
        progress=msgspec.convert(progress, Progress) if progress is not None else None,
        versions={int(generation): read_version(raw) for generation, raw in versions.items()},
        is_component=record.kind is INFERENCE_COMPONENT,
    )


def status_json(
    progress: Progress, versions: Mapping[int, Version], ready: Mapping[str, int], notices: Mapping[str, Sequence[str]]
) -> Json:
    """
    What the store keeps as an endpoint's status.

    Args:
        progress: how far it is.
        versions: those that `progress` names.
        ready: workers that serve, by variant and generation (`ready_key`).
        notices: what could not be honoured, by variant.
    """
    return {
        "progress": msgspec.to_builtins(progress),
        "versions": {str(generation): version.raw for generation, version in versions.items()},
        "ready": dict(ready),
        "notices": {variant: list(texts) for variant, texts in notices.items()},
    }


def ready_key(variant: str, generation: int) -> str:
    """Key of a fleet in `status.ready`."""
    return f"{variant}/{generation}"


def visible_state(view: EndpointView) -> State:
    """What DescribeEndpoint says: what was asked shows at once, before anybody has acted."""
    if view.deleting_s is not None:
        return State.DELETING
    if view.progress is None:
        return State.CREATING
    if view.progress.observed != view.asked:
        return State.UPDATING
    return view.progress.state
