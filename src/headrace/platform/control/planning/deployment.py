"""A deployment as a value: a progress with the revisions that it names, how one starts, and what it needs."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.platform.control.model.workload import (
    Deployable,
    DesiredCapacity,
    Progress,
    Revision,
    Stage,
    State,
)


class ExternalConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that workers do not show: reasons against the deployment, empty where there is none."""

    no_room: str = ""
    """Reason why missing workers cannot be placed."""
    num_fitting: int = 0
    """Number of missing workers that can be placed."""
    growth: int = 0
    """Number of unplaced copies (`Progress.num_unplaced`) that can be placed now."""
    alarm: str = ""
    """Reason for a rollback that an alarm demands; it counts once the new revision has traffic."""


NO_CONDITIONS: Final = ExternalConditions()


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A progress, and the revisions that it names."""

    progress: Progress
    revisions: Mapping[int, Revision]

    @property
    def stable(self) -> Revision | None:
        number = self.progress.stable
        return None if number is None else self.revisions[number]

    @property
    def target(self) -> Revision | None:
        """The revision that is being deployed."""
        number = self.progress.target
        return None if number is None else self.revisions[number]


def start_deployment(record: Deployable, now_s: float) -> Deployment:
    """Return the deployment of a record: a new one if it was requested since the last pass."""
    progress, asked, generation = record.status.progress, record.spec.revision, record.spec.generation
    if progress is None:
        first = Progress(
            observed_generation=generation,
            state=State.CREATING,
            since_s=now_s,
            target=asked.number,
            stage_since_s=now_s,
        )
        return Deployment(progress=first, revisions={asked.number: asked})
    current = Deployment(progress=progress, revisions=record.status.revisions)
    stable = current.stable
    if progress.observed_generation == generation or stable is None:
        return current
    begun = replace(
        progress,
        observed_generation=generation,
        state=State.UPDATING,
        since_s=now_s,
        stage_since_s=now_s,
        failure_reason="",
    )
    if asked.number == stable.number:
        scaling = replace(begun, target=None, fallback=stable.desired, num_unplaced=0)
        return Deployment(progress=scaling, revisions={asked.number: asked})
    return _start_update(begun, stable, asked)


def _start_update(begun: Progress, stable: Revision, asked: Revision) -> Deployment:
    """Start an update: if copies of the stable revision are unplaced, only with as many copies as have a place."""
    num_placed = min(asked.num_workers, stable.num_workers) if begun.num_unplaced else asked.num_workers
    target = with_count(asked, num_placed) if begun.num_unplaced else asked
    progress = replace(
        begun,
        target=asked.number,
        stage=Stage.PROVISIONING,
        step=0,
        fallback=None,
        num_unplaced=asked.num_workers - num_placed,
    )
    return Deployment(progress=progress, revisions={stable.number: stable, asked.number: target})


def with_count(revision: Revision, count: int) -> Revision:
    """Return a component's revision with another number of copies."""
    (workload,) = revision.workloads
    return revision.with_desired({workload.variant: DesiredCapacity(weight=workload.weight, count=count)})
