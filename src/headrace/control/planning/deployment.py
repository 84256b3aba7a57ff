"""
A deployment as a value: a progress with the revisions that it names, and its transitions when copies have no place.

Copies of a component for which there is no room when it is scaled fail nothing: its revision counts those that have a
place, `Progress.num_unplaced` the others, and it is scaled again when there is room for some of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.control.model.worker import FleetKey, WorkerView
from headrace.control.model.workload import DesiredCapacity, Progress, Revision, State, Workload


class ExternalConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that workers do not show: reasons against the deployment, empty where there is none."""

    no_room: str = ""
    """Why missing workers have no place."""
    num_fitting: int = 0
    """Missing workers that have a place."""
    growth: int = 0
    """Unplaced copies (`Progress.num_unplaced`) that have a place now."""
    alarm: str = ""
    """An alarm of `AutoRollbackConfiguration` is in ALARM; matters once the new revision has traffic."""


NO_CONDITIONS: Final = ExternalConditions()


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A progress, and the revisions that it names."""

    progress: Progress
    revisions: Mapping[int, Revision]

    @property
    def stable(self) -> Revision | None:
        """The revision that serves."""
        number = self.progress.stable
        return None if number is None else self.revisions[number]

    @property
    def target(self) -> Revision | None:
        """The revision that is being deployed."""
        number = self.progress.target
        return None if number is None else self.revisions[number]


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The workers and the traffic that a deployment needs now."""

    num_workers: Mapping[FleetKey, int]
    """Workers by fleet; fleets that are not named need none."""
    workloads: Mapping[FleetKey, Workload]
    """The workloads of all revisions of the deployment."""
    halted_revision: int | None = None
    """Revision that gets no more workers, because its rolling update is being rolled back."""
    traffic_fraction: float = 0.0
    """The target's part of the traffic, 0 to 1."""


def cut_down(
    deployment: Deployment, stable: Revision, workers: Sequence[WorkerView], conditions: ExternalConditions
) -> Deployment:
    """Go on with the copies that run or have a place; the others are unplaced."""
    fleet = (stable.workloads[0].variant, stable.number)
    standing = sum(worker.is_wanted and not worker.is_leaving for worker in workers if worker.fleet == fleet)
    granted = min(stable.num_workers, standing + conditions.num_fitting)
    num_unplaced = deployment.progress.num_unplaced + stable.num_workers - granted
    return _granted(deployment, stable, granted, num_unplaced=num_unplaced, no_room=conditions.no_room)


def grow(deployment: Deployment, now_s: float, conditions: ExternalConditions) -> Deployment:
    """Scale a component by those of its unplaced copies that have room now; else record why there are none."""
    progress, stable = deployment.progress, deployment.stable
    assert stable is not None
    if conditions.growth:
        begun = replace(progress, state=State.UPDATING, since_s=now_s, stage_since_s=now_s, fallback=stable.desired)
        num_unplaced, granted = progress.num_unplaced - conditions.growth, stable.num_workers + conditions.growth
        scaling = replace(deployment, progress=begun)
        return _granted(scaling, stable, granted, num_unplaced=num_unplaced, no_room=conditions.no_room)
    if progress.failure_reason or not conditions.no_room:
        return deployment
    return _granted(
        deployment, stable, stable.num_workers, num_unplaced=progress.num_unplaced, no_room=conditions.no_room
    )


def _granted(deployment: Deployment, stable: Revision, count: int, *, num_unplaced: int, no_room: str) -> Deployment:
    """Return the deployment with this number of copies that have a place, and `num_unplaced` that have none."""
    reason = ""
    if num_unplaced:
        missing = f"{num_unplaced} of {count + num_unplaced} copies are missing"
        reason = f"{no_room} {missing}; they start when there is room for them."
    return Deployment(
        progress=replace(deployment.progress, num_unplaced=num_unplaced, failure_reason=reason),
        revisions={**deployment.revisions, stable.number: with_count(stable, count)},
    )


def with_count(revision: Revision, count: int) -> Revision:
    """Return a component's revision with another number of copies."""
    (workload,) = revision.workloads
    return revision.with_desired({workload.variant: DesiredCapacity(weight=workload.weight, count=count)})
